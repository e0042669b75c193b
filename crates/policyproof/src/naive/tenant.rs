//! Tier 2: tenants and shares.

use model::objects::{Direction, NodeAccess, Share, SharedPart};
use policy::PodEntry;

use super::peer::Peer;
use super::{JudgedEnd, NaiveJudgement, NaiveTier};

/// "Same tenant, a share, or a peer that is not a pod → pass; else deny. `tenant.nodes: allow|deny`." "Pod → own node is exempt from
/// tenants." "An address inside a network's CIDR without a record is UNKNOWN: the tenant tier denies it."
pub(super) fn judge(question: &JudgedEnd<'_>) -> Option<NaiveJudgement> {
    let passes = match &question.peer {
        Peer::Itself { .. } | Peer::Outside { .. } => true,
        Peer::Unknown { .. } => false,
        Peer::Node { .. } => question.peer.is_own_node(question.pod) || allows_nodes(question),
        Peer::Pod { pod, .. } => tenant(pod) == tenant(question.pod) || is_shared(question, pod),
    };
    (!passes).then(|| NaiveJudgement::drop(NaiveTier::Tenant))
}

fn tenant(pod: &PodEntry) -> &types::TenantName {
    &pod.identity.placement.tenant
}

/// "A missing tenant has the default settings."
fn allows_nodes(question: &JudgedEnd<'_>) -> bool {
    let access =
        question.world.tenants.get(tenant(question.pod)).map_or(NodeAccess::default(), |found| found.nodes);
    match access {
        NodeAccess::Allow => true,
        NodeAccess::Deny => false,
    }
}

/// A share lets pods of other tenants open flows to pods of its owner, never the other way round.
fn is_shared(question: &JudgedEnd<'_>, peer: &PodEntry) -> bool {
    let (client, server) = match question.direction {
        Direction::Ingress => (peer, question.pod),
        Direction::Egress => (question.pod, peer),
    };
    question.world.shares.values().any(|share| {
        share.tenant == *tenant(server)
            && contains(share, server)
            && (share.with.is_empty() || share.with.contains(tenant(client)))
            && matches_ports(question, share)
    })
}

fn contains(share: &Share, pod: &PodEntry) -> bool {
    match &share.part {
        SharedPart::AllPods => true,
        SharedPart::Network(id) => pod.identity.placement.network == *id,
        SharedPart::Group(group) => pod.identity.placement.group.as_ref() == Some(group),
    }
}

fn matches_ports(question: &JudgedEnd<'_>, share: &Share) -> bool {
    share.ports.is_empty()
        || share.ports.iter().any(|(protocol, range)| {
            question.flow.protocol == protocol.number()
                && question.flow.port.is_some_and(|port| range.contains(port))
        })
}
