use std::sync::Arc;

use policy::{PodEntry, PodPhase, World, WorldChange};

use super::{NAMESPACES, NETWORKS, pods, policies};
use crate::Dice;
use crate::build::{NODES, named};

/// A change of any kind: often of an object that exists, sometimes without an effect.
pub fn random_change(dice: &mut Dice, world: &World) -> WorldChange {
    match dice.below(100) {
        0..=34 => pod_change(dice, world),
        35..=39 => {
            let index = dice.below(NODES.len());
            pods::node(dice, index)
        }
        40 => WorldChange::RemoveNode(named(NODES[1 + dice.below(NODES.len() - 1)])),
        41..=43 => pods::network(dice.below(NETWORKS.len())),
        44 => remove_network(dice),
        45..=51 => {
            let index = dice.below(NAMESPACES.len());
            pods::namespace(dice, index)
        }
        52 => WorldChange::RemoveNamespace((dice.pick(&NAMESPACES)).to_owned()),
        53..=62 => policies::network_policy(dice),
        63..=66 => remove_one(dice, &world.network_policies, |(namespace, name)| {
            WorldChange::RemoveNetworkPolicy(namespace, name)
        })
        .unwrap_or_else(|| policies::network_policy(dice)),
        67..=76 => policies::cluster_policy(dice),
        77..=79 => remove_one(dice, &world.cluster_policies, WorldChange::RemoveClusterPolicy)
            .unwrap_or_else(|| policies::cluster_policy(dice)),
        _ => tenant_change(dice, world),
    }
}

fn tenant_change(dice: &mut Dice, world: &World) -> WorldChange {
    let removed = match dice.below(12) {
        0..=1 => return policies::group(dice),
        2..=4 => return policies::group_policy(dice),
        5..=6 => return policies::share(dice),
        7 => return policies::tenant(dice),
        8 => remove_one(dice, &world.groups, |(tenant, name)| WorldChange::RemoveGroup(tenant, name)),
        9 => remove_one(dice, &world.group_policies, |(tenant, name)| {
            WorldChange::RemoveGroupPolicy(tenant, name)
        }),
        10 => remove_one(dice, &world.shares, |(tenant, name)| WorldChange::RemoveShare(tenant, name)),
        _ => remove_one(dice, &world.tenants, WorldChange::RemoveTenant),
    };
    removed.unwrap_or_else(|| policies::group(dice))
}

fn remove_network(dice: &mut Dice) -> WorldChange {
    let (tenant, id, _, _) = dice.pick(&NETWORKS);
    WorldChange::RemoveNetwork(named(tenant), named(id))
}

fn remove_one<K: Clone, V>(
    dice: &mut Dice,
    from: &std::collections::BTreeMap<K, V>,
    remove: impl FnOnce(K) -> WorldChange,
) -> Option<WorldChange> {
    let keys: Vec<&K> = from.keys().collect();
    (!keys.is_empty()).then(|| remove((dice.pick(&keys)).clone()))
}

/// Pods start, stop, complete, change their labels, or are replaced by a pod of the same name and addresses.
fn pod_change(dice: &mut Dice, world: &World) -> WorldChange {
    let all: Vec<&PodEntry> = world.pods.values().collect();
    if all.is_empty() || dice.chance(25) {
        let number = dice.below(15);
        return pods::pod(dice, number, NETWORKS.len());
    }
    let old = (dice.pick(&all)).clone();
    match dice.below(6) {
        0 => WorldChange::RemovePod(old.uid),
        1 => WorldChange::SetPod(PodEntry { phase: PodPhase::Completed, ..old }),
        // The new pod can appear before the old one is removed.
        2 => WorldChange::SetPod(PodEntry { uid: Arc::from(format!("{}+", old.uid)), ..old }),
        _ => {
            let mut identity = (*old.identity).clone();
            identity.labels = pods::labels(dice, 60);
            WorldChange::SetPod(PodEntry { identity: Arc::new(identity), ..old })
        }
    }
}

/// The changes that make this world from an empty one.
pub fn all_changes(world: &World) -> Vec<WorldChange> {
    let nodes = world.nodes.iter().map(|(name, node)| WorldChange::SetNode(name.clone(), node.clone()));
    let namespaces =
        world.namespaces.iter().map(|(name, labels)| WorldChange::SetNamespace(name.clone(), labels.clone()));
    nodes
        .chain(namespaces)
        .chain(world.networks.values().cloned().map(WorldChange::SetNetwork))
        .chain(world.tenants.values().cloned().map(WorldChange::SetTenant))
        .chain(world.groups.values().cloned().map(WorldChange::SetGroup))
        .chain(world.group_policies.values().cloned().map(WorldChange::SetGroupPolicy))
        .chain(world.shares.values().cloned().map(WorldChange::SetShare))
        .chain(world.network_policies.values().cloned().map(WorldChange::SetNetworkPolicy))
        .chain(world.cluster_policies.values().cloned().map(WorldChange::SetClusterPolicy))
        .chain(world.pods.values().cloned().map(WorldChange::SetPod))
        .collect()
}
