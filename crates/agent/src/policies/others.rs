//! The part of a change of pods that concerns other pods. Pure.
//!
//! Usually there is none: a pod that starts or stops only adds or removes its own elements. But it can bring a policy over the limit, so
//! that all its pods are isolated, and its class can be the first one that a rule treats separately.

use std::collections::{BTreeSet, HashSet};

use policy::{Delta, PodUid, PolicyElement, ProfileId, VerdictKey, WorldChange};

/// The pods that these changes set or remove.
pub(super) fn changed_pods(changes: &[WorldChange]) -> BTreeSet<PodUid> {
    let mut pods = BTreeSet::new();
    for change in changes {
        if let WorldChange::SetPod(pod) = change {
            pods.insert(PodUid::clone(&pod.uid));
        } else if let WorldChange::RemovePod(uid) = change {
            pods.insert(PodUid::clone(uid));
        }
    }
    pods
}

/// Without the elements and profiles that only these pods have. `profiles` are those of all local pods after the change.
pub(super) fn of_others<'a>(
    delta: &Delta,
    pods: &BTreeSet<PodUid>,
    profiles: impl Iterator<Item = (&'a PodUid, ProfileId)>,
) -> Delta {
    let profiles: HashSet<ProfileId> =
        profiles.filter(|(uid, _)| !pods.contains(*uid)).map(|(_, profile)| profile).collect();
    let concerns = |element: &&PolicyElement| match element {
        PolicyElement::Verdict { key, .. } => profile_of(key).is_none_or(|id| profiles.contains(&id)),
        // A change of pods only changes their own addresses.
        PolicyElement::Address { .. }
        | PolicyElement::Addresses { .. }
        | PolicyElement::OwnAddress { .. } => false,
    };
    Delta {
        replaced: delta.replaced.iter().filter(concerns).copied().collect(),
        set: delta.set.iter().filter(concerns).copied().collect(),
        profiles: delta.profiles.iter().filter(|(uid, _)| !pods.contains(uid)).cloned().collect(),
        removed: Vec::new(),
    }
}

/// None for the verdicts of all profiles.
fn profile_of(key: &VerdictKey) -> Option<ProfileId> {
    match key {
        VerdictKey::PeerPort { profile, .. }
        | VerdictKey::PeerRange { profile, .. }
        | VerdictKey::PeerProtocol { profile, .. }
        | VerdictKey::Peer { profile, .. }
        | VerdictKey::PeerClasses { profile, .. }
        | VerdictKey::AnyPeerPort { profile, .. }
        | VerdictKey::AnyPeerRange { profile, .. }
        | VerdictKey::AnyPeerProtocol { profile, .. }
        | VerdictKey::Default { profile } => Some(*profile),
        VerdictKey::AnyPodPort { .. }
        | VerdictKey::AnyPodRange { .. }
        | VerdictKey::AnyPodProtocol { .. }
        | VerdictKey::AnyPod { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::objects::{
        Direction, Group, GroupPeer, GroupPolicy, GroupRule, Identity, NamespacedName, PortRange, RuleAction,
        RuleProtocol,
    };
    use policy::{PodEntry, PodPhase, PolicyEngine};
    use types::{Placement, TenantName};

    use super::*;

    fn pod(name: &str, group: &str, last: u8) -> WorldChange {
        let placement = Placement::parse(None, None, Some(group)).unwrap();
        let identity =
            Identity { placement, namespace: None, labels: model::Labels::new(), ports: Vec::new() };
        WorldChange::SetPod(PodEntry {
            uid: name.into(),
            name: NamespacedName { namespace: None, name: name.to_owned() },
            node: "n1".try_into().unwrap(),
            identity: Arc::new(identity),
            addresses: Some(vec![[10, 83, 0, last].into()]),
            phase: PodPhase::Running,
        })
    }

    /// One element for each port.
    fn policy(ports: u16) -> WorldChange {
        let rule = |number: u16| GroupRule {
            id: u32::from(number),
            direction: Direction::Ingress,
            priority: 10,
            peer: GroupPeer::Group("web".try_into().unwrap()),
            protocol: RuleProtocol::WithPorts(types::Protocol::Tcp),
            ports: PortRange::new(1000 + 2 * number, 1000 + 2 * number),
            action: RuleAction::Deny,
        };
        WorldChange::SetGroupPolicy(GroupPolicy {
            tenant: TenantName::default(),
            name: "ports".to_owned(),
            rules: (1..=ports).map(rule).collect(),
        })
    }

    fn group(name: &str) -> WorldChange {
        let policies = vec!["ports".to_owned()];
        WorldChange::SetGroup(Group {
            tenant: TenantName::default(),
            name: name.try_into().unwrap(),
            policies,
        })
    }

    #[test]
    fn only_a_pod_that_suspends_a_policy_concerns_other_pods() {
        let mut engine = PolicyEngine::with_limit("n1".try_into().unwrap(), 50);
        engine.apply([policy(30), group("db"), group("cache"), pod("w", "web", 2), pod("d", "db", 3)]);
        let mut concerned = |change: WorldChange| {
            let changes = vec![change];
            let pods = changed_pods(&changes);
            let delta = engine.apply(changes);
            assert!(!delta.is_empty());
            !of_others(&delta, &pods, engine.profiles()).is_empty()
        };
        assert!(!concerned(pod("d2", "db", 4)));
        assert!(!concerned(pod("w2", "web", 5)));
        assert!(concerned(pod("c", "cache", 6)), "the policy exceeds the limit");
        assert!(concerned(WorldChange::RemovePod("c".into())), "the policy is in force again");
        assert!(!concerned(WorldChange::RemovePod("d2".into())));
    }
}
