//! The cluster's nodes, blocks and routes for the API.

use std::collections::BTreeMap;

use api::{
    AgentState, BlockView, BlocksView, Freshness, NodeView, RouteState, RouteTransport, RouteView,
    SubnetView, Timestamp,
};
use ipnet::IpNet;
use model::{BlockLayout, Mesh, ObservedPeers, PeerPath, PeerRoute, StoredNode, refusals, shared_parts};
use netlink::RtSocket;
use types::{NetworkRef, NodeName};

use super::command::StoreContents;
use super::networks::NetworkLayouts;

/// The parts of each record that peers refuse to use, and the reasons.
fn record_problems<'a>(
    contents: &'a StoreContents,
    block_layouts: &[BlockLayout],
) -> BTreeMap<&'a NodeName, Vec<String>> {
    let owners: BTreeMap<IpNet, &NodeName> =
        contents.claims.iter().map(|(_, block, name)| (*block, name)).collect();
    let mut problems: BTreeMap<&NodeName, Vec<String>> = BTreeMap::new();
    for StoredNode { record, .. } in &contents.nodes {
        let refused = refusals(record, block_layouts, |block| owners.get(block).copied());
        let sentences = refused.iter().map(|refusal| refusal.sentence(None));
        problems.entry(&record.name).or_default().extend(sentences);
    }
    for (name, problem) in shared_parts(&contents.nodes) {
        problems.entry(name).or_default().push(problem);
    }
    problems
}

/// All nodes, ordered by name.
pub(crate) fn nodes(
    contents: &StoreContents,
    block_layouts: &[BlockLayout],
    local_name: &NodeName,
) -> Vec<NodeView> {
    let mut problems = record_problems(contents, block_layouts);
    let alive_since = |name: &NodeName| contents.alive.as_ref()?.get(name).copied().map(Timestamp);
    let agent = |name: &NodeName| match &contents.alive {
        Some(alive) if alive.contains_key(name) => AgentState::Alive,
        // This agent is running, even if its lease has expired.
        _ if name == local_name => AgentState::Alive,
        Some(_) => AgentState::Away,
        None => AgentState::Unknown,
    };
    let known = contents.nodes.iter().map(|StoredNode { record, .. }| NodeView {
        name: record.name.to_string(),
        uid: Some(record.uid.to_string()),
        addresses: record.addresses.clone(),
        blocks: record.blocks.to_vec(),
        tunnel_mac: Some(record.tunnel_mac.to_string()),
        version: Some(record.version.clone()),
        agent: agent(&record.name),
        alive_since: alive_since(&record.name),
        message: None,
        refused: problems.remove(&record.name).unwrap_or_default(),
        local: record.name == *local_name,
    });
    let unread = contents.unread.iter().map(|(name, reason)| NodeView {
        name: name.to_string(),
        uid: None,
        addresses: Vec::new(),
        blocks: Vec::new(),
        tunnel_mac: None,
        version: None,
        agent: agent(name),
        alive_since: alive_since(name),
        message: Some(reason.clone()),
        refused: Vec::new(),
        local: name == local_name,
    });
    let mut nodes: Vec<NodeView> = known.chain(unread).collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    nodes
}

/// All blocks, with conflicts between claims and records.
pub(crate) fn blocks(
    (contents, freshness): (&StoreContents, Freshness),
    networks: &NetworkLayouts,
    local_name: &NodeName,
) -> BlocksView {
    let mut named: BTreeMap<IpNet, &NodeName> = BTreeMap::new();
    for StoredNode { record, .. } in &contents.nodes {
        named.extend(record.blocks.iter().map(|block| (*block, &record.name)));
    }
    let claimed: BTreeMap<IpNet, &NodeName> =
        contents.claims.iter().map(|(_, block, name)| (*block, name)).collect();
    let view = |block: IpNet, node: &NodeName, message: Option<String>| BlockView {
        block,
        node: node.to_string(),
        message,
        used: None,
        free: None,
        local: node == local_name,
    };
    let mut blocks: Vec<BlockView> = Vec::new();
    for (block, owner) in &claimed {
        let message = match named.get(block) {
            Some(name) if name == owner => None,
            Some(name) => Some(format!("the record of {name} names it, too")),
            None if contents.unread.iter().any(|(name, _)| name == *owner) => {
                Some(format!("the record of {owner} cannot be used: see `podwire nodes`"))
            }
            None => Some(format!("claimed, but the record of {owner} does not name it")),
        };
        blocks.push(view(*block, owner, message));
    }
    for (block, name) in named.iter().filter(|(block, _)| !claimed.contains_key(block)) {
        blocks.push(view(
            *block,
            name,
            Some("not claimed: its agent claims it at its next start".to_owned()),
        ));
    }
    blocks.sort_by_key(|view| view.block);
    let subnet = |(network, block_layout): (&NetworkRef, &BlockLayout)| SubnetView {
        network: network.to_string(),
        subnet: block_layout.subnet(),
        blocks: block_layout.count(),
        claimed: claimed.keys().filter(|block| block_layout.subnet().contains(*block)).count() as u64,
    };
    BlocksView { freshness, subnets: networks.entries().map(subnet).collect(), blocks }
}

/// Desired routes, observed routes, and the difference.
pub(crate) fn routes(mesh: &Mesh, observed: &ObservedPeers, socket: &mut RtSocket) -> Vec<RouteView> {
    let mut names: BTreeMap<u32, Option<String>> = BTreeMap::new();
    let mut name_of = |link: u32| {
        let query = || socket.link_at(link).ok().flatten().map(|link| link.name);
        names.entry(link).or_insert_with(query).clone()
    };
    let mut in_kernel: BTreeMap<IpNet, &PeerRoute> =
        observed.routes.iter().map(|route| (route.dst, route)).collect();
    let mut views = Vec::new();
    for (node, block, path) in mesh.paths() {
        let route = in_kernel.remove(&block);
        let (transport, gateway, link, reason) = match path {
            PeerPath::Direct { gateway, link } => (RouteTransport::Direct, Some(*gateway), Some(*link), None),
            PeerPath::Vxlan { link, gateway, .. } => {
                (RouteTransport::Vxlan, Some(*gateway), Some(*link), None)
            }
            PeerPath::None(why) => (RouteTransport::None, None, None, Some(why.to_string())),
        };
        let has_next_hop = |route: &PeerRoute| Some(route.gateway) == gateway && Some(route.link) == link;
        let (state, difference) = match route {
            Some(route) if mesh.wants_route(route) => (RouteState::Ok, None),
            Some(route) if has_next_hop(route) => {
                let difference = "right next hop, but another source address or onlink flag";
                (RouteState::Different, Some(difference.to_owned()))
            }
            Some(route) => {
                let link = name_of(route.link).unwrap_or_else(|| "no link".to_owned());
                (RouteState::Different, Some(format!("via {} dev {link}", route.gateway)))
            }
            None => (RouteState::Missing, None),
        };
        let link = link.and_then(&mut name_of);
        let (node, message) = (node.to_string(), reason.or(difference));
        views.push(RouteView { block, node: Some(node), transport, gateway, link, state, message });
    }
    views.extend(in_kernel.into_values().map(|route| RouteView {
        block: route.dst,
        node: None,
        transport: RouteTransport::None,
        gateway: Some(route.gateway),
        link: name_of(route.link),
        state: RouteState::Stale,
        message: Some("no node has this block".to_owned()),
    }));
    views.sort_by_key(|route| route.block);
    views
}
