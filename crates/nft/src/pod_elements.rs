//! The elements of one pod. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use types::Mac;

use crate::desired::pods::{self, DHCP_PORTS, MAC_PORTS, MACS, PORTS, SETS4, SETS6, SetNames, TARGETS};
use crate::desired::{REVISION, REVISION_KEY, TableFamily, TableId};
use crate::element::{Data, Element, Field, Role};
use crate::error::Error;
use crate::pod::{AttachMode, FirewallPod, Guard, HostPort};

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
    use types::IfName;

    use super::*;
    use crate::pod::{NetworkChain, Protocol};

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
}
