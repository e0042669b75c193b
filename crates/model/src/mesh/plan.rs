//! What one other node needs in our kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use types::{Family, Mac, NodeName, PeerSource};

use super::changes::{PeerFdb, PeerNeighbour, PeerRoute};
use super::claims::Holders;
use super::local_node::LocalNode;
use super::path::{NoPath, PeerPath, choose, outer};
use super::sources::{senders, sources};
use crate::admission::{StoredNode, check_block};
use crate::block_layout::BlockLayout;
use crate::object::NodeRecord;

/// Another node, and what follows from its record.
#[derive(Debug, Clone)]
pub(super) struct PlannedPeer {
    pub(super) node: StoredNode,
    pub(super) plan: PeerPlan,
}

#[derive(Debug, Clone, Default)]
pub(super) struct PeerPlan {
    pub(super) paths: Vec<(IpNet, PeerPath)>,
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
    pub(super) local_node: &'a LocalNode,
    pub(super) block_layouts: &'a [BlockLayout],
    pub(super) owners: &'a BTreeMap<IpNet, NodeName>,
    pub(super) macs: &'a Holders<Mac>,
}

/// Is this block its node's, and can it be routed here?
fn admit(ground: &Ground<'_>, name: &NodeName, block: IpNet) -> Result<(), NoPath> {
    let local_node = ground.local_node;
    check_block(ground.block_layouts, ground.owners.get(&block), name, &block).map_err(NoPath::Refused)?;
    let overlaps = |ours: &&IpNet| ours.contains(&block) || block.contains(*ours);
    if let Some(ours) = local_node.blocks.iter().find(overlaps) {
        return Err(NoPath::OverlapsOwnBlock(*ours));
    }
    // A pods' network inside the nodes' larger one is common, and its blocks win there as more special routes. But a block
    // that holds a whole link's net would take the way to everybody on it.
    let holds = |net: &&IpNet| block.contains(*net);
    if let Some(net) = local_node.underlays.iter().flat_map(|underlay| &underlay.on_link).find(holds) {
        return Err(NoPath::HoldsLink(*net));
    }
    // Addresses that other records name are no reason: one record would close the routes of another.
    let mut nodes = local_node.underlays.iter().map(|underlay| underlay.address);
    match nodes.find(|address| block.contains(address)) {
        Some(address) => Err(NoPath::HoldsNode(address)),
        None => Ok(()),
    }
}

/// The node that has this one's tunnel MAC instead of it: this node itself, or the one whose record was created first.
fn rival<'a>(ground: &Ground<'a>, record: &NodeRecord) -> Option<&'a NodeName> {
    let ours = &ground.local_node.name;
    let mut holders = ground.macs.holders(record.tunnel_mac).map(Arc::as_ref);
    let first = holders.next()?;
    let winner = if first == ours { first } else { holders.find(|name| *name == ours).unwrap_or(first) };
    (*winner != record.name).then_some(winner)
}

pub(super) fn plan(ground: &Ground<'_>, record: &NodeRecord) -> PeerPlan {
    let mut plan = PeerPlan::default();
    let rival = rival(ground, record);
    let local_node = ground.local_node;
    let (mut neighbours, mut fdb, mut own) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for block in record.named_blocks() {
        let path = match admit(ground, &record.name, block) {
            Ok(()) => {
                own.push(block);
                choose(local_node, record, block, rival)
            }
            Err(reason) => PeerPath::None(reason),
        };
        let src = local_node.source(Family::of(block.addr()));
        match path {
            PeerPath::Direct { gateway, link } => {
                plan.routes.push(PeerRoute { dst: block, gateway, link, onlink: false, src });
            }
            PeerPath::Vxlan { link, gateway, remote } => {
                let (mac, onlink) = (record.tunnel_mac, gateway.is_ipv4());
                plan.routes.push(PeerRoute { dst: block, gateway, link, onlink, src });
                neighbours.insert(PeerNeighbour { link, addr: gateway, mac });
                fdb.insert(PeerFdb { link, mac, dst: remote });
            }
            PeerPath::None(_) => {}
        }
        if matches!(path, PeerPath::Vxlan { .. } | PeerPath::None(NoPath::NoTunnel(_))) {
            plan.tunnel = outer(local_node, record).map(|(family, _)| family);
        }
        plan.paths.push((block, path));
    }
    plan.neighbours.extend(neighbours);
    plan.fdb.extend(fdb);
    plan.sources = sources(&senders(local_node, record), &own);
    plan
}
