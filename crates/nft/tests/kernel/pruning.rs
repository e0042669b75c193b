//! Chains of networks without pods go; those with pods stay, also if a pod comes at the same moment.

use std::sync::atomic::{AtomicBool, Ordering};

use netlink::NetNs;
use nft::{AttachMode, Firewall, Idle};

use crate::common::{Sample, chain, in_netns, nft, run};

fn prune(idle: Idle<'_>) -> usize {
    prune_but(idle, None)
}

/// Those of all networks of these tests, but for one chain.
fn prune_but(idle: Idle<'_>, kept: Option<&str>) -> usize {
    let numbered = (0..50).map(|n| format!("net{n}"));
    let networks: Vec<String> = numbered.chain(["blue".to_owned()]).collect();
    Firewall::open().unwrap().prune(idle, &networks, kept).unwrap()
}

fn remove_pod(sample: &Sample) {
    Firewall::open().unwrap().remove_pod(&sample.pod()).unwrap();
}

/// Pod `n` of a network of its own.
fn alone(n: u16) -> Sample {
    Sample { chain: Some(chain(&format!("net{n}"), &["10.77.0.0/16"])), ..Sample::new(AttachMode::Routed, n) }
}

/// The chains and sets of networks.
fn of_networks() -> usize {
    let is_head = |line: &&str| line.starts_with("\tchain net-") || line.starts_with("\tset net-");
    run("nft", &["list", "ruleset"]).lines().filter(is_head).count()
}

#[test]
fn f5_the_chain_of_a_network_goes_when_no_pod_is_in_it() {
    in_netns(|| {
        assert_eq!(prune(Idle::RemoveAll), 0, "no table at all");
        let (first, second, other) =
            (Sample::new(AttachMode::Bridge, 2), Sample::new(AttachMode::Bridge, 3), alone(4));
        let v6_only = Sample { addresses: vec!["fd77::5".parse().unwrap()], ..alone(5) };
        for pod in [&first, &second, &other, &v6_only] {
            pod.add_pod();
        }
        remove_pod(&first);
        remove_pod(&other);
        assert_eq!(of_networks(), 3 * 3);
        assert_eq!(prune(Idle::RemoveAll), 1);
        assert_eq!(of_networks(), 2 * 3);
        for pod in [&second, &v6_only] {
            assert_eq!(Firewall::open().unwrap().missing(&pod.pod()).unwrap(), [""; 0]);
        }
        // Objects that do not exist do not prevent the removal of others.
        remove_pod(&second);
        remove_pod(&v6_only);
        nft(&format!("delete chain inet podwire {}", second.chain.as_ref().unwrap().id()));
        assert_eq!(prune(Idle::RemoveAll), 2);
        assert_eq!(of_networks(), 0);
        second.add_pod();
        assert_eq!(Firewall::open().unwrap().missing(&second.pod()).unwrap(), [""; 0]);
    });
}

#[test]
fn b15_of_a_few_idle_chains_only_those_of_the_network_go_and_an_agents_never() {
    in_netns(|| {
        for n in 1..=5 {
            alone(n).add_pod();
            remove_pod(&alone(n));
        }
        let kept = alone(1).chain.unwrap();
        assert_eq!(prune_but(Idle::KeepFew, Some(kept.id())), 0, "the kept one does not count");
        assert_eq!(prune_but(Idle::Remove("net1"), Some(kept.id())), 0);
        assert_eq!(prune_but(Idle::Remove("net2"), Some(kept.id())), 1);
        assert_eq!(of_networks(), 4 * 3);
        // Networks of another run directory.
        let others = ["net7".to_owned()];
        assert_eq!(Firewall::open().unwrap().prune(Idle::RemoveAll, &others, None).unwrap(), 0);
        assert_eq!(prune_but(Idle::RemoveAll, Some(kept.id())), 3);
        // The agent's network has other subnets now: the chain of the earlier ones is removed by the network's name.
        let changed = Sample { chain: Some(chain("net1", &["10.99.0.0/16"])), ..alone(6) };
        changed.add_pod();
        remove_pod(&changed);
        let kept = changed.chain.as_ref().unwrap();
        assert_eq!(prune_but(Idle::Remove("net1"), Some(kept.id())), 1);
        assert_eq!(of_networks(), 3);
        assert_eq!(prune(Idle::Remove("net1")), 1);
        assert_eq!(of_networks(), 0);
        let applied = run("nft", &["list", "map", "inet", "podwire", "applied"]);
        assert_eq!(
            applied.matches(" : ").count() - 1,
            11 + 19,
            "the digests of removed chains are removed: {applied}"
        );
    });
}

#[test]
fn f5_a_few_idle_chains_may_stay_and_many_may_not() {
    in_netns(|| {
        for n in 1..=4 {
            alone(n).add_pod();
            remove_pod(&alone(n));
            assert_eq!(prune(Idle::KeepFew), 0);
        }
        alone(9).add_pod();
        assert_eq!(prune(Idle::KeepFew), 0, "one that has a pod does not count");
        alone(5).add_pod();
        remove_pod(&alone(5));
        assert_eq!(prune(Idle::KeepFew), 5);
        assert_eq!(of_networks(), 3);
    });
}

#[test]
fn f5_a_pod_that_comes_while_its_chain_is_removed_is_not_harmed() {
    let netns = NetNs::create().unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            netns.run(|| {
                while !over.load(Ordering::Relaxed) {
                    prune(Idle::RemoveAll);
                }
            })
        });
        let pods = scope.spawn(|| {
            netns.run(|| {
                for n in 1..40 {
                    let pod = alone(n);
                    let lost = Firewall::open()
                        .unwrap()
                        .add_pod(&pod.pod())
                        .map_err(|e| e.to_string())
                        .and_then(|()| {
                            let missing = Firewall::open().unwrap().missing(&pod.pod()).unwrap();
                            if missing.is_empty() { Ok(()) } else { Err(missing.join(", ")) }
                        })
                        .err();
                    if lost.is_some() {
                        return lost;
                    }
                    remove_pod(&pod);
                }
                None
            })
        });
        let lost = pods.join();
        over.store(true, Ordering::Relaxed);
        assert_eq!(lost.unwrap().unwrap(), None);
    });
}
