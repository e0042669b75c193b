use ipnet::IpNet;
use serde_json::{Map, Value, json};
use types::Protocol;

use super::{ObjectId, name_in, put, typed};
use crate::fields::{FieldError, Fields, UnknownPolicy, cidr, quoted};
use crate::objects::{Direction, GroupPeer, GroupPolicy, GroupRule, PortRange, RuleAction, RuleProtocol};

const DIRECTIONS: [(&str, Direction); 2] = [("in", Direction::Ingress), ("out", Direction::Egress)];
const ACTIONS: [(&str, RuleAction); 2] = [("allow", RuleAction::Allow), ("deny", RuleAction::Deny)];
const PROTOCOLS: &str = "any, tcp, udp, sctp, icmp or a protocol number from 1 to 255";
const PORTS: &str = "a port from 1 to 65535 or a range such as 8000-8080";

pub(super) fn read(
    id: &ObjectId,
    spec: &mut Fields,
    policy: &mut UnknownPolicy,
) -> Result<GroupPolicy, FieldError> {
    let mut ids: Vec<u32> = Vec::new();
    let rules = spec.objects("rules", |fields| {
        let path = fields.path_of("id");
        let rule = read_rule(fields, policy)?;
        if rule.id == GroupRule::UNASSIGNED {
            return Ok(rule);
        }
        if ids.contains(&rule.id) {
            return Err(FieldError::new(path, format!("{} is the id of two rules", rule.id)));
        }
        ids.push(rule.id);
        Ok(rule)
    })?;
    Ok(GroupPolicy { tenant: id.tenant_name().clone(), name: id.name().to_owned(), rules })
}

fn read_rule(mut rule: Fields, policy: &mut UnknownPolicy) -> Result<GroupRule, FieldError> {
    let id = rule.number("id", 1..=u64::from(u32::MAX))?.and_then(|id| u32::try_from(id).ok());
    if id.is_none() && matches!(policy, UnknownPolicy::Keep(_)) {
        return Err(rule.missing("id"));
    }
    let direction = rule.word("direction", &DIRECTIONS)?.ok_or_else(|| rule.missing("direction"))?;
    let priority = rule.number("priority", 1..=100)?.unwrap_or(1);
    let peer = read_peer(&mut rule, policy)?;
    let protocol = read_protocol(&mut rule)?;
    let port_path = rule.path_of("port");
    let ports = rule.take("port").map(|port| read_ports(&port_path, &port)).transpose()?;
    if ports.is_some() && !matches!(protocol, RuleProtocol::WithPorts(_)) {
        let reason = "only rules with protocol tcp, udp or sctp can have a port";
        return Err(FieldError::new(port_path, reason));
    }
    let action = rule.word("action", &ACTIONS)?.ok_or_else(|| rule.missing("action"))?;
    rule.finish(policy)?;
    Ok(GroupRule {
        id: id.unwrap_or(GroupRule::UNASSIGNED),
        direction,
        priority: u8::try_from(priority).unwrap_or(u8::MAX),
        peer,
        protocol,
        ports,
        action,
    })
}

/// `any`, or a mapping with exactly one field.
fn read_peer(rule: &mut Fields, policy: &mut UnknownPolicy) -> Result<GroupPeer, FieldError> {
    let path = rule.path_of("peer");
    let value = rule.take("peer");
    match value {
        None => return Ok(GroupPeer::Any),
        Some(Value::String(word)) if word == "any" => return Ok(GroupPeer::Any),
        Some(value @ Value::Object(_)) => rule.put_back("peer", value),
        Some(other) => {
            let allowed = "any, {group: NAME}, {network: NAME} or {cidr: CIDR}";
            return Err(FieldError::refused(&path, quoted(&other), allowed));
        }
    }
    let mut peer = rule.object("peer")?;
    let group = name_in(&mut peer, "group")?.map(|name| GroupPeer::Group(typed(name)));
    let network = name_in(&mut peer, "network")?.map(|name| GroupPeer::Network(typed(name)));
    let block_path = peer.path_of("cidr");
    let block = peer.take("cidr").map(|value| cidr(&block_path, value)).transpose()?;
    peer.finish(policy)?;
    let mut found = [group, network, block.map(GroupPeer::Block)].into_iter().flatten();
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None | Some(_), _) => {
            Err(FieldError::new(path, "must have exactly one of the fields group, network and cidr"))
        }
    }
}

fn read_protocol(rule: &mut Fields) -> Result<RuleProtocol, FieldError> {
    let path = rule.path_of("protocol");
    let Some(value) = rule.take("protocol") else { return Ok(RuleProtocol::Any) };
    let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
    let refused = || FieldError::refused(&path, quoted(&value), PROTOCOLS);
    if let Some(number) = number {
        let number = u8::try_from(number).ok().filter(|number| *number > 0).ok_or_else(refused)?;
        let with_ports = Protocol::ALL.into_iter().find(|protocol| protocol.number() == number);
        return Ok(with_ports.map_or(RuleProtocol::Number(number), RuleProtocol::WithPorts));
    }
    match value.as_str().unwrap_or_default() {
        "any" => Ok(RuleProtocol::Any),
        "icmp" => Ok(RuleProtocol::Icmp),
        word => word.parse().map(RuleProtocol::WithPorts).map_err(|_| refused()),
    }
}

/// A number, or text with a number or a range.
pub(super) fn read_ports(path: &str, value: &Value) -> Result<PortRange, FieldError> {
    let refused = || FieldError::refused(path, quoted(value), PORTS);
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(refused);
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return Err(refused()),
    };
    match text.split_once('-') {
        None => port(&text).map(PortRange::single),
        Some((first, last)) => PortRange::new(port(first)?, port(last)?).ok_or_else(refused),
    }
}

pub(super) fn spec(policy: &GroupPolicy) -> Map<String, Value> {
    let rules: Vec<Value> = policy.rules.iter().map(rule_spec).collect();
    let mut spec = Map::new();
    put(&mut spec, "rules", (!rules.is_empty()).then_some(rules));
    spec
}

fn rule_spec(rule: &GroupRule) -> Value {
    let word =
        |words: &[(&'static str, Direction)]| words.iter().find(|(_, d)| *d == rule.direction).map(|w| w.0);
    let protocol: Value = match rule.protocol {
        RuleProtocol::Any => "any".into(),
        RuleProtocol::WithPorts(protocol) => protocol.as_str().into(),
        RuleProtocol::Icmp => "icmp".into(),
        RuleProtocol::Number(number) => number.into(),
    };
    let mut spec = Map::new();
    put(&mut spec, "id", (rule.id != GroupRule::UNASSIGNED).then_some(rule.id));
    put(&mut spec, "direction", word(&DIRECTIONS));
    put(&mut spec, "priority", Some(rule.priority));
    put(&mut spec, "peer", Some(peer_spec(&rule.peer)));
    put(&mut spec, "protocol", Some(protocol));
    put(&mut spec, "port", rule.ports.map(ports_spec));
    put(&mut spec, "action", Some(rule.action.to_string()));
    Value::Object(spec)
}

fn peer_spec(peer: &GroupPeer) -> Value {
    match peer {
        GroupPeer::Any => "any".into(),
        GroupPeer::Group(name) => json!({ "group": name }),
        GroupPeer::Network(name) => json!({ "network": name }),
        GroupPeer::Block(block) => json!({ "cidr": IpNet::to_string(block) }),
    }
}

fn ports_spec(ports: PortRange) -> Value {
    if ports.first() == ports.last() { ports.first().into() } else { ports.to_string().into() }
}
