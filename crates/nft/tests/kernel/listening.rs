//! What the monitor says of changes by hand, by others, and of our own.

use std::os::fd::AsFd as _;

use nft::{AttachMode, Firewall, Idle, Ours, Protocol, RulesetChange, RulesetMonitor};
use rustix::net::sockopt::set_socket_recv_buffer_size;

use crate::common::{Sample, all_elements, in_netns, nft, run};

const NOTHING: RulesetChange = RulesetChange { ours: Ours::Nothing, unmanaged: false, peers: false };

fn ours(ours: Ours) -> RulesetChange {
    RulesetChange { ours, ..NOTHING }
}

/// The kernel tells before the one who changed something gets its answer: nothing to wait for.
fn heard_of(monitor: &mut RulesetMonitor, act: impl FnOnce()) -> RulesetChange {
    act();
    let change = monitor.read().unwrap();
    assert_eq!(monitor.read().unwrap(), NOTHING, "it was read to the end");
    change
}

fn handle_of_first_rule(chain: &str) -> String {
    let listed = nft(&format!("-a list chain inet podwire {chain}"));
    let line = listed.lines().find(|line| line.contains("goto") && line.contains("# handle")).unwrap();
    line.rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn what_is_taken_away_by_hand_is_heard() {
    for mode in [AttachMode::Bridge, AttachMode::Routed] {
        in_netns(|| {
            let pod = Sample::new(mode, 2);
            pod.add_pod();
            let mut monitor = RulesetMonitor::open().unwrap();
            let mut heard = |act: &str| heard_of(&mut monitor, || drop(nft(act)));
            assert_eq!(heard("delete element inet podwire pods4 { 10.77.0.2 }"), ours(Ours::Elements));
            assert_eq!(heard("flush set inet podwire pods6"), ours(Ours::Elements));
            let rule = handle_of_first_rule("guard");
            assert_eq!(
                heard(&format!("delete rule inet podwire guard handle {rule}")),
                ours(Ours::Structure)
            );
            assert_eq!(heard("insert rule inet podwire guard accept"), ours(Ours::Structure));
            assert_eq!(
                heard("add chain inet podwire guard { policy drop ; }"),
                ours(Ours::Structure),
                "policy"
            );
            assert_eq!(heard("delete table inet podwire"), ours(Ours::Structure));
            pod.add_pod();
            assert_eq!(heard("flush ruleset"), ours(Ours::Structure));
        });
    }
}

#[test]
fn our_own_pods_are_not_heard() {
    for mode in [AttachMode::Bridge, AttachMode::Routed] {
        in_netns(|| {
            Sample::new(mode, 2).add_pod();
            let mut monitor = RulesetMonitor::open().unwrap();
            let pod = Sample::new(mode, 3).publish(Protocol::Tcp, 8080, 80);
            let mut firewall = Firewall::open().unwrap();
            assert_eq!(heard_of(&mut monitor, || firewall.add_pod(&pod.pod()).unwrap()), NOTHING);
            assert_eq!(heard_of(&mut monitor, || firewall.remove_pod(&pod.pod()).unwrap()), NOTHING);
            assert_eq!(heard_of(&mut monitor, || drop(all_elements())), NOTHING, "when they expire");
            // A prune is a removal, and its caller knows.
            firewall.remove_pod(&Sample::new(mode, 2).pod()).unwrap();
            let pruned = heard_of(&mut monitor, || {
                assert_eq!(firewall.prune(Idle::RemoveAll, &["blue".to_owned()], None).unwrap(), 1);
            });
            assert_eq!(pruned, ours(Ours::Structure));
        });
    }
}

#[test]
fn tables_of_others_are_heard_where_they_can_drop_what_is_forwarded() {
    in_netns(|| {
        Sample::new(AttachMode::Bridge, 2).add_pod();
        let mut monitor = RulesetMonitor::open().unwrap();
        let unmanaged = RulesetChange { unmanaged: true, ..NOTHING };
        let mut heard = |act: &str| heard_of(&mut monitor, || drop(run("nft", &[act])));
        assert_eq!(heard("add table ip filter"), unmanaged);
        assert_eq!(heard("add chain ip filter FORWARD { type filter hook forward priority 0; }"), unmanaged);
        assert_eq!(heard("add rule ip filter FORWARD drop"), unmanaged);
        assert_eq!(heard("add set ip filter some { type ipv4_addr; }"), NOTHING);
        assert_eq!(heard("add element ip filter some { 10.0.0.1 }"), NOTHING);
        assert_eq!(heard("delete table ip filter"), unmanaged);
        assert_eq!(heard("add table bridge other"), NOTHING);
        assert_eq!(heard("add table ip podwire"), unmanaged, "not ours: we have inet and bridge");
        assert_eq!(
            heard("flush ruleset"),
            RulesetChange { ours: Ours::Structure, unmanaged: true, peers: false }
        );
    });
}

#[test]
fn more_than_could_be_heard_counts_as_everything() {
    in_netns(|| {
        Sample::new(AttachMode::Routed, 2).add_pod();
        let mut monitor = RulesetMonitor::open().unwrap();
        set_socket_recv_buffer_size(monitor.as_fd(), 1).unwrap();
        for n in 3..20 {
            Sample::new(AttachMode::Routed, n).add_pod();
        }
        assert_eq!(
            monitor.read().unwrap(),
            RulesetChange { ours: Ours::Structure, unmanaged: true, peers: true }
        );
        assert_eq!(monitor.read().unwrap(), NOTHING);
    });
}
