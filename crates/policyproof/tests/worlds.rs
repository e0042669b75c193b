//! The generator reaches what the proof needs.

use std::collections::{BTreeMap, BTreeSet};

use model::objects::{ClusterAction, NamespaceScope, NetworkPolicyPeer};
use policy::PolicyVerdict;
use policyproof::naive::{self, NaiveTier};
use policyproof::worlds::{BenchSize, bench_world, flows, random_change, random_world, smallest, some_flows};
use policyproof::{Dice, compare};

#[test]
fn d_the_same_seed_generates_the_same_world_and_changes() {
    for seed in 0..50 {
        let world = random_world(seed);
        assert_eq!(world, random_world(seed));
        let change = |seed| random_change(&mut Dice::new(seed), &world);
        assert_eq!(change(seed), change(seed));
    }
    assert_ne!(random_world(1), random_world(2));
}

#[test]
fn d_every_tier_decides_often_with_each_verdict_that_it_has() {
    let mut counts: BTreeMap<(NaiveTier, bool), usize> = BTreeMap::new();
    let mut total = 0;
    for seed in 0..200 {
        let world = random_world(seed);
        for flow in some_flows(&world, &mut Dice::new(seed), 5) {
            let Some(judgement) = compare::expected(&world, &flow) else { panic!("{flow:?} has no pod") };
            *counts.entry((judgement.tier, judgement.verdict == PolicyVerdict::Accept)).or_default() += 1;
            total += 1;
        }
    }
    println!("{total} flows: {counts:?}");
    let wanted = [
        (NaiveTier::Admin, true),
        (NaiveTier::Admin, false),
        (NaiveTier::Tenant, false),
        (NaiveTier::Group, false),
        (NaiveTier::NetworkPolicy, true),
        (NaiveTier::NetworkPolicy, false),
        (NaiveTier::Baseline, true),
        (NaiveTier::Baseline, false),
        (NaiveTier::Default, true),
    ];
    for key in wanted {
        let count = counts.get(&key).copied().unwrap_or_default();
        assert!(count * 250 > total, "{key:?} decided only {count} of {total} flows");
    }
}

#[test]
fn d_the_generator_reaches_rare_cases() {
    let mut found = BTreeSet::new();
    for seed in 0..300 {
        let world = random_world(seed);
        let running: BTreeSet<_> = world
            .pods
            .values()
            .filter(|pod| pod.phase == policy::PodPhase::Running)
            .filter_map(|pod| pod.addresses.clone())
            .collect();
        for pod in world.pods.values() {
            if pod.phase == policy::PodPhase::Completed
                && pod.addresses.as_ref().is_some_and(|list| running.contains(list))
            {
                found.insert("reused address");
            }
            if pod.addresses.is_none() {
                found.insert("host network");
            }
            if pod.identity.namespace.as_ref().is_some_and(|name| !world.namespaces.contains_key(name)) {
                found.insert("missing namespace");
            }
        }
        for rule in
            world.cluster_policies.values().flat_map(|policy| policy.ingress.iter().chain(&policy.egress))
        {
            if rule.peers.contains(&model::objects::ClusterPeer::Unknown) {
                found.insert(match rule.action {
                    ClusterAction::Accept => "unknown peer, accept",
                    ClusterAction::Deny => "unknown peer, deny",
                    ClusterAction::Pass => "unknown peer, pass",
                });
            }
        }
        let rules = world.network_policies.values().filter_map(|policy| policy.egress.as_ref()).flatten();
        for peer in rules.flat_map(|rule| &rule.peers) {
            match peer {
                NetworkPolicyPeer::Block { except, .. } if except.len() == 2 => {
                    found.insert("two exceptions")
                }
                NetworkPolicyPeer::Pods { namespaces: NamespaceScope::Matching(all), .. }
                    if all.requirements.is_empty() =>
                {
                    found.insert("all namespaces")
                }
                NetworkPolicyPeer::Block { .. } | NetworkPolicyPeer::Pods { .. } => false,
            };
        }
    }
    assert_eq!(found.len(), 8, "{found:?}");
}

#[test]
fn d_all_flows_of_a_world_contain_a_part_of_them() {
    let world = random_world(3);
    let all: BTreeSet<_> = flows(&world).into_iter().collect();
    let part = some_flows(&world, &mut Dice::new(1), 10);
    assert!(!part.is_empty() && part.len() * 4 < all.len());
    assert!(part.iter().all(|flow| all.contains(flow)));
}

#[test]
fn d_a_failing_world_becomes_small() {
    let has_unknown_peer = |world: &policy::World| {
        let rules = world.cluster_policies.values().flat_map(|policy| &policy.ingress);
        rules.flat_map(|rule| &rule.peers).any(|peer| *peer == model::objects::ClusterPeer::Unknown)
    };
    let Some(world) = (0..300).map(random_world).find(has_unknown_peer) else { panic!("no such world") };
    let small = smallest(world, has_unknown_peer);
    assert!(has_unknown_peer(&small));
    assert!(small.pods.is_empty() && small.network_policies.is_empty(), "{small:?}");
    assert_eq!(small.cluster_policies.values().map(|policy| policy.ingress.len()).sum::<usize>(), 1);
}

#[test]
fn d_the_world_of_the_bench_has_the_documented_size() {
    let size = BenchSize::default();
    let world = bench_world(size);
    let local: Vec<_> = world.pods.values().filter(|pod| pod.node == world.local_node).collect();
    assert!(world.pods.len() >= 10_000 && local.len() == 250);
    assert_eq!(world.network_policies.len(), 1_000);
    assert_eq!(world.cluster_policies.len(), 5);
    let addresses: BTreeSet<_> =
        world.pods.values().filter_map(|pod| pod.addresses.clone()).flatten().collect();
    assert_eq!(addresses.len(), 2 * world.pods.len(), "addresses are unique");
    let classes: BTreeSet<_> =
        world.pods.values().map(|pod| (&pod.identity.namespace, pod.identity.labels.get("app"))).collect();
    assert!(classes.len() >= 1_000, "{} classes", classes.len());
    let profiles: BTreeSet<Vec<_>> = local
        .iter()
        .map(|pod| {
            let policies = world.network_policies.values().filter(|policy| {
                pod.identity.namespace.as_ref() == Some(&policy.namespace)
                    && policy.subjects.matches(&pod.identity.labels)
            });
            policies.map(|policy| &policy.name).collect()
        })
        .collect();
    assert!(profiles.len() >= 200, "{} profiles", profiles.len());
    assert_eq!(world, bench_world(size));
    let flow = policyproof::Flow {
        source: local[0].addresses.as_ref().map(|list| list[0]).unwrap(),
        destination: local[1].addresses.as_ref().map(|list| list[0]).unwrap(),
        protocol: 6,
        port: Some(31_000),
    };
    let verdict = naive::verdict(&world, &flow);
    assert!(verdict.egress.is_some() && verdict.ingress.is_some());
}
