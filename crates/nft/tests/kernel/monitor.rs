//! The ruleset monitor reports changes by the operator and other programs, and ignores those by Podwire.

use std::os::fd::AsFd as _;

use nft::{AttachMode, Firewall, IdleChains, ManagedChange, Protocol, RulesetChange, RulesetMonitor};
use rustix::net::sockopt::set_socket_recv_buffer_size;

use crate::common::{Sample, all_elements, in_netns, nft, run};

const NOTHING: RulesetChange =
    RulesetChange { managed: ManagedChange::None, unmanaged: false, peers: false, policies: false };

fn managed(managed: ManagedChange) -> RulesetChange {
    RulesetChange { managed, ..NOTHING }
}

/// The kernel sends the notification before it acknowledges the change, so it can be read without waiting.
fn change_by(monitor: &mut RulesetMonitor, act: impl FnOnce()) -> RulesetChange {
    act();
    let change = monitor.read().unwrap();
    assert_eq!(monitor.read().unwrap(), NOTHING, "all notifications were read");
    change
}

fn handle_of_first_rule(chain: &str) -> String {
    let listed = nft(&format!("-a list chain inet podwire {chain}"));
    let line = listed.lines().find(|line| line.contains("goto") && line.contains("# handle")).unwrap();
    line.rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn removals_by_the_operator_are_reported() {
    for mode in [AttachMode::Bridge, AttachMode::Routed] {
        in_netns(|| {
            let pod = Sample::new(mode, 2);
            pod.add_pod();
            let mut monitor = RulesetMonitor::open().unwrap();
            let mut change = |act: &str| change_by(&mut monitor, || drop(nft(act)));
            assert_eq!(
                change("delete element inet podwire pods4 { 10.77.0.2 }"),
                managed(ManagedChange::Elements)
            );
            assert_eq!(change("flush set inet podwire pods6"), managed(ManagedChange::Elements));
            let rule = handle_of_first_rule("guard");
            assert_eq!(
                change(&format!("delete rule inet podwire guard handle {rule}")),
                managed(ManagedChange::Structure)
            );
            assert_eq!(change("insert rule inet podwire guard accept"), managed(ManagedChange::Structure));
            assert_eq!(
                change("add chain inet podwire guard { policy drop ; }"),
                managed(ManagedChange::Structure),
                "policy"
            );
            assert_eq!(change("delete table inet podwire"), managed(ManagedChange::Structure));
            pod.add_pod();
            assert_eq!(change("flush ruleset"), managed(ManagedChange::Structure));
        });
    }
}

#[test]
fn adding_and_removing_pods_is_not_reported() {
    for mode in [AttachMode::Bridge, AttachMode::Routed] {
        in_netns(|| {
            Sample::new(mode, 2).add_pod();
            let mut monitor = RulesetMonitor::open().unwrap();
            let pod = Sample::new(mode, 3).publish(Protocol::Tcp, 8080, 80);
            let mut firewall = Firewall::open().unwrap();
            assert_eq!(change_by(&mut monitor, || firewall.add_pod(&pod.pod()).unwrap()), NOTHING);
            assert_eq!(change_by(&mut monitor, || firewall.remove_pod(&pod.pod()).unwrap()), NOTHING);
            assert_eq!(change_by(&mut monitor, || drop(all_elements())), NOTHING, "when they expire");
            firewall.remove_pod(&Sample::new(mode, 2).pod()).unwrap();
            let pruned = change_by(&mut monitor, || {
                assert_eq!(firewall.prune(IdleChains::RemoveAll, &["blue".to_owned()], None).unwrap(), 1);
            });
            assert_eq!(pruned, managed(ManagedChange::Structure));
        });
    }
}

#[test]
fn unmanaged_tables_that_can_drop_forwarded_packets_are_reported() {
    in_netns(|| {
        Sample::new(AttachMode::Bridge, 2).add_pod();
        let mut monitor = RulesetMonitor::open().unwrap();
        let unmanaged = RulesetChange { unmanaged: true, ..NOTHING };
        let mut change = |act: &str| change_by(&mut monitor, || drop(run("nft", &[act])));
        assert_eq!(change("add table ip filter"), unmanaged);
        assert_eq!(change("add chain ip filter FORWARD { type filter hook forward priority 0; }"), unmanaged);
        assert_eq!(change("add rule ip filter FORWARD drop"), unmanaged);
        assert_eq!(change("add set ip filter some { type ipv4_addr; }"), NOTHING);
        assert_eq!(change("add element ip filter some { 10.0.0.1 }"), NOTHING);
        assert_eq!(change("delete table ip filter"), unmanaged);
        assert_eq!(change("add table bridge other"), NOTHING);
        assert_eq!(change("add table inet podwire-other"), managed(ManagedChange::Structure));
        assert_eq!(change("add table inet podwire-policy"), RulesetChange { policies: true, ..NOTHING });
        assert_eq!(change("add table ip podwire"), unmanaged, "managed tables are inet and bridge");
        assert_eq!(
            change("flush ruleset"),
            RulesetChange {
                managed: ManagedChange::Structure,
                unmanaged: true,
                peers: false,
                policies: true
            }
        );
    });
}

#[test]
fn lost_notifications_count_as_a_change_of_everything() {
    in_netns(|| {
        Sample::new(AttachMode::Routed, 2).add_pod();
        let mut monitor = RulesetMonitor::open().unwrap();
        set_socket_recv_buffer_size(monitor.as_fd(), 1).unwrap();
        for n in 3..20 {
            Sample::new(AttachMode::Routed, n).add_pod();
        }
        assert_eq!(
            monitor.read().unwrap(),
            RulesetChange { managed: ManagedChange::Structure, unmanaged: true, peers: true, policies: true }
        );
        assert_eq!(monitor.read().unwrap(), NOTHING);
    });
}
