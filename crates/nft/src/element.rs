//! Elements of sets and maps, the layout of their keys, and the elements of a pod. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use types::{IfName, Mac};

use crate::desired::pods::{self, DHCP_PORTS, MAC_PORTS, MACS, PORTS, SETS4, SETS6, SetNames, TARGETS};
use crate::desired::{REVISION, REVISION_KEY, TableFamily, TableId};
use crate::error::Error;
use crate::number;
use crate::pod::{AttachMode, FirewallPod, Guard, HostPort, Protocol};

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
    /// The group of a link.
    LinkGroup(u32),
    Mark(u32),
    /// Major number in the upper half, minor number in the lower half.
    Class(u32),
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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
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
        matches!(self, Self::Net(_) | Self::Ports(..))
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
            Self::Ports(first, last) => write!(f, "{first}-{last}"),
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

fn sets(ip: IpAddr) -> &'static SetNames {
    match ip {
        IpAddr::V4(_) => &SETS4,
        IpAddr::V6(_) => &SETS6,
    }
}

/// The tables that the pod needs.
pub(crate) fn families(pod: &FirewallPod<'_>) -> &'static [TableFamily] {
    pods::families(pod.mode, pod.guard)
}

/// The elements with the revision of the pod's tables. They stay when pods are removed.
pub(crate) fn revisions<'a>(pod: &FirewallPod<'_>) -> Vec<Element<'a>> {
    let revision = |family: &TableFamily| Element {
        table: TableId::of_pods(*family),
        set: REVISION.into(),
        key: vec![Field::Mark(REVISION_KEY)],
        data: Data::Value(vec![Field::Mark(pods::revision(*family))]),
        role: Role::Revision,
    };
    families(pod).iter().map(revision).collect()
}

/// All elements of this pod.
pub(crate) fn of<'a>(pod: &FirewallPod<'a>) -> Result<Vec<Element<'a>>, Error> {
    let mut out = Vec::with_capacity(16);
    for &ip in pod.addresses {
        let sets = sets(ip);
        out.push(member(TableFamily::Inet, sets.pods, vec![Field::Ip(ip)]));
        out.push(member(TableFamily::Inet, sets.own, vec![Field::Ip(ip), Field::Ip(ip)]));
        if let Some(chain) = pod.masquerade {
            let set = if ip.is_ipv4() { chain.set4() } else { chain.set6() };
            out.push(member(TableFamily::Inet, set, vec![Field::Ip(ip)]));
        }
    }
    // Elements that accept packets are added before elements that cause drops: a large repair takes several transactions, and packets
    // must not be dropped between them.
    match (pod.mode, pod.guard) {
        (AttachMode::Bridge, Guard::On | Guard::Dhcp | Guard::Mac) => guarded_port(pod, &mut out),
        (AttachMode::Routed, Guard::On | Guard::Dhcp | Guard::Mac) => guarded_link(pod, &mut out),
        (AttachMode::Bridge | AttachMode::Routed, Guard::Off) => {}
    }
    bound(pod, &mut out);
    for port in pod.ports {
        published(pod.mode, port, &mut out)?;
    }
    Ok(out)
}

fn member<'a>(family: TableFamily, set: &'a str, key: Vec<Field<'a>>) -> Element<'a> {
    Element::member(TableId::of_pods(family), set, key)
}

/// Binds the pod's addresses to the link on which the host may receive them. The guard of a routed pod already checks the link.
fn bound<'a>(pod: &FirewallPod<'a>, out: &mut Vec<Element<'a>>) {
    let via = match (pod.mode, pod.guard, pod.bridge) {
        (AttachMode::Bridge, _, None) => return,
        (AttachMode::Bridge, _, Some(bridge)) => Some(bridge),
        (AttachMode::Routed, Guard::On | Guard::Dhcp | Guard::Mac, _) => None,
        (AttachMode::Routed, Guard::Off, _) => Some(pod.link),
    };
    for &ip in pod.addresses {
        if let Some(link) = via {
            out.push(member(TableFamily::Inet, sets(ip).via, vec![Field::Ip(ip), Field::Link(link)]));
        }
        out.push(member(TableFamily::Inet, sets(ip).bound, vec![Field::Ip(ip)]));
    }
}

fn guarded_link<'a>(pod: &FirewallPod<'a>, out: &mut Vec<Element<'a>>) {
    let link = Field::Link(pod.link);
    for ip in own_addresses(pod) {
        out.push(member(TableFamily::Inet, sets(ip).source, vec![link, Field::Ip(ip), Field::Mac(pod.mac)]));
    }
    out.push(member(TableFamily::Inet, PORTS, vec![link]));
}

fn guarded_port<'a>(pod: &FirewallPod<'a>, out: &mut Vec<Element<'a>>) {
    let link = Field::Link(pod.link);
    for ip in own_addresses(pod) {
        out.push(member(TableFamily::Bridge, sets(ip).addr, vec![link, Field::Ip(ip)]));
        if ip.is_ipv6() {
            out.push(member(TableFamily::Bridge, TARGETS, vec![link, Field::bits(ip, 16)]));
        }
    }
    out.push(member(TableFamily::Bridge, MACS, vec![link, Field::Mac(pod.mac)]));
    match pod.guard {
        Guard::Dhcp => out.push(member(TableFamily::Bridge, DHCP_PORTS, vec![link])),
        Guard::Mac => out.push(member(TableFamily::Bridge, MAC_PORTS, vec![link])),
        Guard::On | Guard::Off => {}
    }
    // In both tables: frames to reserved multicast addresses bypass the bridge.
    out.push(member(TableFamily::Bridge, PORTS, vec![link]));
    out.push(member(TableFamily::Inet, PORTS, vec![link]));
}

/// The source addresses that the guard accepts.
fn own_addresses(pod: &FirewallPod<'_>) -> impl Iterator<Item = IpAddr> {
    let has_v6 = pod.addresses.iter().any(IpAddr::is_ipv6);
    let link_local = has_v6.then(|| IpAddr::V6(link_local(pod.mac)));
    pod.addresses.iter().copied().chain(link_local)
}

/// The link-local address that the kernel derives from the MAC (RFC 4291, appendix A).
fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.octets();
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

fn published<'a>(mode: AttachMode, port: &'a HostPort, out: &mut Vec<Element<'a>>) -> Result<(), Error> {
    let (sets, family) = (sets(port.pod), TableFamily::Inet);
    let service = [Field::Protocol(port.protocol), Field::Port(port.host_port)];
    let (set, key) = match host_address(port)? {
        Some(ip) => (sets.hostport, [Field::Ip(ip)].into_iter().chain(service).collect()),
        None => (sets.hostport_any, service.to_vec()),
    };
    let data = Data::Value(vec![Field::Ip(port.pod), Field::Port(port.pod_port)]);
    let table = TableId::of_pods(family);
    out.push(Element { table, set: set.into(), key, data, role: Role::HostPort(port) });
    match mode {
        AttachMode::Bridge => out.push(member(
            family,
            sets.hairpin,
            vec![
                Field::Ip(port.pod),
                Field::Protocol(port.protocol),
                Field::Port(port.pod_port),
                Field::Port(port.host_port),
            ],
        )),
        AttachMode::Routed => {}
    }
    Ok(())
}

/// The address of the host on which a port is published. None for all addresses.
fn host_address(port: &HostPort) -> Result<Option<IpAddr>, Error> {
    let Some(ip) = port.host_ip else { return Ok(None) };
    let refuse = |reason| Error::HostAddress { host_ip: ip, port: port.host_port, reason };
    if ip.is_ipv4() != port.pod.is_ipv4() {
        return Err(refuse("the pod's address is of the other family; use a hostIP of the same family"));
    }
    if ip == IpAddr::V6(Ipv6Addr::LOCALHOST) {
        return Err(refuse("Linux cannot forward from ::1; use 127.0.0.1 or an address of a link"));
    }
    let any = ip == IpAddr::V4(Ipv4Addr::UNSPECIFIED) || ip == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    Ok(if any { None } else { Some(ip) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::NetworkChain;

    fn words(mode: AttachMode, guard: Guard, ports: &[HostPort]) -> Vec<String> {
        let link = IfName::try_from("pwabc").unwrap();
        let chain = NetworkChain::new(&"blue".try_into().unwrap(), &["10.0.0.0/24".parse().unwrap()]);
        let addresses = ["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let mac = "02:00:00:00:00:07".parse().unwrap();
        let bridge = IfName::try_from("br0").unwrap();
        let pod = FirewallPod {
            link: &link,
            mac,
            mode,
            bridge: Some(&bridge),
            addresses: &addresses,
            masquerade: Some(&chain),
            guard,
            ports,
        };
        let id = chain.id();
        of(&pod).unwrap().iter().map(|e| e.to_string().replace(id, "NET").replace(" podwire", "")).collect()
    }

    fn port(host_ip: Option<&str>, pod: &str) -> HostPort {
        let host_ip = host_ip.map(|ip| ip.parse().unwrap());
        HostPort {
            host_ip,
            host_port: 80,
            protocol: Protocol::Tcp,
            pod: pod.parse().unwrap(),
            pod_port: 8080,
        }
    }

    const NAT: [&str; 6] = [
        "inet pods4 { 10.0.0.2 }",
        "inet self4 { 10.0.0.2 . 10.0.0.2 }",
        "inet NET-4 { 10.0.0.2 }",
        "inet pods6 { fd00::2 }",
        "inet self6 { fd00::2 . fd00::2 }",
        "inet NET-6 { fd00::2 }",
    ];

    #[test]
    fn a_routed_pod_is_guarded_at_the_ip_layer() {
        let got = words(AttachMode::Routed, Guard::On, &[]);
        assert_eq!(got[..6], NAT);
        let guard = [
            "inet source4 { pwabc . 10.0.0.2 . 02:00:00:00:00:07 }",
            "inet source6 { pwabc . fd00::2 . 02:00:00:00:00:07 }",
            "inet source6 { pwabc . fe80::ff:fe00:7 . 02:00:00:00:00:07 }",
            "inet ports { pwabc }",
            "inet bound4 { 10.0.0.2 }",
            "inet bound6 { fd00::2 }",
        ];
        assert_eq!(got[6..], guard);
    }

    #[test]
    fn a_bridged_pod_has_elements_for_its_port_and_hairpin() {
        let got = words(AttachMode::Bridge, Guard::On, &[port(Some("::"), "fd00::2")]);
        assert_eq!(got[..6], NAT);
        let guard = [
            "bridge addr4 { pwabc . 10.0.0.2 }",
            "bridge addr6 { pwabc . fd00::2 }",
            "bridge targets6 { pwabc . 0xfd000000000000000000000000000002 }",
            "bridge addr6 { pwabc . fe80::ff:fe00:7 }",
            "bridge targets6 { pwabc . 0xfe80000000000000000000fffe000007 }",
            "bridge macs { pwabc . 02:00:00:00:00:07 }",
            "bridge ports { pwabc }",
            "inet ports { pwabc }",
            "inet via4 { 10.0.0.2 . br0 }",
            "inet bound4 { 10.0.0.2 }",
            "inet via6 { fd00::2 . br0 }",
            "inet bound6 { fd00::2 }",
            "inet hostport6_any { tcp . 80 : fd00::2 . 8080 }",
            "inet hairpin6 { fd00::2 . tcp . 8080 . 80 }",
        ];
        assert_eq!(got[6..], guard);
    }

    #[test]
    fn e18_host_ips_of_the_other_family_and_ipv6_loopback_are_refused() {
        let ports = [port(Some("192.0.2.1"), "10.0.0.2"), port(None, "10.0.0.2")];
        let got = words(AttachMode::Routed, Guard::Off, &ports);
        let want = [
            "inet via4 { 10.0.0.2 . pwabc }",
            "inet bound4 { 10.0.0.2 }",
            "inet via6 { fd00::2 . pwabc }",
            "inet bound6 { fd00::2 }",
            "inet hostport4 { 192.0.2.1 . tcp . 80 : 10.0.0.2 . 8080 }",
            "inet hostport4_any { tcp . 80 : 10.0.0.2 . 8080 }",
        ];
        assert_eq!(got[6..], want);
        for (host_ip, pod) in [("192.0.2.1", "fd00::2"), ("0.0.0.0", "fd00::2"), ("::1", "fd00::2")] {
            let refused = published(AttachMode::Routed, &port(Some(host_ip), pod), &mut Vec::new());
            assert!(matches!(refused, Err(Error::HostAddress { .. })), "{host_ip}");
        }
    }

    #[test]
    fn fields_of_a_concatenation_are_padded_and_single_fields_are_not() {
        let link = IfName::try_from("eth0").unwrap();
        let mac = Field::Mac("02:00:00:00:00:07".parse().unwrap());
        assert_eq!(bytes(&[mac]).len(), 6);
        assert_eq!(bytes(&[Field::Link(&link), mac])[16..], [2, 0, 0, 0, 0, 7, 0, 0]);
        assert_eq!(bytes(&[Field::Protocol(Protocol::Udp), Field::Port(53)]), [17, 0, 0, 0, 0, 53, 0, 0]);
    }

    #[test]
    fn an_interval_is_stored_as_two_elements_or_as_one_with_two_keys() {
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
