//! All flows that rules can distinguish.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use model::objects::{
    ClusterPeer, ClusterProtocol, Direction, GroupPeer, NetworkPolicyPeer, PortMatch, PortRange,
};
use policy::{PodPhase, World};
use types::{Family, Protocol};

use crate::build::parsed;
use crate::{Dice, Flow, JudgedFlow};

/// ICMP, GRE, ICMPv6 and OSPF.
const WITHOUT_PORTS: [u8; 4] = [1, 47, 58, 89];

/// Addresses inside and outside of networks, that no pod or node of a random world has.
const OTHERS: [&str; 9] = [
    "10.83.1.200",
    "10.84.9.9",
    "10.85.1.9",
    "fd00:88:1::200",
    "fd00:89:9::9",
    "8.8.8.8",
    "203.0.113.5",
    "2001:db8::5",
    "2606::5",
];

/// Each local pod with each kind of address, in both directions, around all ports of rules. Flows from a node to its own pods are left
/// out, because they do not pass the firewall's hook. Addresses with two owners are left out, too.
pub fn flows(world: &World) -> Vec<JudgedFlow> {
    some_flows(world, &mut Dice::new(0), 100)
}

/// A part of the flows, in percent. Each pair of addresses has at least one.
pub fn some_flows(world: &World, dice: &mut Dice, percent: usize) -> Vec<JudgedFlow> {
    let transports = transports(world);
    let peers: Vec<IpAddr> = peers(world).into_iter().filter(|one| !is_ambiguous(world, *one)).collect();
    let mut flows = Vec::new();
    for (pod, own) in local_addresses(world) {
        for peer in peers.iter().copied().filter(|peer| Family::of(*peer) == Family::of(own)) {
            for direction in [Direction::Ingress, Direction::Egress] {
                if direction == Direction::Ingress && is_own_node(world, peer) {
                    continue;
                }
                let (source, destination) = match direction {
                    Direction::Ingress => (peer, own),
                    Direction::Egress => (own, peer),
                };
                let first = dice.below(transports.len());
                for (index, (protocol, port)) in transports.iter().copied().enumerate() {
                    if index == first || percent == 100 || dice.chance(percent) {
                        let flow = Flow { source, destination, protocol, port };
                        flows.push(JudgedFlow { pod: std::sync::Arc::clone(pod), direction, flow });
                    }
                }
            }
        }
    }
    flows
}

/// Whether several running pods or nodes have this address.
pub fn is_ambiguous(world: &World, address: IpAddr) -> bool {
    let running = world.pods.values().filter(|pod| pod.phase == PodPhase::Running);
    let pods = running.filter_map(|pod| pod.addresses.as_ref());
    let nodes = world.nodes.values().map(|node| &node.addresses);
    pods.chain(nodes).filter(|list| list.contains(&address)).count() > 1
}

fn local_addresses(world: &World) -> impl Iterator<Item = (&policy::PodUid, IpAddr)> {
    let local =
        world.pods.values().filter(|pod| pod.node == world.local_node && pod.phase == PodPhase::Running);
    local
        .flat_map(|pod| pod.addresses.iter().flatten().map(move |address| (&pod.uid, *address)))
        .filter(|(_, address)| !is_ambiguous(world, *address))
}

fn is_own_node(world: &World, address: IpAddr) -> bool {
    world.nodes.get(&world.local_node).is_some_and(|node| node.addresses.contains(&address))
}

fn peers(world: &World) -> BTreeSet<IpAddr> {
    let pods = world.pods.values().filter_map(|pod| pod.addresses.as_ref()).flatten().copied();
    let nodes = world.nodes.values().flat_map(|node| &node.addresses).copied();
    let others = OTHERS.into_iter().map(parsed);
    pods.chain(nodes).chain(others).chain(blocks(world).into_iter().flat_map(edges)).collect()
}

/// The first and the last address of a block, and the next one outside.
fn edges(block: IpNet) -> Vec<IpAddr> {
    let (first, last) = (block.network(), block.broadcast());
    let next = match last {
        IpAddr::V4(last) => u32::from(last).checked_add(1).map(|next| IpAddr::V4(next.into())),
        IpAddr::V6(last) => u128::from(last).checked_add(1).map(|next| IpAddr::V6(next.into())),
    };
    [Some(first), Some(last), next].into_iter().flatten().collect()
}

fn blocks(world: &World) -> Vec<IpNet> {
    let mut blocks: Vec<IpNet> =
        world.networks.values().flat_map(|network| network.subnets.clone()).collect();
    for policy in world.network_policies.values() {
        let rules = [&policy.ingress, &policy.egress].into_iter().flatten().flatten();
        for peer in rules.flat_map(|rule| &rule.peers) {
            if let NetworkPolicyPeer::Block { cidr, except } = peer {
                blocks.push(*cidr);
                blocks.extend(except);
            }
        }
    }
    for rule in world.cluster_policies.values().flat_map(|policy| &policy.egress) {
        for peer in &rule.peers {
            if let ClusterPeer::Networks(nets) = peer {
                blocks.extend(nets);
            }
        }
    }
    for rule in world.group_policies.values().flat_map(|policy| &policy.rules) {
        if let GroupPeer::Block(block) = rule.peer {
            blocks.push(block);
        }
    }
    blocks
}

/// Protocols with the ports before, at and after the ends of all ranges.
fn transports(world: &World) -> Vec<(u8, Option<u16>)> {
    let ranges = ranges(world);
    let mut found: BTreeSet<(u8, Option<u16>)> = WITHOUT_PORTS.map(|number| (number, None)).into();
    for protocol in Protocol::ALL {
        let of_protocol = ranges.iter().filter(|(one, _)| *one == protocol).map(|(_, range)| range);
        let ports = of_protocol.flat_map(|range| {
            let (first, last) = (range.first(), range.last());
            [first.saturating_sub(1), first, last, last.saturating_add(1)]
        });
        // One port that no rule names.
        found.extend(ports.chain([7]).map(|port| (protocol.number(), Some(port))));
    }
    found.into_iter().collect()
}

fn ranges(world: &World) -> BTreeSet<(Protocol, PortRange)> {
    let mut found = BTreeSet::new();
    let mut add = |protocol, port: &PortMatch| {
        if let PortMatch::Range(range) = port {
            found.insert((protocol, *range));
        }
    };
    for policy in world.network_policies.values() {
        let rules = [&policy.ingress, &policy.egress].into_iter().flatten().flatten();
        rules.flat_map(|rule| &rule.ports).for_each(|port| add(port.protocol, &port.port));
    }
    for policy in world.cluster_policies.values() {
        for one in policy.ingress.iter().chain(&policy.egress).flat_map(|rule| &rule.protocols) {
            match one {
                ClusterProtocol::Ports { protocol, port } => add(*protocol, port),
                ClusterProtocol::NamedPort(_) => {}
            }
        }
    }
    let rules = world.group_policies.values().flat_map(|policy| &policy.rules);
    // A rule for all protocols can have ports, too.
    let of_groups = rules.filter_map(|rule| rule.ports);
    found.extend(of_groups.flat_map(|range| Protocol::ALL.map(|protocol| (protocol, range))));
    found.extend(world.shares.values().flat_map(|share| share.ports.iter().copied()));
    let named = world.pods.values().flat_map(|pod| &pod.identity.ports);
    found.extend(named.map(|port| (port.protocol, PortRange::single(port.port))));
    found
}
