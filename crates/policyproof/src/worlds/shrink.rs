use policy::{World, WorldChange};

use super::changes::removals;

/// Removes objects and rules as long as `fails` holds, so that a failure can be read.
pub fn smallest(mut world: World, fails: impl Fn(&World) -> bool) -> World {
    loop {
        let smaller = candidates(&world).into_iter().find(|candidate| fails(candidate));
        match smaller {
            Some(smaller) => world = smaller,
            None => return world,
        }
    }
}

/// The world without one of its parts.
fn candidates(world: &World) -> Vec<World> {
    let without = |change: WorldChange| {
        let mut smaller = world.clone();
        smaller.apply(change);
        smaller
    };
    let nothing = World::new(world.local_node.clone());
    removals(world, &nothing).into_iter().chain(without_rules(world)).map(without).collect()
}

/// Policies without one of their rules.
fn without_rules(world: &World) -> Vec<WorldChange> {
    let mut changes = Vec::new();
    for policy in world.network_policies.values() {
        changes.extend(shorter(policy.ingress.as_deref()).map(|ingress| {
            WorldChange::SetNetworkPolicy(model::objects::NetworkPolicy {
                ingress: Some(ingress),
                ..policy.clone()
            })
        }));
        changes.extend(shorter(policy.egress.as_deref()).map(|egress| {
            WorldChange::SetNetworkPolicy(model::objects::NetworkPolicy {
                egress: Some(egress),
                ..policy.clone()
            })
        }));
    }
    for policy in world.cluster_policies.values() {
        changes.extend(shorter(Some(&policy.ingress)).map(|ingress| {
            WorldChange::SetClusterPolicy(model::objects::ClusterNetworkPolicy { ingress, ..policy.clone() })
        }));
        changes.extend(shorter(Some(&policy.egress)).map(|egress| {
            WorldChange::SetClusterPolicy(model::objects::ClusterNetworkPolicy { egress, ..policy.clone() })
        }));
    }
    for policy in world.group_policies.values() {
        changes.extend(shorter(Some(&policy.rules)).map(|rules| {
            WorldChange::SetGroupPolicy(model::objects::GroupPolicy { rules, ..policy.clone() })
        }));
    }
    changes
}

fn shorter<T: Clone>(list: Option<&[T]>) -> impl Iterator<Item = Vec<T>> {
    let list = list.unwrap_or_default();
    (0..list.len()).map(|index| {
        let mut shorter = list.to_vec();
        shorter.remove(index);
        shorter
    })
}
