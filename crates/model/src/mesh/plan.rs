//! What one other node needs in our kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use types::{Family, Mac, NodeName, PeerSource};

use super::changes::{PeerFdb, PeerNeighbour, PeerRoute};
use super::claims::Holders;
use super::facts::Facts;
use super::sources::{senders, sources};
use super::way::{NoWay, Way, choose, outer};
use crate::admission::{StoredNode, check_block};
use crate::cut::Cut;
use crate::object::NodeRecord;

/// Another node, and what follows from its record.
#[derive(Debug, Clone)]
pub(super) struct PlannedPeer {
    pub(super) node: StoredNode,
    pub(super) plan: PeerPlan,
}

#[derive(Debug, Clone, Default)]
pub(super) struct PeerPlan {
    pub(super) ways: Vec<(IpNet, Way)>,
    pub(super) routes: Vec<PeerRoute>,
    pub(super) neighbours: Vec<PeerNeighbour>,
    pub(super) fdb: Vec<PeerFdb>,
    /// What it may send through the tunnel, whichever way this node sends.
    pub(super) sources: Vec<PeerSource>,
    /// The tunnel device that it is reached through, or would be if it existed.
    pub(super) tunnel: Option<Family>,
}

/// What all plans depend on.
pub(super) struct Ground<'a> {
    pub(super) facts: &'a Facts,
    pub(super) cuts: &'a [Cut],
    pub(super) owners: &'a BTreeMap<IpNet, NodeName>,
    pub(super) macs: &'a Holders<Mac>,
}

/// Is this block its node's, and can it be routed here?
fn admit(ground: &Ground<'_>, name: &NodeName, block: IpNet) -> Result<(), NoWay> {
    let facts = ground.facts;
    check_block(ground.cuts, ground.owners.get(&block), name, &block).map_err(NoWay::Refused)?;
    let overlaps = |ours: &&IpNet| ours.contains(&block) || block.contains(*ours);
    if let Some(ours) = facts.blocks.iter().find(overlaps) {
        return Err(NoWay::OverlapsOurs(*ours));
    }
    // A pods' network inside the nodes' larger one is common, and its blocks win there as more special routes. But a block
    // that holds a whole link's net would take the way to everybody on it.
    let holds = |net: &&IpNet| block.contains(*net);
    if let Some(net) = facts.underlays.iter().flat_map(|underlay| &underlay.on_link).find(holds) {
        return Err(NoWay::HoldsLink(*net));
    }
    // Addresses that other records name are no reason: one record would close the routes of another.
    let mut nodes = facts.underlays.iter().map(|underlay| underlay.address);
    match nodes.find(|address| block.contains(address)) {
        Some(address) => Err(NoWay::HoldsNode(address)),
        None => Ok(()),
    }
}

/// The node that has this one's tunnel MAC instead of it: this node itself, or the one whose record was created first.
fn rival<'a>(ground: &Ground<'a>, record: &NodeRecord) -> Option<&'a NodeName> {
    let ours = &ground.facts.name;
    let mut holders = ground.macs.holders(record.tunnel_mac).map(Arc::as_ref);
    let first = holders.next()?;
    let winner = if first == ours { first } else { holders.find(|name| *name == ours).unwrap_or(first) };
    (*winner != record.name).then_some(winner)
}

pub(super) fn plan(ground: &Ground<'_>, record: &NodeRecord) -> PeerPlan {
    let mut plan = PeerPlan::default();
    let rival = rival(ground, record);
    let facts = ground.facts;
    let (mut neighbours, mut fdb, mut own) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for block in record.named_blocks() {
        let way = match admit(ground, &record.name, block) {
            Ok(()) => {
                own.push(block);
                choose(facts, record, block, rival)
            }
            Err(reason) => Way::None(reason),
        };
        let src = facts.source(Family::of(block.addr()));
        match way {
            Way::Direct { gateway, link } => {
                plan.routes.push(PeerRoute { dst: block, gateway, link, onlink: false, src });
            }
            Way::Vxlan { link, gateway, remote } => {
                let (mac, onlink) = (record.tunnel_mac, gateway.is_ipv4());
                plan.routes.push(PeerRoute { dst: block, gateway, link, onlink, src });
                neighbours.insert(PeerNeighbour { link, addr: gateway, mac });
                fdb.insert(PeerFdb { link, mac, dst: remote });
            }
            Way::None(_) => {}
        }
        if matches!(way, Way::Vxlan { .. } | Way::None(NoWay::NoTunnel(_))) {
            plan.tunnel = outer(facts, record).map(|(family, _)| family);
        }
        plan.ways.push((block, way));
    }
    plan.neighbours.extend(neighbours);
    plan.fdb.extend(fdb);
    plan.sources = sources(&senders(facts, record), &own);
    plan
}
