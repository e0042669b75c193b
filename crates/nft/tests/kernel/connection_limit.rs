//! The limit of connections per pod.

use nft::{AttachMode, ConnectionLimit, Firewall, ManagedChange, Protocol, RulesetChange, RulesetMonitor};
use types::{IfName, NetworkName};

use crate::common::{Sample, all_elements, nft};
use crate::lab::{At, Lab};

const V4: &str = "0.0.0.0:0";
const V6: &str = "[::]:0";
const BOTH: [AttachMode; 2] = [AttachMode::Bridge, AttachMode::Routed];

fn limit(lab: &Lab, per_pod: Option<u32>) -> Option<String> {
    let (network, bridge) = (NetworkName::try_from("blue").unwrap(), IfName::try_from("br0").unwrap());
    let limit = ConnectionLimit { network: &network, bridge: &bridge, per_pod };
    lab.inside(At::Host, || Firewall::open().unwrap().limit_connections(&limit).unwrap())
}

/// How many of twenty new connections from `source` reach a server on the host. The server stops at a datagram from `other`,
/// which is sent last.
fn arrived(lab: &Lab, (from, source): (At, &str), target: &str, other: At) -> usize {
    let server = lab.serve(At::Host, Protocol::Udp, target);
    let senders: Vec<_> = (0..20).map(|_| lab.sender(from, source)).collect();
    // Each sends twice: a refused connection stays refused.
    for sender in senders.iter().chain(&senders) {
        sender.send("new", target);
    }
    let any = if target.starts_with('[') { V6 } else { V4 };
    lab.sender(other, any).send("end", target);
    let received = std::iter::repeat_with(|| server.receive()).take_while(|text| text != "end");
    received.count() / 2
}

/// The pod's link-local address, with the interface index as scope.
fn link_local(lab: &Lab, pod: At) -> String {
    let shown = lab.ip(pod, "-6 -o addr show dev eth0 scope link");
    let words: Vec<&str> = shown.split_whitespace().collect();
    let (number, address) = (words[0].trim_end_matches(':'), words[3].split('/').next().unwrap());
    format!("[{address}%{number}]:0")
}

#[test]
fn a10_connections_of_a_pod_above_the_limit_are_dropped() {
    for mode in BOTH {
        let lab = Lab::new(mode);
        [2, 3].iter().for_each(|n| lab.add_pod(&Sample::new(mode, *n)));
        let own = link_local(&lab, At::Pod(2));
        let mut port = 9;
        // All sources of a pod share one counter, whichever comes first.
        for first in 0..3 {
            let mut sources = [(own.as_str(), "[fd77::1]"), (V4, "10.77.0.1"), (V6, "[fd77::1]")];
            sources.rotate_left(first);
            for limited in [None, Some(5)] {
                limit(&lab, limited);
                for (position, (source, host)) in sources.iter().enumerate() {
                    port += 1;
                    let expected = match (limited, position) {
                        (None, _) => 20,
                        (Some(_), 0) => 5,
                        (Some(_), _) => 0,
                    };
                    let target = format!("{host}:{port}");
                    let count = arrived(&lab, (At::Pod(2), source), &target, At::Pod(3));
                    assert_eq!(count, expected, "{mode:?}: {source} to {target}, limited: {limited:?}");
                }
            }
        }
    }
}

#[test]
fn a10_connections_from_other_nodes_are_not_limited() {
    for mode in BOTH {
        let lab = Lab::new(mode);
        lab.add_pod(&Sample::new(mode, 3));
        limit(&lab, Some(5));
        // Pods of another node, over the underlay and through a tunnel.
        for (at, local, remote, n) in [(At::Host, 1, 2, 1), (At::Outside, 2, 1, 2)] {
            let ends = format!("local 192.0.2.{local} remote 192.0.2.{remote}");
            lab.ip(at, &format!("link add pwvx4 type vxlan id 7 {ends} dstport 4789"));
            lab.ip(at, &format!("addr add 198.51.100.{n}/24 dev pwvx4"));
            lab.ip(at, "link set pwvx4 up");
        }
        lab.ip(At::Outside, "addr add 10.77.9.9/32 dev lo");
        for (target, source) in
            [("192.0.2.1:9", V4), ("192.0.2.1:10", "10.77.9.9:0"), ("198.51.100.1:11", "10.77.9.9:0")]
        {
            let count = arrived(&lab, (At::Outside, source), target, At::Pod(3));
            assert_eq!(count, 20, "{mode:?}: {source} to {target}");
        }
    }
}

#[test]
fn a10_a_connection_limit_is_applied_changed_and_removed() {
    let lab = Lab::new(AttachMode::Routed);
    lab.add_pod(&Sample::new(AttachMode::Routed, 2));
    let tables = || lab.inside(At::Host, || nft("list tables"));
    assert_eq!(limit(&lab, None), None);
    assert!(limit(&lab, Some(5)).is_some() && tables().contains("podwire-limit-blue"));
    lab.sender(At::Pod(2), "10.77.0.2:0").send("counted", "10.77.0.1:9");
    assert_eq!(limit(&lab, Some(5)), None);
    let counted = lab.inside(At::Host, all_elements);
    assert!(counted.contains("inet links"), "counters stay: {counted}");
    assert!(limit(&lab, Some(6)).is_some());
    lab.inside(At::Host, || nft("flush ruleset"));
    assert!(limit(&lab, Some(6)).is_some());
    let removed =
        lab.inside(At::Host, || Firewall::open().unwrap().delete_network_tables(&|name| name == "red"));
    assert_eq!(removed.unwrap(), [""; 0]);
    assert!(limit(&lab, None).is_some());
    assert_eq!(tables(), "");
    limit(&lab, Some(7));
    let removed =
        lab.inside(At::Host, || Firewall::open().unwrap().delete_network_tables(&|name| name == "blue"));
    assert_eq!(removed.unwrap().len(), 1);
    assert_eq!(tables(), "");
}

/// The kernel stores the limit in the counter of each pod.
#[test]
fn a10_a_changed_limit_applies_to_pods_with_connections() {
    for mode in BOTH {
        let lab = Lab::new(mode);
        [2, 3].iter().for_each(|n| lab.add_pod(&Sample::new(mode, *n)));
        for (port, limit_per_pod) in [(9, 5), (10, 8), (11, 3)] {
            assert!(limit(&lab, Some(limit_per_pod)).is_some());
            let count = arrived(&lab, (At::Pod(2), V4), &format!("10.77.0.1:{port}"), At::Pod(3));
            assert_eq!(u32::try_from(count).unwrap(), limit_per_pod, "{mode:?}");
        }
    }
}

#[test]
fn a10_drift_of_the_connection_limit_is_repaired() {
    let lab = Lab::new(AttachMode::Routed);
    lab.add_pod(&Sample::new(AttachMode::Routed, 2));
    limit(&lab, Some(5));
    let table = || lab.inside(At::Host, || nft("-s list table inet podwire-limit-blue"));
    let before = table();
    for act in [
        "flush table inet podwire-limit-blue",
        "delete table inet podwire-limit-blue",
        "insert rule inet podwire-limit-blue connections accept",
        "replace rule inet podwire-limit-blue connections handle HANDLE accept",
        "delete rule inet podwire-limit-blue connections handle HANDLE",
        "add chain inet podwire-limit-blue connections { policy drop ; }",
        "add table inet podwire-limit-blue { flags dormant ; }",
        "flush map inet podwire-limit-blue revision",
    ] {
        lab.inside(At::Host, || {
            let listed = nft("-a list table inet podwire-limit-blue");
            let last = listed.lines().rfind(|line| line.contains("@links")).unwrap();
            let handle = last.rsplit(' ').next().unwrap();
            let mut monitor = RulesetMonitor::open().unwrap();
            nft(&act.replace("HANDLE", handle));
            if !act.starts_with("flush map") {
                let expected =
                    RulesetChange { managed: ManagedChange::Structure, ..RulesetChange::default() };
                assert_eq!(monitor.read().unwrap(), expected, "{act}");
            }
        });
        assert!(limit(&lab, Some(5)).is_some(), "{act}");
        assert_eq!(table(), before, "{act}");
        assert_eq!(limit(&lab, Some(5)), None, "{act}");
    }
    lab.inside(At::Host, || nft("flush table inet podwire-limit-blue"));
    lab.inside(At::Host, || nft("delete chain inet podwire-limit-blue connections"));
    let removed =
        lab.inside(At::Host, || Firewall::open().unwrap().delete_network_tables(&|name| name == "blue"));
    assert_eq!(removed.unwrap().len(), 1, "also a table without chains");
}
