//! The naive model: loops over all objects for each flow, without any preparation. Each tier is a function of its own.
//! Comments in quotation marks are clauses of the policy specification.

mod cluster;
mod group;
mod network_policy;
mod peer;
mod ports;
mod tenant;

use std::fmt;
use std::net::IpAddr;

use model::objects::{ClusterTier, Direction};
use policy::{PodEntry, PodPhase, PolicyVerdict, World};

use crate::Flow;
use peer::Peer;

/// The tier that decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NaiveTier {
    /// A node and its own pods: flows to the pods are never judged.
    OwnNode,
    Admin,
    Tenant,
    Group,
    NetworkPolicy,
    Baseline,
    /// No tier decided.
    Default,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NaiveJudgement {
    pub verdict: PolicyVerdict,
    pub tier: NaiveTier,
}

/// The judgements of a flow at the pods of the local node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NaiveVerdict {
    /// None if the source is not a local pod.
    pub egress: Option<NaiveJudgement>,
    /// None if the destination is not a local pod.
    pub ingress: Option<NaiveJudgement>,
}

impl NaiveVerdict {
    /// Both ends must accept.
    pub fn verdict(&self) -> PolicyVerdict {
        let is_dropped =
            [self.egress, self.ingress].into_iter().flatten().any(|one| one.verdict == PolicyVerdict::Drop);
        if is_dropped { PolicyVerdict::Drop } else { PolicyVerdict::Accept }
    }
}

impl fmt::Display for NaiveJudgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} by {:?}", self.verdict, self.tier)
    }
}

/// Judges egress at a local source pod and ingress at a local destination pod.
pub fn verdict(world: &World, flow: &Flow) -> NaiveVerdict {
    let at = |address, direction| {
        let pod = pod_at(world, address).filter(|pod| pod.node == world.local_node)?;
        Some(judge(world, pod, direction, flow))
    };
    NaiveVerdict {
        egress: at(flow.source, Direction::Egress),
        ingress: at(flow.destination, Direction::Ingress),
    }
}

/// Judges one direction at a pod of any node.
pub fn judge(world: &World, pod: &PodEntry, direction: Direction, flow: &Flow) -> NaiveJudgement {
    let question =
        JudgedEnd { world, pod, direction, flow, peer: Peer::of(world, pod, flow.peer(direction)) };
    own_node(&question)
        .or_else(|| cluster::judge(&question, ClusterTier::Admin))
        .or_else(|| tenant::judge(&question))
        .or_else(|| group::judge(&question))
        .or_else(|| network_policy::judge(&question))
        .or_else(|| cluster::judge(&question, ClusterTier::Baseline))
        .unwrap_or_else(|| NaiveJudgement::accept(NaiveTier::Default))
}

/// The running pod with this address. Completed pods are ignored, because their addresses may belong to other pods.
pub fn pod_at(world: &World, address: IpAddr) -> Option<&PodEntry> {
    world.pods.values().find(|pod| {
        pod.phase == PodPhase::Running && pod.addresses.as_ref().is_some_and(|list| list.contains(&address))
    })
}

/// A flow, as one of its ends judges it.
struct JudgedEnd<'a> {
    world: &'a World,
    pod: &'a PodEntry,
    direction: Direction,
    flow: &'a Flow,
    peer: Peer<'a>,
}

impl NaiveJudgement {
    fn accept(tier: NaiveTier) -> Self {
        Self { verdict: PolicyVerdict::Accept, tier }
    }

    fn drop(tier: NaiveTier) -> Self {
        Self { verdict: PolicyVerdict::Drop, tier }
    }
}

/// "Host → local pod (kubelet probes) is never judged."
fn own_node(question: &JudgedEnd<'_>) -> Option<NaiveJudgement> {
    let is_probe = question.direction == Direction::Ingress && question.peer.is_own_node(question.pod);
    is_probe.then(|| NaiveJudgement::accept(NaiveTier::OwnNode))
}
