//! Elements of sets and maps, and the layout of their keys. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use types::{IfName, Mac};

use crate::desired::TableId;
use crate::number;
use crate::pod::{HostPort, Protocol};

/// One field of a key or of a map's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field<'a> {
    Link(&'a IfName),
    Mac(Mac),
    Ip(IpAddr),
    /// All addresses of a network: an interval.
    Net(IpNet),
    Protocol(Protocol),
    Port(u16),
    /// An interval of ports; both ends belong to it.
    Ports(u16, u16),
    /// An interval of addresses of one family; both ends belong to it.
    Range(IpAddr, IpAddr),
    ProtocolNumber(u8),
    /// The group of a link.
    LinkGroup(u32),
    Mark(u32),
    /// Major number in the upper half, minor number in the lower half.
    Class(u32),
    /// An interval of classes; both ends belong to it.
    Classes(u32, u32),
    /// The first bytes of an address, as bits of a packet. nft writes them as a number.
    Bits {
        address: [u8; 16],
        length: usize,
    },
}

/// The value of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data<'a> {
    /// It is an element of a set.
    None,
    Value(Vec<Field<'a>>),
    Verdict(MapVerdict<'a>),
}

/// The verdict that an element of a verdict map has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapVerdict<'a> {
    Accept,
    Drop,
    Jump(&'a str),
    Goto(&'a str),
}

impl<'a> MapVerdict<'a> {
    /// The kernel's code, and the chain.
    pub(crate) fn parts(self) -> (i32, Option<&'a str>) {
        match self {
            Self::Accept => (number::ACCEPT, None),
            Self::Drop => (number::DROP, None),
            Self::Jump(chain) => (number::JUMP, Some(chain)),
            Self::Goto(chain) => (number::GOTO, Some(chain)),
        }
    }
}

impl fmt::Display for MapVerdict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}

/// A verdict as the bytes that are compared: its code, then the name of its chain.
pub(crate) fn verdict_bytes(code: i32, chain: &str) -> Vec<u8> {
    [&code.to_be_bytes(), chain.as_bytes()].concat()
}

/// The meaning of an element that exists with other data.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Role<'a> {
    /// It is replaced.
    Member,
    /// The table's structure is of another version.
    Revision,
    /// Another pod has the port.
    HostPort(&'a HostPort),
}

#[derive(Debug, Clone)]
pub struct Element<'a> {
    pub(crate) table: TableId<'a>,
    pub(crate) set: Cow<'a, str>,
    pub(crate) key: Vec<Field<'a>>,
    pub(crate) data: Data<'a>,
    pub(crate) role: Role<'a>,
}

/// The key of an element as the kernel stores it. An interval of a single field is stored as two elements, its first value and
/// the value after its last one. An interval of a concatenation is one element with two keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StoredKey {
    pub(crate) key: Vec<u8>,
    /// The last key of an interval of a concatenation.
    pub(crate) last: Option<Vec<u8>>,
    /// This is the value after the last one of an interval.
    pub(crate) is_interval_end: bool,
}

impl StoredKey {
    pub(crate) fn exact(key: Vec<u8>) -> Self {
        Self { key, last: None, is_interval_end: false }
    }
}

/// Which bytes of a field are written.
#[derive(Clone, Copy)]
enum Bound {
    /// Of a key without intervals.
    Exact,
    First,
    Last,
}

impl Bound {
    /// Numbers are in the host's byte order. The kernel compares intervals bytewise, so there they are in network byte order.
    fn number(self, number: u32) -> [u8; 4] {
        match self {
            Self::Exact => number.to_ne_bytes(),
            Self::First | Self::Last => number.to_be_bytes(),
        }
    }
}

impl Field<'_> {
    pub(crate) fn bits(ip: IpAddr, length: usize) -> Self {
        let mut address = [0; 16];
        match ip {
            IpAddr::V4(ip) => address[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => address = ip.octets(),
        }
        Self::Bits { address, length }
    }

    fn is_interval(&self) -> bool {
        matches!(self, Self::Net(_) | Self::Ports(..) | Self::Range(..) | Self::Classes(..))
    }

    fn write(self, out: &mut Vec<u8>, bound: Bound) {
        match self {
            Self::Link(name) => {
                let start = out.len();
                out.extend_from_slice(name.as_str().as_bytes());
                out.resize(start + libc::IFNAMSIZ, 0);
            }
            Self::Mac(mac) => out.extend_from_slice(&mac.octets()),
            Self::Ip(IpAddr::V4(ip)) => out.extend_from_slice(&ip.octets()),
            Self::Ip(IpAddr::V6(ip)) => out.extend_from_slice(&ip.octets()),
            Self::Net(net) => match bound {
                Bound::Exact | Bound::First => Self::Ip(net.network()).write(out, bound),
                Bound::Last => Self::Ip(net.broadcast()).write(out, bound),
            },
            Self::Protocol(protocol) => out.push(protocol.number()),
            Self::Port(port) => out.extend_from_slice(&port.to_be_bytes()),
            Self::Ports(first, last) => match bound {
                Bound::Exact | Bound::First => Self::Port(first).write(out, bound),
                Bound::Last => Self::Port(last).write(out, bound),
            },
            Self::Range(first, last) => match bound {
                Bound::Exact | Bound::First => Self::Ip(first).write(out, bound),
                Bound::Last => Self::Ip(last).write(out, bound),
            },
            Self::ProtocolNumber(number) => out.push(number),
            Self::Classes(first, last) => match bound {
                Bound::Exact | Bound::First => Self::Class(first).write(out, bound),
                Bound::Last => Self::Class(last).write(out, bound),
            },
            Self::LinkGroup(number) | Self::Mark(number) | Self::Class(number) => {
                out.extend_from_slice(&bound.number(number));
            }
            Self::Bits { address, length } => out.extend(address.iter().take(length)),
        }
    }
}

/// The bytes of a key without intervals, or of a value.
pub(crate) fn bytes(fields: &[Field<'_>]) -> Vec<u8> {
    bytes_at(fields, Bound::Exact)
}

/// Every field of a concatenation begins at a 32-bit register of the kernel.
fn bytes_at(fields: &[Field<'_>], bound: Bound) -> Vec<u8> {
    let mut out = Vec::with_capacity(40);
    for field in fields {
        field.write(&mut out, bound);
        if fields.len() > 1 {
            out.resize(out.len().next_multiple_of(4), 0);
        }
    }
    out
}

/// The number after this one, in network byte order. None if there is none.
fn successor(mut number: Vec<u8>) -> Option<Vec<u8>> {
    for byte in number.iter_mut().rev() {
        let is_overflow;
        (*byte, is_overflow) = byte.overflowing_add(1);
        if !is_overflow {
            return Some(number);
        }
    }
    None
}

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(name) => name.fmt(f),
            Self::Mac(mac) => mac.fmt(f),
            Self::Ip(ip) => ip.fmt(f),
            Self::Net(net) => net.fmt(f),
            Self::Protocol(protocol) => protocol.fmt(f),
            Self::Port(port) => port.fmt(f),
            // nft refuses a range of one value.
            Self::Ports(first, last) if first == last => first.fmt(f),
            Self::Ports(first, last) => write!(f, "{first}-{last}"),
            Self::Range(first, last) if first == last => first.fmt(f),
            Self::Range(first, last) => write!(f, "{first}-{last}"),
            Self::Classes(first, last) if first == last => Self::Class(*first).fmt(f),
            Self::Classes(first, last) => write!(f, "{}-{}", Self::Class(*first), Self::Class(*last)),
            Self::ProtocolNumber(number) => number.fmt(f),
            Self::LinkGroup(group) => group.fmt(f),
            Self::Mark(mark) => write!(f, "{mark:#x}"),
            Self::Class(class) => write!(f, "{:x}:{:x}", class >> 16, class & 0xffff),
            Self::Bits { address, length } => {
                f.write_str("0x")?;
                address.iter().take(*length).try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

fn joined(fields: &[Field<'_>]) -> String {
    fields.iter().map(ToString::to_string).collect::<Vec<_>>().join(" . ")
}

/// As nft writes it: `inet podwire addr4 { pwabc . 10.0.0.2 }`.
impl fmt::Display for Element<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {{ {} }}", self.table, self.set, self.content())
    }
}

impl<'a> Element<'a> {
    pub fn new(
        table: TableId<'a>,
        set: impl Into<Cow<'a, str>>,
        key: Vec<Field<'a>>,
        data: Data<'a>,
    ) -> Self {
        Self { table, set: set.into(), key, data, role: Role::Member }
    }

    /// An element of a set.
    pub(crate) fn member(table: TableId<'a>, set: impl Into<Cow<'a, str>>, key: Vec<Field<'a>>) -> Self {
        Self::new(table, set, key, Data::None)
    }

    /// Its data as the bytes that are compared.
    pub(crate) fn value(&self) -> Option<Vec<u8>> {
        match &self.data {
            Data::None => None,
            Data::Value(fields) => Some(bytes(fields)),
            Data::Verdict(verdict) => {
                let (code, chain) = verdict.parts();
                Some(verdict_bytes(code, chain.unwrap_or_default()))
            }
        }
    }

    /// The key that has the data, and the end of an interval if the kernel stores it as an element.
    pub(crate) fn stored(&self) -> (StoredKey, Option<StoredKey>) {
        if !self.key.iter().any(Field::is_interval) {
            return (StoredKey::exact(bytes(&self.key)), None);
        }
        let (first, last) = (bytes_at(&self.key, Bound::First), bytes_at(&self.key, Bound::Last));
        if self.key.len() > 1 {
            return (StoredKey { last: Some(last), ..StoredKey::exact(first) }, None);
        }
        let end = successor(last).map(|key| StoredKey { is_interval_end: true, ..StoredKey::exact(key) });
        (StoredKey::exact(first), end)
    }

    fn content(&self) -> String {
        let key = joined(&self.key);
        match &self.data {
            Data::None => key,
            Data::Value(fields) => format!("{key} : {}", joined(fields)),
            Data::Verdict(verdict) => format!("{key} : {verdict}"),
        }
    }
}

/// The text for nft that adds these elements. One line for each set, because nft is slower with one line for each element.
pub(crate) fn additions<'e>(elements: impl IntoIterator<Item = &'e Element<'e>>) -> String {
    let mut sets: BTreeMap<(TableId<'_>, &str), Vec<String>> = BTreeMap::new();
    for element in elements {
        sets.entry((element.table, &element.set)).or_default().push(element.content());
    }
    sets.into_iter()
        .map(|((table, set), keys)| format!("add element {table} {set} {{ {} }}\n", keys.join(", ")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::TableFamily;

    #[test]
    fn fields_of_a_concatenation_are_padded_and_single_fields_are_not() {
        let link = IfName::try_from("eth0").unwrap();
        let mac = Field::Mac("02:00:00:00:00:07".parse().unwrap());
        assert_eq!(bytes(&[mac]).len(), 6);
        assert_eq!(bytes(&[Field::Link(&link), mac])[16..], [2, 0, 0, 0, 0, 7, 0, 0]);
        assert_eq!(bytes(&[Field::Protocol(Protocol::Udp), Field::Port(53)]), [17, 0, 0, 0, 0, 53, 0, 0]);
    }

    #[test]
    fn an_interval_has_two_elements_or_one_with_two_keys() {
        let stored = |key: Vec<Field<'static>>| {
            Element::member(TableId::of_pods(TableFamily::Inet), "s", key).stored()
        };
        let net = |net: &str| Field::Net(net.parse().unwrap());
        let end = |key: &[u8]| Some(StoredKey { is_interval_end: true, ..StoredKey::exact(key.to_vec()) });
        assert_eq!(
            stored(vec![net("10.0.0.0/8")]),
            (StoredKey::exact(vec![10, 0, 0, 0]), end(&[11, 0, 0, 0]))
        );
        assert_eq!(stored(vec![net("10.1.255.255/32")]).1, end(&[10, 2, 0, 0]));
        assert_eq!(stored(vec![net("255.0.0.0/8")]).1, None, "the last interval has no end");
        assert_eq!(stored(vec![net("ff00::/8")]).1, None);
        let (group, class) = (Field::LinkGroup(0x5057_0001), Field::Class(0x0001_0002));
        let key = vec![0x50, 0x57, 0, 1, 0, 1, 0, 2, 0, 80, 0, 0];
        let last = vec![0x50, 0x57, 0, 1, 0, 1, 0, 2, 0, 90, 0, 0];
        let concatenated = StoredKey { key, last: Some(last), is_interval_end: false };
        assert_eq!(stored(vec![group, class, Field::Ports(80, 90)]), (concatenated, None));
        assert_eq!(stored(vec![group]).0.key, 0x5057_0001_u32.to_ne_bytes());
    }

    #[test]
    fn map_elements_have_the_syntax_of_nft() {
        let table = TableId { family: TableFamily::Inet, name: "podwire-policy" };
        let element = |key, data| Element::new(table, "m", key, data).content();
        let key = vec![Field::LinkGroup(7), Field::Class(0xffff_0001), Field::Ports(80, 90)];
        for (verdict, text) in [
            (MapVerdict::Accept, "accept"),
            (MapVerdict::Drop, "drop"),
            (MapVerdict::Jump("deny"), "jump deny"),
            (MapVerdict::Goto("deny"), "goto deny"),
        ] {
            let written = element(key.clone(), Data::Verdict(verdict));
            assert_eq!(written, format!("7 . ffff:1 . 80-90 : {text}"));
        }
        let net = Field::Net("fd00::/8".parse().unwrap());
        assert_eq!(element(vec![net], Data::Value(vec![Field::Class(3)])), "fd00::/8 : 0:3");
    }
}
