//! How many connections a pod may have.

use nft::{ConnectionLimit, Firewall, Mode, Protocol};
use types::NetworkName;

use crate::common::{Sample, all_elements, nft};
use crate::lab::{At, Lab};

const BOTH: [Mode; 2] = [Mode::Bridge, Mode::Routed];

fn limit(lab: &Lab, per_pod: Option<u32>) -> Option<String> {
    let network = NetworkName::try_from("blue").unwrap();
    let subnets = ["10.77.0.0/16".parse().unwrap(), "fd77::/64".parse().unwrap()];
    let limit = ConnectionLimit { network: &network, subnets: &subnets, per_pod };
    lab.inside(At::Host, || Firewall::open().unwrap().limit_connections(&limit).unwrap())
}

/// How many of twenty new connections from this namespace reach the server, which counts to the last one of `other`.
fn arrived(lab: &Lab, from: At, target: &str, other: At) -> usize {
    let server = lab.serve(At::Host, Protocol::Udp, target);
    let any = if target.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let senders: Vec<_> = (0..20).map(|_| lab.sender(from, any)).collect();
    // Twice: what is refused once is refused again.
    for sender in senders.iter().chain(&senders) {
        sender.send("new", target);
    }
    lab.sender(other, any).send("end", target);
    let received = std::iter::repeat_with(|| server.receive()).take_while(|word| word != "end");
    received.count() / 2
}

#[test]
fn a10_connections_above_the_limit_are_refused_per_pod() {
    for mode in BOTH {
        let lab = Lab::new(mode);
        [2, 3].iter().for_each(|n| lab.admit(&Sample::new(mode, *n)));
        for (limited, targets) in
            [(None, ["10.77.0.1:9", "[fd77::1]:9"]), (Some(5), ["10.77.0.1:10", "[fd77::1]:10"])]
        {
            limit(&lab, limited);
            for target in targets {
                let expected = if limited.is_some() { 5 } else { 20 };
                assert_eq!(arrived(&lab, At::Pod(2), target, At::Pod(3)), expected, "{target}");
            }
        }
        // What is not of a pod has no limit.
        assert_eq!(arrived(&lab, At::Outside, "192.0.2.1:11", At::Pod(3)), 20);
    }
}

#[test]
fn a10_a_connection_limit_is_kept_changed_and_removed() {
    let lab = Lab::new(Mode::Routed);
    lab.admit(&Sample::new(Mode::Routed, 2));
    let tables = || lab.inside(At::Host, || nft("list tables"));
    assert_eq!(limit(&lab, None), None);
    assert!(limit(&lab, Some(5)).is_some() && tables().contains("podwire-limit-blue"));
    lab.sender(At::Pod(2), "10.77.0.2:0").send("counted", "10.77.0.1:9");
    assert_eq!(limit(&lab, Some(5)), None);
    let counted = lab.inside(At::Host, all_elements);
    assert!(counted.contains("connections4"), "its counters stay: {counted}");
    assert!(limit(&lab, Some(6)).is_some());
    lab.inside(At::Host, || nft("flush ruleset"));
    assert!(limit(&lab, Some(6)).is_some());
    let removed = lab.inside(At::Host, || Firewall::open().unwrap().remove_limits(&|name| name == "red"));
    assert_eq!(removed.unwrap(), [""; 0]);
    assert!(limit(&lab, None).is_some());
    assert_eq!(tables(), "");
    limit(&lab, Some(7));
    let removed = lab.inside(At::Host, || Firewall::open().unwrap().remove_limits(&|name| name == "blue"));
    assert_eq!(removed.unwrap().len(), 1);
    assert_eq!(tables(), "");
}
