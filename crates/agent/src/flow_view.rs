//! Converts explanations of the policy engine to their API types. Pure.

use api::{
    FlowDirection, FlowEndKind, FlowEndView, FlowVerdict, FlowView, JudgementView, TierOutcome, TierView,
};
use model::objects::Direction;
use policy::{
    Explanation, FlowParty, Judgement, JudgementReason, PolicyTier, PolicyVerdict, ProtocolNumber,
    RuleOutcome, TierStep,
};
use types::Protocol;

/// A flow without its path.
pub fn flow_view(explanation: &Explanation) -> FlowView {
    let Explanation { from, to, protocol, port, egress, ingress, verdict } = explanation;
    FlowView {
        from: end_view(from),
        to: end_view(to),
        protocol: protocol_name(*protocol),
        port: has_ports(*protocol).then_some(*port),
        verdict: verdict_view(*verdict),
        judgements: egress.iter().chain(ingress).map(judgement_view).collect(),
        path: None,
    }
}

pub(crate) fn end_view(party: &FlowParty) -> FlowEndView {
    let view = |kind, name, node, address| FlowEndView { kind, name, node, address };
    match party {
        FlowParty::Pod { uid: _, name, node, address } => {
            view(FlowEndKind::Pod, Some(name.to_string()), Some(node.to_string()), *address)
        }
        FlowParty::Node { name, address } => {
            view(FlowEndKind::Node, Some(name.to_string()), Some(name.to_string()), *address)
        }
        FlowParty::Outside(address) => view(FlowEndKind::Outside, None, None, Some(*address)),
        FlowParty::Unknown(address) => view(FlowEndKind::Unknown, None, None, Some(*address)),
        FlowParty::NoPod(uid) => view(FlowEndKind::NoPod, Some(uid.to_string()), None, None),
    }
}

fn verdict_view(verdict: PolicyVerdict) -> FlowVerdict {
    match verdict {
        PolicyVerdict::Accept => FlowVerdict::Accept,
        PolicyVerdict::Drop => FlowVerdict::Drop,
    }
}

pub(crate) fn direction_view(direction: Direction) -> FlowDirection {
    match direction {
        Direction::Ingress => FlowDirection::Ingress,
        Direction::Egress => FlowDirection::Egress,
    }
}

fn judgement_view(judgement: &Judgement) -> JudgementView {
    let (tiers, reason) = match &judgement.reason {
        JudgementReason::Tiers(steps) => {
            let is_decided = steps.last().is_some_and(TierStep::is_final);
            let tiers = steps.iter().map(tier_view).collect();
            (tiers, (!is_decided).then(|| "default: accept".to_owned()))
        }
        JudgementReason::OwnNode => {
            (Vec::new(), Some("not judged: the peer is the pod's own node".to_owned()))
        }
        JudgementReason::Closed => (Vec::new(), Some(CLOSED.to_owned())),
    };
    JudgementView {
        direction: direction_view(judgement.direction),
        node: judgement.node.to_string(),
        verdict: verdict_view(judgement.verdict),
        tiers,
        reason,
    }
}

pub(crate) const CLOSED: &str = "the pod is closed: it has no profile";

pub(crate) fn tier_view(step: &TierStep) -> TierView {
    let (outcome, rule) = match (&step.rule, step.tier) {
        (Some((source, outcome)), _) => (Some(outcome_view(*outcome)), source.to_string()),
        (None, PolicyTier::NetworkPolicy) => {
            (None, "no NetworkPolicy isolates the pod in this direction".to_owned())
        }
        (None, PolicyTier::Admin | PolicyTier::Baseline) => {
            (None, "no rule of a ClusterNetworkPolicy matches".to_owned())
        }
        (None, PolicyTier::Tenant | PolicyTier::Group) => (None, "no rule matches".to_owned()),
    };
    TierView { tier: step.tier.to_string(), outcome, rule }
}

fn outcome_view(outcome: RuleOutcome) -> TierOutcome {
    match outcome {
        RuleOutcome::Accept => TierOutcome::Accept,
        RuleOutcome::Drop => TierOutcome::Drop,
        RuleOutcome::NextTier => TierOutcome::Pass,
    }
}

pub(crate) fn has_ports(protocol: ProtocolNumber) -> bool {
    Protocol::ALL.into_iter().any(|known| known.number() == protocol)
}

pub(crate) fn protocol_name(protocol: ProtocolNumber) -> String {
    let with_ports = Protocol::ALL.into_iter().find(|known| known.number() == protocol);
    match (with_ports, protocol) {
        (Some(known), _) => known.to_string(),
        (None, 1) => "icmp".to_owned(),
        (None, 58) => "icmpv6".to_owned(),
        (None, other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::objects::{Identity, NamespacedName};
    use policy::{FlowEnd, PodEntry, PodPhase, PolicyEngine, PolicyFlow, WorldChange};
    use types::Placement;

    use super::*;

    fn pod(name: &str, tenant: &str, address: &str) -> WorldChange {
        let placement = Placement { tenant: tenant.try_into().unwrap(), ..Placement::default() };
        let identity =
            Identity { placement, namespace: None, labels: model::Labels::new(), ports: Vec::new() };
        WorldChange::SetPod(PodEntry {
            uid: name.into(),
            name: NamespacedName { namespace: Some("shop".to_owned()), name: name.to_owned() },
            node: "n1".try_into().unwrap(),
            identity: Arc::new(identity),
            addresses: Some(vec![address.parse().unwrap()]),
            phase: PodPhase::Running,
        })
    }

    #[test]
    fn d_an_explanation_names_the_deciding_rule_of_each_direction() {
        let mut engine = PolicyEngine::new("n1".try_into().unwrap());
        engine.apply([
            pod("web", "blue", "10.0.0.1"),
            pod("db", "red", "10.0.0.2"),
            pod("two", "red", "10.0.0.3"),
        ]);
        let shown = |from: &str, to: &str, protocol| {
            let flow = PolicyFlow {
                from: FlowEnd::Pod(from.into()),
                to: FlowEnd::Pod(to.into()),
                protocol,
                port: 80,
            };
            flow_view(&engine.explain(&flow)).to_string()
        };
        let expected = "from pod shop/web on node n1 (10.0.0.1)
to   pod shop/db on node n1 (10.0.0.2)
tcp port 80
egress of the sender, on node n1: drop
  admin: no rule of a ClusterNetworkPolicy matches
  tenant: drop (the peer is a pod of another tenant than blue, without a share)
ingress of the receiver, on node n1: drop
  admin: no rule of a ClusterNetworkPolicy matches
  tenant: drop (the peer is a pod of another tenant than red, without a share)
verdict: drop";
        assert_eq!(shown("web", "db", 6), expected);
        let accepted = shown("db", "two", 1);
        for line in [
            "protocol icmp",
            "  tenant: pass (both ends belong to tenant red)",
            "  group: no rule matches",
            "  default: accept",
            "verdict: accept",
        ] {
            assert!(accepted.lines().any(|shown| shown == line), "{accepted}");
        }
    }
}
