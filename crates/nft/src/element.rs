//! Elements of sets and maps: those of a pod, and how keys are laid out. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use types::{IfName, Mac};

use crate::desired::pods::{self, DHCP_PORTS, MAC_PORTS, MACS, PORTS, SETS4, SETS6, SetNames, TARGETS};
use crate::desired::{REVISION, REVISION_KEY, TableFamily, TableId};
use crate::error::Error;
use crate::pod::{AttachMode, FirewallPod, Guard, HostPort, Protocol};

/// One part of a key or of a map's value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Field<'a> {
    Link(&'a IfName),
    Mac(Mac),
    Ip(IpAddr),
    Protocol(Protocol),
    Port(u16),
    /// A number in the host's byte order.
    Mark(u32),
    /// The first bytes of an address, as bits of a packet. nft writes them as a number.
    Bits {
        address: [u8; 16],
        length: usize,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum Data<'a> {
    None,
    Value(Vec<Field<'a>>),
}

/// What it means when an element is already there with other data.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Role<'a> {
    /// It has no data.
    Member,
    /// The table's structure is of another version.
    Revision,
    /// Another pod has the port.
    HostPort(&'a HostPort),
}

#[derive(Debug, Clone)]
pub(crate) struct Element<'a> {
    pub(crate) table: TableId<'a>,
    pub(crate) set: Cow<'a, str>,
    pub(crate) key: Vec<Field<'a>>,
    pub(crate) data: Data<'a>,
    pub(crate) role: Role<'a>,
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

    fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Link(name) => {
                let start = out.len();
                out.extend_from_slice(name.as_str().as_bytes());
                out.resize(start + libc::IFNAMSIZ, 0);
            }
            Self::Mac(mac) => out.extend_from_slice(&mac.octets()),
            Self::Ip(IpAddr::V4(ip)) => out.extend_from_slice(&ip.octets()),
            Self::Ip(IpAddr::V6(ip)) => out.extend_from_slice(&ip.octets()),
            Self::Protocol(protocol) => out.push(protocol.number()),
            Self::Port(port) => out.extend_from_slice(&port.to_be_bytes()),
            Self::Mark(mark) => out.extend_from_slice(&mark.to_ne_bytes()),
            Self::Bits { address, length } => out.extend(address.iter().take(length)),
        }
    }
}

/// The bytes of a key or value: every part of a concatenation begins at a 32-bit register of the kernel.
pub(crate) fn bytes(fields: &[Field<'_>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(40);
    for field in fields {
        field.write(&mut out);
        if fields.len() > 1 {
            out.resize(out.len().next_multiple_of(4), 0);
        }
    }
    out
}

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(name) => name.fmt(f),
            Self::Mac(mac) => mac.fmt(f),
            Self::Ip(ip) => ip.fmt(f),
            Self::Protocol(protocol) => protocol.fmt(f),
            Self::Port(port) => port.fmt(f),
            Self::Mark(mark) => write!(f, "{mark:#x}"),
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
    /// Of a set.
    pub(crate) fn member(table: TableId<'a>, set: impl Into<Cow<'a, str>>, key: Vec<Field<'a>>) -> Self {
        Self { table, set: set.into(), key, data: Data::None, role: Role::Member }
    }

    /// The bytes that a map has for it.
    pub(crate) fn value(&self) -> Option<Vec<u8>> {
        match &self.data {
            Data::None => None,
            Data::Value(fields) => Some(bytes(fields)),
        }
    }

    fn content(&self) -> String {
        match &self.data {
            Data::None => joined(&self.key),
            Data::Value(fields) => format!("{} : {}", joined(&self.key), joined(fields)),
        }
    }
}

/// The text that adds these elements, for the nft program. One line for each set: nft takes its time for every line.
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

/// The elements that say which version the pod's tables have; they stay when pods leave.
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

/// All that is this pod's own.
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
    // What lets packets in comes before what drops the others: a large repair takes several transactions.
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

/// Through which link the host may receive the pod's addresses. The guard of a routed pod knows its link.
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

/// What a guarded pod may send from.
fn own_addresses(pod: &FirewallPod<'_>) -> impl Iterator<Item = IpAddr> {
    let has_v6 = pod.addresses.iter().any(IpAddr::is_ipv6);
    let link_local = has_v6.then(|| IpAddr::V6(link_local(pod.mac)));
    pod.addresses.iter().copied().chain(link_local)
}

/// The address the kernel gives a link by itself (RFC 4291, appendix A).
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

/// The one address of the host that a port is published on, or none for all of them.
fn host_address(port: &HostPort) -> Result<Option<IpAddr>, Error> {
    let Some(ip) = port.host_ip else { return Ok(None) };
    let refuse = |reason| Error::HostAddress { host_ip: ip, port: port.host_port, reason };
    if ip.is_ipv4() != port.pod.is_ipv4() {
        return Err(refuse("the pod's address is of the other family; use a hostIP of the same family"));
    }
    if ip == IpAddr::V6(Ipv6Addr::LOCALHOST) {
        return Err(refuse("linux cannot forward from ::1; use 127.0.0.1 or an address of a link"));
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
    fn a_bridged_pod_is_guarded_at_its_port_and_its_hostports_are_masqueraded_for_neighbours() {
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
    fn e18_a_hostport_has_the_family_of_its_pod_and_is_not_on_the_v6_loopback() {
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
    fn the_parts_of_a_concatenation_are_padded_and_single_keys_are_not() {
        let link = IfName::try_from("eth0").unwrap();
        let mac = Field::Mac("02:00:00:00:00:07".parse().unwrap());
        assert_eq!(bytes(&[mac]).len(), 6);
        assert_eq!(bytes(&[Field::Link(&link), mac])[16..], [2, 0, 0, 0, 0, 7, 0, 0]);
        assert_eq!(bytes(&[Field::Protocol(Protocol::Udp), Field::Port(53)]), [17, 0, 0, 0, 0, 53, 0, 0]);
    }
}
