//! Chains of networks without pods are removed. Chains with pods stay, also if a pod is added at the same time.

use std::sync::atomic::{AtomicBool, Ordering};

use netlink::NetNs;
use nft::{AttachMode, Firewall, IdleChains};

use crate::common::{Sample, chain, in_netns, nft, run};

fn prune(idle: IdleChains<'_>) -> usize {
    prune_except(idle, None)
}

/// Prunes all networks of these tests, except the chain `kept`.
fn prune_except(idle: IdleChains<'_>, kept: Option<&str>) -> usize {
    let numbered = (0..50).map(|n| format!("net{n}"));
    let networks: Vec<String> = numbered.chain(["blue".to_owned()]).collect();
    Firewall::open().unwrap().prune(idle, &networks, kept).unwrap()
}

fn remove_pod(sample: &Sample) {
    Firewall::open().unwrap().remove_pod(&sample.pod()).unwrap();
}

/// Pod `n`, the only one of its network.
fn only_pod(n: u16) -> Sample {
    Sample { chain: Some(chain(&format!("net{n}"), &["10.77.0.0/16"])), ..Sample::new(AttachMode::Routed, n) }
}

/// The number of chains and sets of networks. Each network has one chain and two sets.
fn network_objects() -> usize {
    let is_head = |line: &&str| line.starts_with("\tchain net-") || line.starts_with("\tset net-");
    run("nft", &["list", "ruleset"]).lines().filter(is_head).count()
}

#[test]
fn f5_chains_of_networks_without_pods_are_removed() {
    in_netns(|| {
        assert_eq!(prune(IdleChains::RemoveAll), 0, "no table at all");
        let (first, second, other) =
            (Sample::new(AttachMode::Bridge, 2), Sample::new(AttachMode::Bridge, 3), only_pod(4));
        let v6_only = Sample { addresses: vec!["fd77::5".parse().unwrap()], ..only_pod(5) };
        for pod in [&first, &second, &other, &v6_only] {
            pod.add_pod();
        }
        remove_pod(&first);
        remove_pod(&other);
        assert_eq!(network_objects(), 3 * 3);
        assert_eq!(prune(IdleChains::RemoveAll), 1);
        assert_eq!(network_objects(), 2 * 3);
        for pod in [&second, &v6_only] {
            assert_eq!(Firewall::open().unwrap().missing(&pod.pod()).unwrap(), [""; 0]);
        }
        // Objects that do not exist do not prevent the removal of others.
        remove_pod(&second);
        remove_pod(&v6_only);
        nft(&format!("delete chain inet podwire {}", second.chain.as_ref().unwrap().id()));
        assert_eq!(prune(IdleChains::RemoveAll), 2);
        assert_eq!(network_objects(), 0);
        second.add_pod();
        assert_eq!(Firewall::open().unwrap().missing(&second.pod()).unwrap(), [""; 0]);
    });
}

#[test]
fn b15_remove_prunes_only_the_named_network_and_never_the_kept_chain() {
    in_netns(|| {
        for n in 1..=5 {
            only_pod(n).add_pod();
            remove_pod(&only_pod(n));
        }
        let kept = only_pod(1).chain.unwrap();
        assert_eq!(prune_except(IdleChains::KeepFew, Some(kept.id())), 0, "the kept chain does not count");
        assert_eq!(prune_except(IdleChains::Remove("net1"), Some(kept.id())), 0);
        assert_eq!(prune_except(IdleChains::Remove("net2"), Some(kept.id())), 1);
        assert_eq!(network_objects(), 4 * 3);
        // Networks of another run directory.
        let others = ["net7".to_owned()];
        assert_eq!(Firewall::open().unwrap().prune(IdleChains::RemoveAll, &others, None).unwrap(), 0);
        assert_eq!(prune_except(IdleChains::RemoveAll, Some(kept.id())), 3);
        // The subnets of the agent's network changed. The chain of the earlier subnets is found by the name of the network.
        let changed = Sample { chain: Some(chain("net1", &["10.99.0.0/16"])), ..only_pod(6) };
        changed.add_pod();
        remove_pod(&changed);
        let kept = changed.chain.as_ref().unwrap();
        assert_eq!(prune_except(IdleChains::Remove("net1"), Some(kept.id())), 1);
        assert_eq!(network_objects(), 3);
        assert_eq!(prune(IdleChains::Remove("net1")), 1);
        assert_eq!(network_objects(), 0);
        // The digests of 11 chains and 19 sets that do not belong to a network.
        let applied = run("nft", &["list", "map", "inet", "podwire", "applied"]);
        assert_eq!(
            applied.matches(" : ").count() - 1,
            11 + 19,
            "the digests of removed chains are removed: {applied}"
        );
    });
}

#[test]
fn f5_keep_few_removes_idle_chains_only_above_the_limit() {
    in_netns(|| {
        for n in 1..=4 {
            only_pod(n).add_pod();
            remove_pod(&only_pod(n));
            assert_eq!(prune(IdleChains::KeepFew), 0);
        }
        only_pod(9).add_pod();
        assert_eq!(prune(IdleChains::KeepFew), 0, "a chain with a pod does not count");
        only_pod(5).add_pod();
        remove_pod(&only_pod(5));
        assert_eq!(prune(IdleChains::KeepFew), 5);
        assert_eq!(network_objects(), 3);
    });
}

#[test]
fn f5_a_pod_added_during_pruning_keeps_all_elements() {
    let netns = NetNs::create().unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            netns.run(|| {
                while !is_done.load(Ordering::Relaxed) {
                    prune(IdleChains::RemoveAll);
                }
            })
        });
        let pods = scope.spawn(|| {
            netns.run(|| {
                for n in 1..40 {
                    let pod = only_pod(n);
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
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(lost.unwrap().unwrap(), None);
    });
}
