use netlink::NetNs;
use types::Severity;

use super::*;

const SUBNETS: &str = "10.83.0.0/16,fd00:88::/64";

fn subnets(text: &str) -> Vec<IpNet> {
    text.split(',').map(|net| net.parse().unwrap()).collect()
}

/// The findings for network `podwire` on `podwire0` in a new namespace after these commands.
fn findings_after(commands: &str) -> (Vec<Finding>, Option<Vec<IpNet>>) {
    let in_a_namespace = || {
        sh(&format!(
            "ip link set lo up; ip link add podwire0 type bridge; ip link set podwire0 up; {commands}"
        ));
        let subnets = subnets(SUBNETS);
        let observed = ObservedNetworks::of(&mut RtSocket::open().unwrap(), &subnets).unwrap();
        let (name, bridge) = ("podwire".try_into().unwrap(), "podwire0".try_into().unwrap());
        let network = NetworkExtent { name: &name, bridge: &bridge, subnets: &subnets };
        (findings(&network, &observed), alternative(&network, &observed))
    };
    NetNs::create().unwrap().run(in_a_namespace).unwrap()
}

fn sh(commands: &str) {
    let script = format!("set -e; {commands}");
    assert!(std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success(), "{script}");
}

const OTHER: &str = "ip link add other type bridge; ip link set other up;";

#[test]
fn b10_managed_routes_and_routes_to_larger_networks_are_no_overlap() {
    for commands in [
        "",
        "ip address add 192.168.7.1/24 dev other; ip route add default via 192.168.7.2",
        "ip route add 10.0.0.0/8 dev other; ip route add fd00::/8 dev other; ip route add 10.84.0.0/16 dev other",
        "ip address add 10.1.2.3/8 dev podwire0; ip address add fd00::9/16 dev podwire0 nodad",
        // Objects of the network itself.
        "ip address add 10.83.0.1/16 dev podwire0; ip address add fd00:88::1/64 dev podwire0 nodad",
        "ip route add 10.83.0.7/32 dev other proto 112; ip route add 10.83.9.0/24 dev other proto 113",
        "ip link set other alias 'podwire:podwire/c1/eth0 10.83.0.7/32 fd00:88::7/128'",
        "ip link set other alias 'podwire tunnel podwire'; ip address add 10.83.3.0/32 dev other",
        // Other routing tables do not matter.
        "ip route add 10.83.4.0/24 dev other table 77",
    ] {
        let (findings, alternative) = findings_after(&format!("{OTHER} {commands}"));
        assert_eq!(findings, [], "{commands}");
        assert_eq!(alternative, Some(subnets(SUBNETS)), "{commands}");
    }
}

#[test]
fn b10_addresses_and_routes_in_the_subnet_are_overlaps() {
    for (commands, message) in [
        ("ip address add 10.83.5.1/24 dev other", "10.83.5.1/24"),
        ("ip address add 10.83.0.1/16 dev other", "10.83.0.1/16"),
        ("ip address add 10.83.7.7/32 dev other", "10.83.7.7/32"),
        ("ip address add fd00:88::5/128 dev other nodad", "fd00:88::5/128"),
        // The node is connected to a larger subnet, as to podman's network around a block.
        ("ip address add 10.1.2.3/8 dev other", "10.0.0.0/8"),
        ("ip address add fd00::9/16 dev other nodad", "fd00::/16"),
        ("ip route add 10.83.0.0/16 dev other", "10.83.0.0/16"),
        ("ip route add 10.83.200.0/24 dev other", "10.83.200.0/24"),
        ("ip route add fd00:88::100/120 dev other", "fd00:88::100/120"),
    ] {
        let (findings, alternative) = findings_after(&format!("{OTHER} {commands}"));
        assert_eq!(findings.len(), 1, "{commands}: {findings:?}");
        // The node may be reached through the other program's address or route, so no command removes it.
        let finding = &findings[0];
        assert_eq!(finding.fix, None, "{commands}");
        assert!(alternative.is_some_and(|nets| nets != subnets(SUBNETS)), "{commands}");
        assert_eq!((finding.code, finding.severity), (Code::SubnetOverlap, Severity::NotReady), "{commands}");
        assert_eq!(finding.object, "link other", "{commands}");
        assert!(
            finding.message.contains(message) && finding.message.contains("network podwire"),
            "{finding:?}"
        );
    }
    let several = "ip link add br9 type bridge; ip link set br9 up; ip route add 10.83.1.0/24 nexthop dev other nexthop dev br9";
    assert_eq!(findings_after(&format!("{OTHER} {several}")).0[0].object, "route 10.83.1.0/24");
}

/// A node may have the complete routing table of the Internet.
#[test]
fn b10_only_relevant_routes_are_kept() {
    let in_a_namespace = || {
        sh(&format!("ip link set lo up; {OTHER} ip address add 10.1.2.3/8 dev other"));
        sh(
            "ip route add default dev other; ip -6 route add default dev other; ip route add 10.83.5.0/24 dev other",
        );
        sh(
            "ip route add 10.84.7.0/24 dev other; ip route add fd00:88::/80 dev other; ip route add fd00:8f::/64 dev other",
        );
        sh("ip route add 10.83.0.7/32 dev other proto 112; ip route add 10.83.9.0/24 dev other proto 113");
        sh("for i in $(seq 0 999); do echo route add 172.16.$((i / 4)).$((i % 4 * 64))/26 dev other; \
            echo route add 2001:db8:$i::/48 dev other; done | ip -batch -");
        let observed = ObservedNetworks::of(&mut RtSocket::open().unwrap(), &subnets(SUBNETS)).unwrap();
        let mut destinations: Vec<String> =
            observed.routes.iter().map(|route| route.dst.to_string()).collect();
        destinations.sort();
        destinations
    };
    let destinations = NetNs::create().unwrap().run(in_a_namespace).unwrap();
    assert_eq!(destinations, ["10.0.0.0/8", "10.83.5.0/24", "10.84.7.0/24", "fd00:88::/80", "fd00:8f::/64"]);
}

#[test]
fn b10_an_overlap_while_pods_run_is_degraded() {
    let pod = "ip link add pw1 type bridge; ip link set pw1 alias 'podwire:podwire/c1/eth0 10.83.0.7/32'";
    let (findings, _) = findings_after(&format!("{OTHER} {pod}; ip address add 10.83.5.1/24 dev other"));
    assert_eq!(findings.iter().map(|finding| finding.severity).collect::<Vec<_>>(), [Severity::Degraded]);
}

#[test]
fn b16_another_network_of_podwire_in_the_subnet_is_degraded() {
    let bridge = format!(
        "ip link set other alias '{}'; ip address add 10.83.0.1/16 dev other",
        crate::alias::BRIDGE_ALIAS
    );
    let (findings, _) = findings_after(&format!("{OTHER} {bridge}"));
    assert_eq!(
        (findings[0].object.as_str(), findings[0].severity),
        ("link other", Severity::Degraded),
        "{findings:?}"
    );
    let larger = bridge.replace("10.83.0.1/16", "10.9.0.1/8");
    let (findings, _) = findings_after(&format!("{OTHER} {larger}"));
    assert_eq!(
        findings.iter().map(|finding| finding.severity).collect::<Vec<_>>(),
        [Severity::Degraded],
        "{findings:?}"
    );
    let pod = "ip link set other alias 'podwire:blue/c1/eth0 10.9.0.1/24 fd00:88::7/64'";
    let (findings, _) = findings_after(&format!("{OTHER} {pod}"));
    assert_eq!(
        (findings[0].object.as_str(), findings[0].severity),
        ("network blue", Severity::Degraded),
        "{findings:?}"
    );
    assert!(
        findings[0].message.contains("fd00:88::7") && findings[0].message.contains("another subnet"),
        "{findings:?}"
    );
}

#[test]
fn b10_the_alternative_is_free_of_overlaps() {
    let taken = "ip address add 10.83.0.1/16 dev other; ip route add 10.84.3.0/24 dev other";
    let (_, alternative) = findings_after(&format!("{OTHER} {taken}"));
    assert_eq!(alternative, Some(subnets("10.86.0.0/16,fd00:88::/64")));
    let (_, alternative) = findings_after(&format!("{OTHER} ip address add 10.1.2.3/8 dev other"));
    assert_eq!(alternative, Some(subnets("100.83.0.0/16,fd00:88::/64")));
    let (_, alternative) = findings_after(&format!("{OTHER} ip route add fd00:88::/64 dev other"));
    assert_eq!(alternative, Some(subnets("10.83.0.0/16,fd00:89::/64")));
}
