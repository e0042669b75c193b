//! Answers queries about flows, and names the rules that denied packets. Both ask the engine of the policy thread, so that the
//! engine is not copied.

use api::{DeniedFlow, Timestamp};
use model::objects::Direction;
use policy::{
    FlowAnswers, FlowEnd, FlowParty, FlowQuery, FlowQueryError, Judgement, JudgementReason, PolicyEngine,
    PolicyFlow, PolicyVerdict, RuleOutcome,
};
use types::TenantName;

use super::PolicyThread;
use crate::flow_view::{CLOSED, direction_view, end_view, protocol_name};
use crate::identities::local_pods;
use crate::metrics::SampledDenial;
use crate::policies::denied::DeniedSample;
use crate::policies::enforced::Enforced;
use crate::policies::handle::{EnforcementState, PolicyQuery};
use crate::policies::objects::restrict_flows;
use engine::state::RecordPhase;

const NO_POD: &str = "its link belongs to no pod that this agent knows";
const CHANGED: &str = "the current policies accept the flow: they changed after the packet was denied";

impl PolicyThread {
    pub(super) fn answer_query(&mut self, query: PolicyQuery) {
        // The client may have stopped waiting.
        match query {
            PolicyQuery::Explain { query, done } if !done.is_closed() => {
                let _ = done.send((self.enforcement(), self.explain(&query)));
            }
            PolicyQuery::Count { done } if !done.is_closed() => {
                self.count();
                let _ = done.send(self.enforcement());
            }
            PolicyQuery::Explain { .. } | PolicyQuery::Count { .. } => {}
        }
    }

    fn enforcement(&self) -> EnforcementState {
        if self.enforced.is_some() {
            return EnforcementState::Enforced;
        }
        let Some(objects) = &self.objects else {
            return EnforcementState::Not("the agent has not read the store yet".to_owned());
        };
        let obstacle = self.obstacle().filter(|_| restrict_flows(objects));
        EnforcementState::Not(obstacle.unwrap_or("no object restricts flows").to_owned())
    }

    fn explain(&mut self, query: &FlowQuery) -> Result<FlowAnswers, FlowQueryError> {
        match &self.enforced {
            Some(enforced) => enforced.engine().answer(query),
            None => self.described().engine().answer(query).map(without_judgements),
        }
    }

    /// The pods and objects of a node that enforces no policies. What cannot be read is missing, and the condition of the reconciler
    /// says so.
    fn described(&mut self) -> Enforced {
        let mut described = Enforced::new(self.parts.policies.node());
        let mut changes =
            self.objects.as_ref().map(|objects| described.set_objects(objects)).unwrap_or_default();
        changes.extend(self.remote.all());
        let (run_dir, node) = (&self.parts.config.run_dir, self.parts.policies.node());
        if let Ok((pods, recorded)) = local_pods(run_dir, node, &[RecordPhase::Ready, RecordPhase::Pending]) {
            changes.extend(described.set_pods(pods, &recorded));
        }
        changes
            .extend(self.kernel.node_addresses().map(|all| described.set_addresses(all)).unwrap_or_default());
        described.apply(changes);
        described
    }

    pub(super) fn record_denied(&self, samples: Vec<DeniedSample>) {
        let denied = &self.parts.policies.denied;
        let Some(enforced) = &self.enforced else {
            return denied.lost(samples.len() as u64);
        };
        for sample in samples {
            let Denial { flow, policy } = denial(enforced.engine(), &sample);
            self.parts.metrics.sampled_denial(&SampledDenial {
                direction: match sample.direction {
                    Direction::Ingress => "ingress",
                    Direction::Egress => "egress",
                },
                tier: flow.tier.clone().unwrap_or_else(|| "none".to_owned()),
                policy: policy.unwrap_or_else(|| "none".to_owned()),
            });
            denied.record(flow);
        }
    }
}

/// A denied flow, and the object with the rule that decided.
#[derive(Debug)]
struct Denial {
    flow: DeniedFlow,
    policy: Option<String>,
}

/// All flows are accepted.
fn without_judgements(mut answers: FlowAnswers) -> FlowAnswers {
    for one in &mut answers.explanations {
        (one.egress, one.ingress) = (None, None);
        let is_missing = [&one.from, &one.to].iter().any(|end| matches!(end, FlowParty::NoPod(_)));
        one.verdict = if is_missing { PolicyVerdict::Drop } else { PolicyVerdict::Accept };
    }
    answers
}

/// The engine may be newer than the packet.
fn denial(engine: &PolicyEngine, sample: &DeniedSample) -> Denial {
    let headers = &sample.headers;
    let explained = engine.explain(&PolicyFlow {
        from: FlowEnd::Address(headers.from),
        to: FlowEnd::Address(headers.to),
        protocol: headers.protocol,
        port: headers.port.unwrap_or_default(),
    });
    let (judgement, subject) = match sample.direction {
        Direction::Ingress => (&explained.ingress, &explained.to),
        Direction::Egress => (&explained.egress, &explained.from),
    };
    let tenant = tenant_of(engine, subject);
    let Decision { tier, rule, policy } = decision(judgement.as_ref(), tenant);
    let flow = DeniedFlow {
        time: Timestamp(sample.time),
        direction: direction_view(sample.direction),
        from: end_view(&explained.from),
        to: end_view(&explained.to),
        protocol: protocol_name(headers.protocol),
        port: headers.port,
        icmp_type: headers.icmp_type,
        tenant: tenant.map(ToString::to_string),
        link: sample.link.clone(),
        tier,
        rule,
        samples: 1,
    };
    Denial { flow, policy }
}

struct Decision {
    tier: Option<String>,
    rule: String,
    policy: Option<String>,
}

fn decision(judgement: Option<&Judgement>, tenant: Option<&TenantName>) -> Decision {
    let none = |rule: &str| Decision { tier: None, rule: rule.to_owned(), policy: None };
    let Some(judgement) = judgement else { return none(NO_POD) };
    match (&judgement.reason, judgement.verdict) {
        (JudgementReason::Closed, _) => none(CLOSED),
        (JudgementReason::OwnNode, _) | (JudgementReason::Tiers(_), PolicyVerdict::Accept) => none(CHANGED),
        (JudgementReason::Tiers(steps), PolicyVerdict::Drop) => match steps
            .last()
            .map(|step| (step.tier, &step.rule))
        {
            Some((tier, Some((source, RuleOutcome::Drop)))) => Decision {
                tier: Some(tier.to_string()),
                rule: source.to_string(),
                policy: tenant.map(|tenant| source.object(tenant)),
            },
            Some((_, Some((_, RuleOutcome::Accept | RuleOutcome::NextTier)) | None)) | None => none(CHANGED),
        },
    }
}

fn tenant_of<'a>(engine: &'a PolicyEngine, party: &FlowParty) -> Option<&'a TenantName> {
    match party {
        FlowParty::Pod { uid, .. } => Some(&engine.world().pods.get(uid)?.identity.placement.tenant),
        FlowParty::Node { .. } | FlowParty::Outside(_) | FlowParty::Unknown(_) | FlowParty::NoPod(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::objects::{Identity, NamespacedName};
    use policy::{NodeEntry, PodEntry, PodPhase, PolicyNetwork, WorldChange};
    use types::Placement;

    use super::*;
    use crate::policies::packet::PacketHeaders;

    fn engine() -> PolicyEngine {
        let mut engine = PolicyEngine::new("n1".try_into().unwrap());
        let network = PolicyNetwork {
            tenant: TenantName::default(),
            id: types::NetworkId::default(),
            subnets: vec!["10.83.0.0/16".parse().unwrap()],
        };
        let pod = |name: &str, tenant: &str, address: &str| {
            let placement = Placement { tenant: tenant.try_into().unwrap(), ..Placement::default() };
            let identity =
                Identity { placement, namespace: None, labels: model::Labels::new(), ports: Vec::new() };
            WorldChange::SetPod(PodEntry {
                uid: name.into(),
                name: NamespacedName { namespace: None, name: name.to_owned() },
                node: "n1".try_into().unwrap(),
                identity: Arc::new(identity),
                addresses: Some(vec![address.parse().unwrap()]),
                phase: PodPhase::Running,
            })
        };
        engine.apply([
            WorldChange::SetNetwork(network),
            WorldChange::SetNode("n1".try_into().unwrap(), NodeEntry::default()),
            pod("a", "blue", "10.83.0.2"),
            pod("b", "red", "10.83.0.3"),
        ]);
        engine
    }

    fn named(direction: Direction, from: &str, to: &str) -> (Option<String>, String, Option<String>) {
        let headers = PacketHeaders {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            protocol: 6,
            port: Some(80),
            icmp_type: None,
        };
        let Denial { flow, policy } =
            denial(&engine(), &DeniedSample { time: 1, direction, link: None, headers });
        (flow.tier, flow.rule, policy)
    }

    #[test]
    fn d_the_rule_that_decided_is_named_at_the_end_that_was_judged() {
        let tenant = |name: &str| {
            let rule = format!("the peer is a pod of another tenant than {name}, without a share");
            (Some("tenant".to_owned()), rule, Some(format!("tenant {name}")))
        };
        assert_eq!(named(Direction::Egress, "10.83.0.2", "10.83.0.3"), tenant("blue"));
        assert_eq!(named(Direction::Ingress, "10.83.0.2", "10.83.0.3"), tenant("red"));
        let (tier, rule, _) = named(Direction::Ingress, "10.83.9.9", "10.83.0.3");
        assert_eq!(
            (tier.as_deref(), rule.as_str()),
            (Some("tenant"), "the peer's address belongs to no known pod")
        );
    }

    #[test]
    fn d_a_packet_that_the_current_state_does_not_explain_is_not_attributed_to_a_rule() {
        assert_eq!(named(Direction::Egress, "192.0.2.1", "10.83.0.3"), (None, NO_POD.to_owned(), None));
        assert_eq!(named(Direction::Egress, "10.83.0.2", "192.0.2.1"), (None, CHANGED.to_owned(), None));
    }
}
