//! The flows that a change of policies may affect. Pure.

use std::collections::BTreeSet;

use nft::conntrack::FlowSelection;
use policy::{Delta, PolicyElement, PolicyVerdict, VerdictKey};

/// More selections become one of all flows. Each is a listing of its own, in which the kernel visits all flows.
const SELECTIONS: usize = 8;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::policies) struct AffectedFlows(BTreeSet<FlowSelection>);

impl AffectedFlows {
    pub(in crate::policies) fn all() -> Self {
        Self(BTreeSet::from([FlowSelection::All]))
    }

    /// If the change only allows more, flows that were forbidden before are judged again.
    pub(in crate::policies) fn of(delta: &Delta) -> Self {
        let changed = || delta.replaced.iter().chain(&delta.set).chain(&delta.removed);
        let may_forbid = |element: &PolicyElement, verdict: PolicyVerdict| match element {
            PolicyElement::Verdict { verdict: found, .. } => *found == verdict,
            PolicyElement::Address { .. } | PolicyElement::Addresses { .. } => true,
            PolicyElement::OwnAddress { .. } => false,
        };
        if !delta.profiles.is_empty() {
            return Self::all();
        }
        let forbids = delta.set.iter().any(|element| may_forbid(element, PolicyVerdict::Drop))
            || delta.replaced.iter().chain(&delta.removed).any(|it| may_forbid(it, PolicyVerdict::Accept));
        let mut affected = Self::default();
        if forbids {
            changed().filter_map(flows_of).for_each(|selection| affected.insert(selection));
        } else if changed().next().is_some() {
            affected.insert(FlowSelection::Forbidden);
        }
        affected
    }

    pub(super) fn merge(&mut self, other: Self) {
        other.0.into_iter().for_each(|selection| self.insert(selection));
    }

    fn insert(&mut self, selection: FlowSelection) {
        self.0.insert(selection);
        if self.0.len() > SELECTIONS || self.0.contains(&FlowSelection::All) {
            *self = Self::all();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn selections(&self) -> impl Iterator<Item = FlowSelection> {
        self.0.iter().copied()
    }
}

/// The flows whose verdict may depend on the element.
fn flows_of(element: &PolicyElement) -> Option<FlowSelection> {
    let key = match element {
        PolicyElement::Verdict { key, .. } => key,
        PolicyElement::Address { .. } | PolicyElement::Addresses { .. } => return Some(FlowSelection::All),
        PolicyElement::OwnAddress { .. } => return None,
    };
    Some(match *key {
        VerdictKey::PeerPort { protocol, port, .. }
        | VerdictKey::AnyPodPort { protocol, port, .. }
        | VerdictKey::AnyPeerPort { protocol, port, .. } => FlowSelection::Port(protocol.number(), port),
        VerdictKey::PeerRange { protocol, .. }
        | VerdictKey::AnyPodRange { protocol, .. }
        | VerdictKey::AnyPeerRange { protocol, .. } => FlowSelection::Protocol(protocol.number()),
        VerdictKey::PeerProtocol { protocol, .. }
        | VerdictKey::AnyPodProtocol { protocol, .. }
        | VerdictKey::AnyPeerProtocol { protocol, .. } => FlowSelection::Protocol(protocol),
        VerdictKey::Peer { .. }
        | VerdictKey::AnyPod { .. }
        | VerdictKey::PeerClasses { .. }
        | VerdictKey::Default { .. } => FlowSelection::All,
    })
}

#[cfg(test)]
mod tests {
    use model::objects::Direction;
    use policy::{ClassId, ProfileId};
    use types::Protocol;

    use super::*;

    const PROFILE: ProfileId = ProfileId(ProfileId::FIRST);

    fn element(key: VerdictKey, verdict: PolicyVerdict) -> PolicyElement {
        PolicyElement::Verdict { direction: Direction::Ingress, key, verdict }
    }

    fn default(verdict: PolicyVerdict) -> PolicyElement {
        element(VerdictKey::Default { profile: PROFILE }, verdict)
    }

    fn port(port: u16, verdict: PolicyVerdict) -> PolicyElement {
        let class = ClassId(ClassId::FIRST);
        element(VerdictKey::PeerPort { profile: PROFILE, class, protocol: Protocol::Tcp, port }, verdict)
    }

    fn selected(delta: &Delta) -> Vec<FlowSelection> {
        AffectedFlows::of(delta).selections().collect()
    }

    #[test]
    fn only_changes_that_may_forbid_judge_all_flows() {
        let (accept, drop) = (default(PolicyVerdict::Accept), default(PolicyVerdict::Drop));
        let (none, replaced) = (Delta::default(), vec![drop]);
        assert_eq!(selected(&none), []);
        let allows = Delta { replaced, set: vec![accept], ..Delta::default() };
        assert_eq!(selected(&allows), [FlowSelection::Forbidden]);
        for forbids in [
            Delta { set: vec![drop], ..Delta::default() },
            Delta { removed: vec![accept], ..Delta::default() },
            Delta { profiles: vec![("p".into(), PROFILE)], ..Delta::default() },
        ] {
            assert_eq!(selected(&forbids), [FlowSelection::All]);
        }
    }

    #[test]
    fn a_change_of_a_port_judges_the_flows_to_this_port() {
        let drop = |of: std::ops::Range<u16>| of.map(|of| port(of, PolicyVerdict::Drop)).collect::<Vec<_>>();
        let tcp = |of| FlowSelection::Port(6, of);
        let forbids = Delta { set: drop(80..81), ..Delta::default() };
        assert_eq!(selected(&forbids), [tcp(80)]);
        let replaced = vec![port(443, PolicyVerdict::Drop)];
        assert_eq!(selected(&Delta { replaced, ..forbids }), [tcp(80), tcp(443)]);
        let whole = VerdictKey::AnyPeerProtocol { profile: PROFILE, protocol: 1 };
        let set = vec![element(whole, PolicyVerdict::Drop)];
        assert_eq!(selected(&Delta { set, ..Delta::default() }), [FlowSelection::Protocol(1)]);
        let set = drop(0..u16::try_from(SELECTIONS).unwrap() + 1);
        assert_eq!(selected(&Delta { set, ..Delta::default() }), [FlowSelection::All]);
    }

    #[test]
    fn merged_changes_judge_the_flows_of_each() {
        let of = |set, replaced| AffectedFlows::of(&Delta { set, replaced, ..Delta::default() });
        let mut merged = of(vec![port(80, PolicyVerdict::Drop)], vec![]);
        merged.merge(of(vec![], vec![port(81, PolicyVerdict::Drop)]));
        assert_eq!(
            merged.selections().collect::<Vec<_>>(),
            [FlowSelection::Forbidden, FlowSelection::Port(6, 80)]
        );
        merged.merge(AffectedFlows::all());
        assert_eq!(merged, AffectedFlows::all());
    }
}
