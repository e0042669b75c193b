//! An interpreter of nftables listings (`nft -n -j list table`). It knows the expressions that it finds in the listing, but neither
//! the names nor the meaning of Podwire's maps. An unknown expression is an error.

use std::collections::HashMap;
use std::net::IpAddr;

use policyproof::Flow;
use serde_json::Value;

/// The first packet of a flow between two links.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packet<'a> {
    pub(crate) flow: &'a Flow,
    pub(crate) input: Link,
    /// None if the packet is for the node.
    pub(crate) output: Option<Link>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) group: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    Forward,
    Input,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accept,
    Drop,
}

/// What makes a listing unreadable.
pub(crate) type Unreadable = String;

/// Parts of a key, or the value of a register.
type Number = u128;

#[derive(Debug, Default)]
pub(crate) struct ListedTable {
    maps: HashMap<String, ListedMap>,
    chains: HashMap<String, Vec<Rule>>,
    /// Each with its chain.
    hooks: Vec<(Hook, String)>,
}

/// The values by the exact parts of the key, then by intervals of the last part.
#[derive(Debug, Default)]
struct ListedMap(HashMap<Vec<Number>, Vec<(Number, Number, Number)>>);

type Rule = Vec<Expression>;

#[derive(Debug)]
enum Expression {
    /// All parts are in the same element. If the packet lacks a part, the rule ends.
    Match(Vec<Operand>, Elements),
    Differs(Operand, Vec<(Number, Number)>),
    Name(Side, String),
    Kind(Side, String),
    SetPriority(Number),
    /// Without an element, the rule ends.
    Lookup(Vec<Operand>, String),
    Jump(String),
    Goto(String),
    Return,
    Final(Verdict),
    /// Counters, limits and logs.
    NoEffect,
}

#[derive(Debug)]
enum Elements {
    Numbers(Vec<(Number, Number)>),
    Set(String),
    /// Of flags, of which the operand has one.
    Flags(Number),
}

#[derive(Debug, Clone, Copy)]
enum Side {
    Input,
    Output,
}

#[derive(Debug, Clone, Copy)]
enum Operand {
    Priority,
    Protocol,
    Port,
    Group(Side),
    Address(AddressField),
    /// The mark of the flow with a mask. New flows have no mark.
    Mark,
    /// New flows have neither of the states that rules name.
    State,
    IcmpV6Type,
}

#[derive(Debug, Clone, Copy)]
enum AddressField {
    Source4,
    Destination4,
    Source6,
    Destination6,
}

/// `new` as a bit of the state.
const STATE_NEW: Number = 8;
const ECHO_REQUEST: Number = 128;

impl ListedTable {
    pub(crate) fn read(listing: &str) -> Result<Self, Unreadable> {
        let json: Value = serde_json::from_str(listing).map_err(|error| error.to_string())?;
        let mut table = Self::default();
        for object in json["nftables"].as_array().ok_or("no objects")? {
            if let Some(set) = object.get("map").or_else(|| object.get("set")) {
                table.maps.insert(text(&set["name"])?, ListedMap::read(set)?);
            } else if let Some(chain) = object.get("chain") {
                let name = text(&chain["name"])?;
                if let Some(hook) = chain.get("hook") {
                    table.hooks.push((Hook::read(hook)?, name.clone()));
                }
                table.chains.entry(name).or_default();
            } else if let Some(rule) = object.get("rule") {
                let expressions = rule["expr"].as_array().ok_or("a rule without expressions")?;
                let read = expressions.iter().map(Expression::read).collect::<Result<_, _>>()?;
                table.chains.entry(text(&rule["chain"])?).or_default().push(read);
            }
        }
        Ok(table)
    }

    /// The verdict of the table's chains at a hook.
    pub(crate) fn judge(&self, hook: Hook, packet: &Packet<'_>) -> Verdict {
        let mut run = Run { table: self, packet, priority: 0 };
        let chains = self.hooks.iter().filter(|(of, _)| *of == hook);
        let is_dropped =
            chains.map(|(_, chain)| run.chain(chain)).any(|end| end == ChainEnd::Final(Verdict::Drop));
        if is_dropped { Verdict::Drop } else { Verdict::Accept }
    }

    /// All elements of all maps.
    pub(crate) fn size(&self) -> usize {
        self.maps.values().flat_map(|map| map.0.values()).map(Vec::len).sum()
    }
}

impl ListedMap {
    fn read(set: &Value) -> Result<Self, Unreadable> {
        let mut map = Self::default();
        for element in set.get("elem").and_then(Value::as_array).into_iter().flatten() {
            let (key, value) = match (set.get("map"), element.as_array().map(Vec::as_slice)) {
                (Some(_), Some([key, value])) => (key, numbers(value)?.0),
                (None, None) => (element, 0),
                (Some(_), _) | (None, Some(_)) => return Err(format!("element {element}")),
            };
            let mut parts = parts(key)?;
            let (first, last) = parts.pop().ok_or("an element without a key")?;
            let exact = parts.into_iter().map(|(first, last)| {
                if first == last {
                    Ok(first)
                } else {
                    Err(format!("an interval before the last part: {element}"))
                }
            });
            map.0.entry(exact.collect::<Result<_, _>>()?).or_default().push((first, last, value));
        }
        map.0.values_mut().for_each(|intervals| intervals.sort_unstable());
        Ok(map)
    }

    fn get(&self, key: &[Number]) -> Option<Number> {
        let (last, exact) = key.split_last()?;
        let intervals = self.0.get(exact)?;
        let (_, end, value) =
            intervals.get(intervals.partition_point(|(first, _, _)| first <= last).checked_sub(1)?)?;
        (last <= end).then_some(*value)
    }
}

impl Hook {
    fn read(value: &Value) -> Result<Self, Unreadable> {
        match value.as_str() {
            Some("forward") => Ok(Self::Forward),
            Some("input") => Ok(Self::Input),
            Some(_) | None => Err(format!("hook {value}")),
        }
    }
}

impl Expression {
    fn read(value: &Value) -> Result<Self, Unreadable> {
        let (name, of) = only_field(value)?;
        let target = || text(&of["target"]);
        Ok(match name {
            "match" => Self::read_match(of)?,
            "mangle" => Self::read_mangle(of)?,
            "jump" => Self::Jump(target()?),
            "goto" => Self::Goto(target()?),
            "return" => Self::Return,
            "accept" => Self::Final(Verdict::Accept),
            "drop" => Self::Final(Verdict::Drop),
            "counter" | "limit" | "log" => Self::NoEffect,
            _ => return Err(format!("expression {value}")),
        })
    }

    fn read_match(of: &Value) -> Result<Self, Unreadable> {
        let (left, right) = (&of["left"], &of["right"]);
        let operator = of["op"].as_str().ok_or("a match without operator")?;
        if let Some(key) = left["meta"]["key"].as_str() {
            let side = if key.starts_with('i') { Side::Input } else { Side::Output };
            match key {
                "iifname" | "oifname" if operator == "==" => return Ok(Self::Name(side, text(right)?)),
                "iifkind" | "oifkind" if operator == "==" => return Ok(Self::Kind(side, text(right)?)),
                _ => {}
            }
        }
        let operands = operands(left)?;
        match (operator, operands.as_slice(), right.as_str().and_then(|name| name.strip_prefix('@'))) {
            ("==", _, Some(set)) => Ok(Self::Match(operands, Elements::Set(set.to_owned()))),
            ("==", [_], None) => Ok(Self::Match(operands, Elements::Numbers(alternatives(right)?))),
            ("!=", [operand], None) => Ok(Self::Differs(*operand, alternatives(right)?)),
            ("in", [_], None) => {
                let flags = alternatives(right)?.into_iter().fold(0, |all, (flag, _)| all | flag);
                Ok(Self::Match(operands, Elements::Flags(flags)))
            }
            (_, _, _) => Err(format!("match {of}")),
        }
    }

    fn read_mangle(of: &Value) -> Result<Self, Unreadable> {
        if of["key"]["meta"]["key"] != "priority" {
            return Err(format!("mangle {of}"));
        }
        let Some(map) = of["value"].get("map") else {
            return Ok(Self::SetPriority(numbers(&of["value"])?.0));
        };
        let name = text(&map["data"])?;
        let name = name.strip_prefix('@').ok_or_else(|| format!("map {map}"))?;
        Ok(Self::Lookup(operands(&map["key"])?, name.to_owned()))
    }
}

fn only_field(value: &Value) -> Result<(&str, &Value), Unreadable> {
    let object = value.as_object().filter(|object| object.len() == 1);
    let field = object.and_then(|object| object.iter().next());
    field.map(|(name, of)| (name.as_str(), of)).ok_or_else(|| format!("expression {value}"))
}

fn text(value: &Value) -> Result<String, Unreadable> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("{value} is not a text"))
}

fn operands(value: &Value) -> Result<Vec<Operand>, Unreadable> {
    match value.get("concat").and_then(Value::as_array) {
        Some(parts) => parts.iter().map(Operand::read).collect(),
        None => Ok(vec![Operand::read(value)?]),
    }
}

impl Operand {
    fn read(value: &Value) -> Result<Self, Unreadable> {
        let unknown = || format!("operand {value}");
        let (name, of) = only_field(value)?;
        match (name, of["key"].as_str(), of["protocol"].as_str(), of["field"].as_str()) {
            ("meta", Some("priority"), _, _) => Ok(Self::Priority),
            ("meta", Some("l4proto"), _, _) => Ok(Self::Protocol),
            ("meta", Some("iifgroup"), _, _) => Ok(Self::Group(Side::Input)),
            ("meta", Some("oifgroup"), _, _) => Ok(Self::Group(Side::Output)),
            ("ct", Some("state"), _, _) => Ok(Self::State),
            ("payload", _, Some("ip"), Some("saddr")) => Ok(Self::Address(AddressField::Source4)),
            ("payload", _, Some("ip"), Some("daddr")) => Ok(Self::Address(AddressField::Destination4)),
            ("payload", _, Some("ip6"), Some("saddr")) => Ok(Self::Address(AddressField::Source6)),
            ("payload", _, Some("ip6"), Some("daddr")) => Ok(Self::Address(AddressField::Destination6)),
            ("payload", _, Some("th"), Some("dport")) => Ok(Self::Port),
            ("payload", _, Some("icmpv6"), Some("type")) => Ok(Self::IcmpV6Type),
            ("&", _, _, _) if of[0]["ct"]["key"] == "mark" => Ok(Self::Mark),
            (_, _, _, _) => Err(unknown()),
        }
    }
}

/// The key of an element, each part as an interval.
fn parts(key: &Value) -> Result<Vec<(Number, Number)>, Unreadable> {
    match key.get("concat").and_then(Value::as_array) {
        Some(parts) => parts.iter().map(numbers).collect(),
        None => Ok(vec![numbers(key)?]),
    }
}

/// A value, a list, or an anonymous set.
fn alternatives(value: &Value) -> Result<Vec<(Number, Number)>, Unreadable> {
    match value.as_array().or_else(|| value["set"].as_array()) {
        Some(list) => list.iter().map(numbers).collect(),
        None => Ok(vec![numbers(value)?]),
    }
}

/// A number, address, class, range or prefix as an interval.
fn numbers(value: &Value) -> Result<(Number, Number), Unreadable> {
    if let Some([first, last]) = value["range"].as_array().map(Vec::as_slice) {
        return Ok((numbers(first)?.0, numbers(last)?.1));
    }
    if let Some(prefix) = value.get("prefix") {
        let (first, bits) = (
            text(&prefix["addr"])?,
            if prefix["addr"].as_str().is_some_and(|a| a.contains(':')) { 128 } else { 32 },
        );
        let length = prefix["len"].as_u64().and_then(|length| u32::try_from(length).ok());
        let free = length
            .and_then(|length| u32::checked_sub(bits, length))
            .ok_or_else(|| format!("prefix {value}"))?;
        let first = number(&first)?;
        return Ok((first, first + (1_u128.checked_shl(free).unwrap_or(0)).wrapping_sub(1)));
    }
    let number = match value {
        Value::Number(number) => {
            number.as_u64().map(Number::from).ok_or_else(|| format!("number {number}"))?
        }
        Value::String(text) => number(text)?,
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            return Err(format!("value {value}"));
        }
    };
    Ok((number, number))
}

/// An address, a class (`1a:2b`, `none` or `root`), or a state of flows.
fn number(text: &str) -> Result<Number, Unreadable> {
    match text {
        "none" => return Ok(0),
        "root" => return Ok(Number::from(u32::MAX)),
        "invalid" => return Ok(1),
        "established" => return Ok(2),
        "related" => return Ok(4),
        _ => {}
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(of_address(address));
    }
    let class = text.split_once(':').and_then(|(major, minor)| {
        let half = |text| u16::from_str_radix(text, 16).ok().map(Number::from);
        Some((half(major)? << 16) | half(minor)?)
    });
    class.ok_or_else(|| format!("{text:?} is not a number"))
}

fn of_address(address: IpAddr) -> Number {
    match address {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

/// How a chain ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChainEnd {
    /// The caller continues. At a hook, the packet is accepted.
    Return,
    Final(Verdict),
}

/// How a rule ended.
enum RuleEnd {
    Next,
    /// The chain ended.
    Chain(ChainEnd),
}

/// A packet on its way through the chains.
struct Run<'a> {
    table: &'a ListedTable,
    packet: &'a Packet<'a>,
    priority: Number,
}

impl Run<'_> {
    fn chain(&mut self, name: &str) -> ChainEnd {
        let table = self.table;
        for rule in table.chains.get(name).unwrap_or_else(|| panic!("no chain {name}")) {
            match self.rule(rule) {
                RuleEnd::Next => {}
                RuleEnd::Chain(end) => return end,
            }
        }
        ChainEnd::Return
    }

    fn rule(&mut self, rule: &Rule) -> RuleEnd {
        for expression in rule {
            let holds = match expression {
                Expression::Match(operands, elements) => self.matches(operands, elements),
                Expression::Differs(operand, of) => {
                    self.value(*operand).is_some_and(|value| !is_in(of, value))
                }
                Expression::Name(side, pattern) => {
                    self.link(*side).is_some_and(|link| is_named(link, pattern))
                }
                Expression::Kind(side, kind) => self.link(*side).is_some_and(|link| link.kind == kind),
                Expression::SetPriority(value) => {
                    self.priority = *value;
                    true
                }
                Expression::Lookup(operands, map) => match self.lookup(operands, map) {
                    Some(value) => {
                        self.priority = value;
                        true
                    }
                    None => false,
                },
                Expression::Jump(chain) => match self.chain(chain) {
                    ChainEnd::Return => true,
                    end @ ChainEnd::Final(_) => return RuleEnd::Chain(end),
                },
                Expression::Goto(chain) => return RuleEnd::Chain(self.chain(chain)),
                Expression::Return => return RuleEnd::Chain(ChainEnd::Return),
                Expression::Final(verdict) => return RuleEnd::Chain(ChainEnd::Final(*verdict)),
                Expression::NoEffect => true,
            };
            if !holds {
                break;
            }
        }
        RuleEnd::Next
    }

    fn matches(&self, operands: &[Operand], elements: &Elements) -> bool {
        match (elements, operands) {
            (Elements::Set(set), _) => self.lookup(operands, set).is_some(),
            (Elements::Numbers(of), [operand]) => self.value(*operand).is_some_and(|value| is_in(of, value)),
            (Elements::Flags(flags), [operand]) => {
                self.value(*operand).is_some_and(|value| value & flags != 0)
            }
            (Elements::Numbers(_) | Elements::Flags(_), _) => false,
        }
    }

    fn lookup(&self, operands: &[Operand], map: &str) -> Option<Number> {
        let key: Vec<Number> = operands.iter().map(|operand| self.value(*operand)).collect::<Option<_>>()?;
        self.table.maps.get(map).unwrap_or_else(|| panic!("no map {map}")).get(&key)
    }

    fn link(&self, side: Side) -> Option<Link> {
        match side {
            Side::Input => Some(self.packet.input),
            Side::Output => self.packet.output,
        }
    }

    /// None if the packet has no such field.
    fn value(&self, operand: Operand) -> Option<Number> {
        let flow = self.packet.flow;
        match operand {
            Operand::Priority => Some(self.priority),
            Operand::Protocol => Some(flow.protocol.into()),
            Operand::Port => flow.port.map(Number::from),
            Operand::Group(side) => self.link(side).map(|link| link.group.into()),
            Operand::Address(field) => {
                let address = match field {
                    AddressField::Source4 | AddressField::Source6 => flow.source,
                    AddressField::Destination4 | AddressField::Destination6 => flow.destination,
                };
                let is_of_family = match field {
                    AddressField::Source4 | AddressField::Destination4 => address.is_ipv4(),
                    AddressField::Source6 | AddressField::Destination6 => address.is_ipv6(),
                };
                is_of_family.then(|| of_address(address))
            }
            Operand::Mark => Some(0),
            Operand::State => Some(STATE_NEW),
            Operand::IcmpV6Type => (flow.protocol == 58 && flow.source.is_ipv6()).then_some(ECHO_REQUEST),
        }
    }
}

fn is_in(intervals: &[(Number, Number)], value: Number) -> bool {
    intervals.iter().any(|(first, last)| (first..=last).contains(&&value))
}

fn is_named(link: Link, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => link.name.starts_with(prefix),
        None => link.name == pattern,
    }
}
