//! Explains the verdict of a flow rule by rule. It reads the same lists of rules as the compiler, but not the elements.

mod text;

use std::net::IpAddr;
use std::sync::Arc;

use model::objects::{Direction, NamespacedName};
use types::{Family, NodeName};

use crate::address::AddressOwner;
use crate::class::{ClassKey, PeerKind};
use crate::direction::PerDirection;
use crate::element::{PolicyVerdict, ProtocolNumber};
use crate::engine::PolicyEngine;
use crate::predicate::{Namespaces, Predicate};
use crate::profile::ProfileKey;
use crate::rules::{JudgeRule, PolicyTier, RuleOutcome, RulePeers, RuleSource, rules_of};
use crate::world::{PodEntry, PodUid};

/// The first packet of a flow, after translation of service addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFlow {
    pub from: FlowEnd,
    pub to: FlowEnd,
    pub protocol: ProtocolNumber,
    /// The destination port. Ignored for protocols without ports.
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowEnd {
    Address(IpAddr),
    Pod(PodUid),
}

/// An end of a flow, as the engine's inputs describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowParty {
    Pod {
        uid: PodUid,
        name: NamespacedName,
        node: NodeName,
        address: Option<IpAddr>,
    },
    /// A node, or a pod that uses the network of its node.
    Node {
        name: NodeName,
        address: Option<IpAddr>,
    },
    /// Outside of the cluster.
    Outside(IpAddr),
    /// Inside a network of the cluster, but of no known pod.
    Unknown(IpAddr),
    /// No running pod has this uid.
    NoPod(PodUid),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    pub from: FlowParty,
    pub to: FlowParty,
    pub protocol: ProtocolNumber,
    pub port: u16,
    /// At the pod that sends. None if the sender is not a pod.
    pub egress: Option<Judgement>,
    /// At the pod that receives. None if the receiver is not a pod.
    pub ingress: Option<Judgement>,
    /// Accept if all judgements accept.
    pub verdict: PolicyVerdict,
}

/// The judgement of one direction, on the node of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    pub direction: Direction,
    pub node: NodeName,
    pub reason: JudgementReason,
    pub verdict: PolicyVerdict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JudgementReason {
    /// The tiers up to the one that decided. If none did, the flow is accepted.
    Tiers(Vec<TierStep>),
    /// The flow does not leave the pod's own node, and no policy judges it.
    OwnNode,
    /// The pod has no profile on this node.
    Closed,
}

/// The decision of one tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierStep {
    pub tier: PolicyTier,
    /// None if no rule of the tier matches: the next tier decides.
    pub rule: Option<(RuleSource, RuleOutcome)>,
}

const TIERS: [PolicyTier; 5] = [
    PolicyTier::Admin,
    PolicyTier::Tenant,
    PolicyTier::Group,
    PolicyTier::NetworkPolicy,
    PolicyTier::Baseline,
];

impl FlowParty {
    fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Pod { address, .. } | Self::Node { address, .. } => *address,
            Self::Outside(address) | Self::Unknown(address) => Some(*address),
            Self::NoPod(_) => None,
        }
    }
}

impl Explanation {
    /// Whether the flow is between IPv6 addresses.
    pub fn is_ipv6(&self) -> bool {
        self.from.address().or(self.to.address()).is_some_and(|address| address.is_ipv6())
    }
}

impl PolicyEngine {
    /// The verdict of a flow and its reasons, also for pods of other nodes.
    pub fn explain(&self, flow: &PolicyFlow) -> Explanation {
        let family = self.common_family(flow);
        let (from, to) = (self.party(&flow.from, family), self.party(&flow.to, family));
        let egress = self.judge(&from, &to, (Direction::Egress, flow));
        let ingress = self.judge(&to, &from, (Direction::Ingress, flow));
        let is_missing = |party: &FlowParty| matches!(party, FlowParty::NoPod(_));
        let mut verdicts = egress.iter().chain(&ingress).map(|judgement| judgement.verdict);
        let is_dropped = verdicts.any(|verdict| verdict == PolicyVerdict::Drop);
        let verdict = if is_dropped || is_missing(&from) || is_missing(&to) {
            PolicyVerdict::Drop
        } else {
            PolicyVerdict::Accept
        };
        Explanation { from, to, protocol: flow.protocol, port: flow.port, egress, ingress, verdict }
    }

    fn addresses(&self, end: &FlowEnd) -> Vec<IpAddr> {
        match end {
            FlowEnd::Address(address) => vec![*address],
            FlowEnd::Pod(uid) => {
                let pod = self.world.pods.get(uid);
                pod.and_then(|pod| pod.addresses.clone()).unwrap_or_default()
            }
        }
    }

    /// The family of the sender's first address that the receiver has, too.
    fn common_family(&self, flow: &PolicyFlow) -> Option<Family> {
        let (from, to) = (self.addresses(&flow.from), self.addresses(&flow.to));
        let families = |addresses: Vec<IpAddr>| addresses.into_iter().map(Family::of).collect::<Vec<_>>();
        let (from, to) = (families(from), families(to));
        from.iter().find(|family| to.contains(family)).or(from.first()).or(to.first()).copied()
    }

    fn party(&self, end: &FlowEnd, family: Option<Family>) -> FlowParty {
        match end {
            FlowEnd::Pod(uid) => match self.world.pods.get(uid) {
                Some(pod) if pod.is_subject() => pod_party(pod, |one| Some(Family::of(one)) == family),
                Some(pod) if pod.addresses.is_none() => {
                    let node = self.world.nodes.get(&pod.node);
                    let mut addresses = node.into_iter().flat_map(|node| node.addresses.iter().copied());
                    let address =
                        addresses.find(|one| family.is_none_or(|family| Family::of(*one) == family));
                    FlowParty::Node { name: pod.node.clone(), address }
                }
                Some(_) | None => FlowParty::NoPod(PodUid::clone(uid)),
            },
            FlowEnd::Address(address) => self.party_of_address(*address),
        }
    }

    fn party_of_address(&self, address: IpAddr) -> FlowParty {
        let owner = self.addresses.owner(address);
        match owner {
            Some(AddressOwner::Node(name)) => FlowParty::Node { name: name.clone(), address: Some(address) },
            Some(AddressOwner::LocalPod(uid) | AddressOwner::Pod(uid)) => match self.world.pods.get(uid) {
                Some(pod) => pod_party(pod, |one| one == address),
                None => FlowParty::NoPod(PodUid::clone(uid)),
            },
            None if self.networks.smallest(address).is_some() => FlowParty::Unknown(address),
            None => FlowParty::Outside(address),
        }
    }

    fn judge(
        &self,
        subject: &FlowParty,
        peer: &FlowParty,
        (direction, flow): (Direction, &PolicyFlow),
    ) -> Option<Judgement> {
        let FlowParty::Pod { uid, node, .. } = subject else { return None };
        let pod = self.world.pods.get(uid)?;
        let is_own_node = matches!(peer, FlowParty::Node { name, .. } if name == node);
        let reason = if *node == self.world.local_node && self.profile(uid).is_none() {
            JudgementReason::Closed
        } else if is_own_node && (direction == Direction::Ingress || !self.judges_own_node()) {
            JudgementReason::OwnNode
        } else {
            JudgementReason::Tiers(self.steps(pod, peer, (direction, flow))?)
        };
        let verdict = reason.verdict();
        Some(Judgement { direction, node: node.clone(), reason, verdict })
    }

    /// The properties of a peer that rules read. `node` is the node that judges the flow.
    fn peer_key(&self, peer: &FlowParty, node: &NodeName) -> Option<ClassKey> {
        let kind = match peer {
            FlowParty::Pod { uid, .. } => {
                PeerKind::Pod(Arc::new(self.uses.pod_class(&self.world.pods.get(uid)?.identity)))
            }
            FlowParty::Node { name, .. } => {
                let entry = self.world.nodes.get(name).cloned().unwrap_or_default();
                return Some(self.uses.node_class(&entry, name == node));
            }
            FlowParty::Outside(_) => PeerKind::Outside,
            FlowParty::Unknown(_) => PeerKind::Unknown,
            FlowParty::NoPod(_) => return None,
        };
        let cidrs = peer.address().map(|address| self.uses.smallest_cidr(address)).unwrap_or_default();
        Some(ClassKey { kind, cidrs })
    }

    fn steps(
        &self,
        pod: &PodEntry,
        peer: &FlowParty,
        (direction, flow): (Direction, &PolicyFlow),
    ) -> Option<Vec<TierStep>> {
        let profile = ProfileKey::of(&self.world, &self.uses, pod);
        let PerDirection { ingress, egress } = rules_of(self.rule_inputs(), &profile);
        let rules = match direction {
            Direction::Ingress => ingress,
            Direction::Egress => egress,
        };
        let key = self.peer_key(peer, &pod.node)?;
        let is_self = matches!(peer, FlowParty::Pod { uid, .. } if *uid == pod.uid);
        let namespaces = Namespaces(&self.world);
        let ports = if is_self { &profile.ports } else { key.ports() };
        Some(steps_of(&rules, |rule| {
            let is_peer = match &rule.peers {
                RulePeers::All => true,
                RulePeers::AnyOf(_) if is_self => rule.matches_self,
                RulePeers::AnyOf(predicates) => {
                    predicates.iter().any(|one: &Predicate| one.matches(&key, &namespaces))
                }
            };
            is_peer && rule.traffic.resolve(ports).contains(flow.protocol, flow.port)
        }))
    }
}

fn pod_party(pod: &PodEntry, is_chosen: impl Fn(IpAddr) -> bool) -> FlowParty {
    let address = pod.addresses.iter().flatten().copied().find(|one| is_chosen(*one));
    FlowParty::Pod { uid: PodUid::clone(&pod.uid), name: pod.name.clone(), node: pod.node.clone(), address }
}

/// The first matching rule of each tier, up to the final one.
fn steps_of(rules: &[JudgeRule], mut matches: impl FnMut(&JudgeRule) -> bool) -> Vec<TierStep> {
    let mut steps = Vec::new();
    for tier in TIERS {
        let rule = rules.iter().filter(|rule| rule.tier == tier).find(|rule| matches(rule));
        let rule = rule.map(|rule| (rule.source.clone(), rule.outcome));
        let is_final = matches!(rule, Some((_, RuleOutcome::Accept | RuleOutcome::Drop)));
        steps.push(TierStep { tier, rule });
        if is_final {
            break;
        }
    }
    steps
}

impl JudgementReason {
    fn verdict(&self) -> PolicyVerdict {
        match self {
            Self::Tiers(steps) => match steps.last().and_then(|step| step.rule.as_ref()) {
                Some((_, RuleOutcome::Drop)) => PolicyVerdict::Drop,
                Some((_, RuleOutcome::Accept | RuleOutcome::NextTier)) | None => PolicyVerdict::Accept,
            },
            Self::OwnNode => PolicyVerdict::Accept,
            Self::Closed => PolicyVerdict::Drop,
        }
    }
}
