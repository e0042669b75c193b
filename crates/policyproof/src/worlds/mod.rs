//! Worlds, changes and flows for comparisons. The same seed always generates the same world.
//!
//! The universe is small: three nodes of which one is local, up to three tenants, six namespaces and fifteen pods, few labels, names,
//! ports and blocks. So rules overlap and conflict often, and all flows can be enumerated.

mod bench;
mod changes;
mod flows;
mod pods;
mod policies;
mod shrink;

use policy::{PodEntry, World, WorldChange};

pub use bench::{BenchSize, bench_world};
pub use changes::{all_changes, random_change, transition};
pub use flows::{flows, is_ambiguous, some_flows};
pub use shrink::smallest;

use crate::Dice;
use crate::build;

/// Tenant, network and its subnets, with the parts of addresses that precede node and pod.
const NETWORKS: [(&str, &str, &str, Option<&str>); 4] = [
    ("default", "default-net", "10.83", Some("fd00:88")),
    ("blue", "front", "10.84", Some("fd00:89")),
    ("blue", "back", "10.85", None),
    ("green", "net", "10.86", Some("fd00:8a")),
];
const GROUPS: [&str; 2] = ["web", "db"];
const NAMESPACES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Namespaces and pods have the same keys and values.
const KEYS: [&str; 3] = ["app", "team", "env"];
const VALUES: [&str; 3] = ["x", "y", "z"];
const PORT_NAMES: [&str; 3] = ["http", "dns", "metrics"];

pub fn random_world(seed: u64) -> World {
    let dice = &mut Dice::new(seed);
    let (mut world, networks) = world_without_pods(dice);
    for number in 0..5 + dice.below(11) {
        let pod = pods::pod(dice, number, networks);
        world.apply(pod);
    }
    add_predecessors(dice, &mut world);
    add_policies(dice, &mut world);
    world
}

/// A world for real connections: pod `n` runs on the node with the index `nodes[n]`. Some pods are missing.
pub fn random_world_of(nodes: &[usize], seed: u64) -> World {
    let dice = &mut Dice::new(seed);
    let (mut world, networks) = world_without_pods(dice);
    for (number, node) in nodes.iter().enumerate() {
        if dice.chance(90) {
            let pod = pods::running_pod(dice, (*node, number), networks);
            world.apply(pod);
        }
    }
    add_predecessors(dice, &mut world);
    add_policies(dice, &mut world);
    world
}

/// The world, and the number of networks.
fn world_without_pods(dice: &mut Dice) -> (World, usize) {
    let mut world = World::new(build::named(build::LOCAL_NODE));
    for index in 0..build::NODES.len() {
        world.apply(pods::node(dice, index));
    }
    let networks = if dice.chance(50) { NETWORKS.len() } else { 1 + dice.below(NETWORKS.len()) };
    for index in 0..networks {
        world.apply(pods::network(index));
    }
    for index in 0..3 + dice.below(NAMESPACES.len() - 2) {
        // A few namespaces are not known.
        if dice.chance(90) {
            world.apply(pods::namespace(dice, index));
        }
    }
    (world, networks)
}

fn add_predecessors(dice: &mut Dice, world: &mut World) {
    let successors: Vec<PodEntry> = world.pods.values().filter(|_| dice.chance(8)).cloned().collect();
    successors.iter().for_each(|pod| world.apply(pods::predecessor(dice, pod)));
}

type MakeChange = fn(&mut Dice) -> WorldChange;

fn add_policies(dice: &mut Dice, world: &mut World) {
    let makers: [(usize, MakeChange); 6] = [
        (6, policies::network_policy),
        (4, policies::cluster_policy),
        (4, policies::group),
        (5, policies::group_policy),
        (4, policies::share),
        (2, policies::tenant),
    ];
    for (most, make) in makers {
        for change in dice.list(0, most, make) {
            world.apply(change);
        }
    }
    add_missing(dice, world);
}

/// Adds most of the groups and policies that others need: a missing one closes its pods, which hides all other rules.
fn add_missing(dice: &mut Dice, world: &mut World) {
    let placements: Vec<_> = world.pods.values().map(|pod| pod.identity.placement.clone()).collect();
    for (tenant, group) in placements.into_iter().filter_map(|one| Some((one.tenant, one.group?))) {
        let is_known = world.groups.contains_key(&(tenant.clone(), group.clone()));
        if !is_known && dice.chance(80) {
            world.apply(policies::group_named(dice, tenant, group));
        }
    }
    let groups: Vec<_> = world.groups.values().cloned().collect();
    for (tenant, name) in
        groups.iter().flat_map(|group| group.policies.iter().map(|name| (&group.tenant, name)))
    {
        let is_known = world.group_policies.contains_key(&(tenant.clone(), name.clone()));
        if !is_known && dice.chance(80) {
            world.apply(policies::group_policy_named(dice, tenant.clone(), name.clone()));
        }
    }
}
