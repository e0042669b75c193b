//! The kernel objects that one other node needs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use types::{Family, Mac, NodeName, PeerSource};

use super::changes::{PeerFdb, PeerNeighbour, PeerRoute};
use super::claims::Holders;
use super::local_node::LocalNode;
use super::path::{NoPath, PeerPath, choose, outer};
use super::sources::{link_sources, senders, sources};
use crate::admission::{StoredNode, check_block};
use crate::object::NodeRecord;

/// Another node, and the plan for its record.
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
    /// Sources that the node may use, regardless of the path to it.
    pub(super) sources: Vec<PeerSource>,
    /// The outer family of the tunnel device that is needed for the node. The device may not exist yet.
    pub(super) tunnel: Option<Family>,
}

/// The state that all plans depend on.
pub(super) struct PlanInputs<'a> {
    pub(super) local_node: &'a LocalNode,
    pub(super) owners: &'a BTreeMap<IpNet, NodeName>,
    pub(super) macs: &'a Holders<Mac>,
}

/// Whether the node owns this block, and the block can be routed here.
fn check_routable(inputs: &PlanInputs<'_>, name: &NodeName, block: IpNet) -> Result<(), NoPath> {
    let local_node = inputs.local_node;
    check_block(&local_node.block_layouts, inputs.owners.get(&block), name, &block)
        .map_err(NoPath::Refused)?;
    let overlaps = |own: &&IpNet| own.contains(&block) || block.contains(*own);
    if let Some(own) = local_node.blocks.iter().find(overlaps) {
        return Err(NoPath::OverlapsOwnBlock(*own));
    }
    // A pod network inside a larger network of the nodes is common: its blocks are more specific routes. But a block that
    // contains the whole network of a link would replace the routes to all hosts on that link.
    let holds = |net: &&IpNet| block.contains(*net);
    if let Some(net) = local_node.underlays.iter().flat_map(|underlay| &underlay.on_link).find(holds) {
        return Err(NoPath::HoldsLink(*net));
    }
    // Addresses in other records are not checked: a record must not be able to remove routes of another one.
    let mut nodes = local_node.underlays.iter().map(|underlay| underlay.address);
    match nodes.find(|address| block.contains(address)) {
        Some(address) => Err(NoPath::HoldsNode(address)),
        None => Ok(()),
    }
}

/// The node that uses this record's tunnel MAC instead: the local node, or the node with the record that was created first.
fn mac_conflict<'a>(inputs: &PlanInputs<'a>, record: &NodeRecord) -> Option<&'a NodeName> {
    let own = &inputs.local_node.name;
    let mut holders = inputs.macs.holders(record.tunnel_mac).map(Arc::as_ref);
    let first = holders.next()?;
    let winner = if first == own { first } else { holders.find(|name| *name == own).unwrap_or(first) };
    (*winner != record.name).then_some(winner)
}

pub(super) fn plan(inputs: &PlanInputs<'_>, record: &NodeRecord) -> PeerPlan {
    let mut plan = PeerPlan::default();
    let mac_conflict = mac_conflict(inputs, record);
    let local_node = inputs.local_node;
    let (mut neighbours, mut fdb, mut routable) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for block in record.named_blocks() {
        let path = match check_routable(inputs, &record.name, block) {
            Ok(()) => {
                routable.push(block);
                choose(local_node, record, block, mac_conflict)
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
    plan.sources = sources(&senders(local_node, record), &routable);
    plan.sources.extend(link_sources(record, &routable));
    plan
}
