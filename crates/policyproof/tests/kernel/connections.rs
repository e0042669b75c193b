//! Random worlds with real connections: each probe is decided as the naive model says, at the same node and in the same direction,
//! and the engines of all nodes explain this.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use model::objects::Direction;
use netlink::{Op, RtSocket};
use policy::{
    FlowEnd, Judgement, PodPhase, PodUid, PolicyEngine, PolicyFlow, PolicyVerdict, ProfileId, World,
};
use policyproof::build::NODES;
use policyproof::worlds::{is_ambiguous, random_world_of, transition};
use policyproof::{Dice, Flow, JudgedFlow, compare};
use types::{Family, NodeName, Protocol};

use crate::common;
use crate::node::Node;
use crate::probes::{Decision, Observers, Probe};
use crate::site::{At, OUTSIDE, PORTS, SERVICE_PORTS, Site, link, service};

/// Probes of one world.
const PROBES: usize = 150;

struct Lab {
    site: Site,
    nodes: Vec<Node>,
    observers: Observers,
    world: World,
}

/// The world as a node sees it.
fn at_node(world: &World, node: usize) -> World {
    World { local_node: NodeName::try_from(NODES[node]).unwrap(), ..world.clone() }
}

impl Lab {
    fn new(node_of: &[usize]) -> Self {
        let site = Site::new(node_of);
        let node = |index| {
            let engine = PolicyEngine::new(NodeName::try_from(NODES[index]).unwrap());
            site.inside(At::Node(index), || Node::new(engine))
        };
        let nodes = (0..site.nodes()).map(node).collect();
        let world = World::new(NodeName::try_from(NODES[0]).unwrap());
        Self { nodes, observers: Observers::new(&site), site, world }
    }

    /// Changes all nodes to the next world, and forgets flows of the world before.
    fn set_world(&mut self, world: World) {
        let changes = transition(&self.world, &world);
        for (index, node) in self.nodes.iter_mut().enumerate() {
            let (site, changes) = (&self.site, changes.clone());
            site.inside(At::Node(index), || {
                node.apply(changes, |profiles| set_groups(profiles.iter().cloned()));
                let closed =
                    site.node_of.iter().enumerate().filter(|(_, of)| **of == index).map(|(n, _)| uid(n));
                let closed = closed.filter(|uid| !node.profiles.contains_key(uid));
                set_groups(closed.map(|uid| (uid, ProfileId::CLOSED)));
                for family in [Family::V4, Family::V6] {
                    nft::conntrack::sweep(family, &|_| true).unwrap();
                }
            });
        }
        self.world = world;
    }

    /// Running pods, nodes and the outside host, with their addresses in this world.
    fn ends(&self) -> Vec<(At, IpAddr)> {
        let pods = (0..self.site.node_of.len()).flat_map(|number| {
            let pod = self.world.pods.get(&uid(number)).filter(|pod| pod.phase == PodPhase::Running);
            pod.into_iter()
                .flat_map(|pod| pod.addresses.iter().flatten())
                .map(move |ip| (At::Pod(number), *ip))
        });
        let nodes = (0..self.site.nodes()).flat_map(|index| {
            let node = self.world.nodes.get(&NodeName::try_from(NODES[index]).unwrap());
            node.into_iter().flat_map(|node| &node.addresses).map(move |ip| (At::Node(index), *ip))
        });
        let outside = OUTSIDE.into_iter().map(|text| (At::Outside, text.parse().unwrap()));
        // The address of a tunnel exists in the world only.
        let exists = |(_, ip): &(At, IpAddr)| !ip.to_string().starts_with("172.16.");
        let all = pods.chain(nodes).chain(outside).filter(exists);
        all.filter(|(_, ip)| !is_ambiguous(&self.world, *ip)).collect()
    }

    /// Random probes of which one end is a pod, by its address or its service address.
    fn probes(&self, dice: &mut Dice) -> Vec<Probe> {
        let ends = self.ends();
        let is_pod = |at: At| matches!(at, At::Pod(_));
        let mut probes = Vec::new();
        while probes.len() < PROBES {
            let ((from, source), (to, receiver)) = (dice.pick(&ends), dice.pick(&ends));
            let (protocol, port) = (dice.pick(&[Protocol::Tcp, Protocol::Udp]), dice.pick(&PORTS));
            // Packets of a pod to its own address leave it only by the service. The answers do not pass the node, so a connection
            // would not be established.
            let is_self = from == to;
            if source.is_ipv4() != receiver.is_ipv4()
                || !(is_pod(from) || is_pod(to))
                || is_self && (source != receiver || protocol == Protocol::Tcp)
            {
                continue;
            }
            let by_service = is_self || is_pod(to) && is_pod(from) && dice.chance(50);
            let target = if by_service {
                SocketAddr::new(service(receiver), port + SERVICE_PORTS)
            } else {
                SocketAddr::new(receiver, port)
            };
            probes.push(Probe {
                from,
                to,
                source,
                target,
                receiver: SocketAddr::new(receiver, port),
                protocol,
            });
        }
        probes
    }

    /// The first node on the way that denies the flow, by the naive model.
    fn expected(&self, probe: &Probe) -> Decision {
        let flow = Flow {
            source: probe.source,
            destination: probe.receiver.ip(),
            protocol: probe.protocol.number(),
            port: Some(probe.receiver.port()),
        };
        let worlds = (0..self.site.nodes()).map(|node| (node, at_node(&self.world, node)));
        let mut denied: Vec<(Direction, usize)> = worlds
            .flat_map(|(node, world)| {
                let judged = JudgedFlow::of(&world, &flow).into_iter();
                let denies = |flow: &JudgedFlow| {
                    compare::expected(&world, flow).is_some_and(|it| it.verdict == PolicyVerdict::Drop)
                };
                judged.filter(denies).map(|flow| (flow.direction, node)).collect::<Vec<_>>()
            })
            .collect();
        denied.sort_by_key(|(direction, _)| *direction == Direction::Ingress);
        denied.first().map_or(Decision::Arrived, |(direction, node)| Decision::Denied(*node, *direction))
    }

    /// The result that the engine of a node explains, which has no nodes.
    fn explained(&self, node: usize, probe: &Probe) -> Option<Direction> {
        let explained = self.nodes[node].engine.explain(&PolicyFlow {
            from: FlowEnd::Address(probe.source),
            to: FlowEnd::Address(probe.receiver.ip()),
            protocol: probe.protocol.number(),
            port: probe.receiver.port(),
        });
        let is_dropped =
            |end: &Option<Judgement>| end.as_ref().is_some_and(|end| end.verdict == PolicyVerdict::Drop);
        if is_dropped(&explained.egress) {
            Some(Direction::Egress)
        } else {
            is_dropped(&explained.ingress).then_some(Direction::Ingress)
        }
    }

    fn compare(&mut self, seed: u64) -> Vec<(Probe, Decision)> {
        self.set_world(random_world_of(&self.site.node_of, seed));
        let probes = self.probes(&mut Dice::new(seed));
        let decisions = self.observers.decide(&self.site, &probes);
        for (probe, decision) in probes.iter().zip(&decisions) {
            let expected = self.expected(probe);
            assert_eq!(*decision, expected, "seed {seed}: {probe:?}\n{:#?}", self.world);
            let direction = match decision {
                Decision::Arrived => None,
                Decision::Denied(_, direction) => Some(*direction),
            };
            for node in 0..self.nodes.len() {
                assert_eq!(
                    self.explained(node, probe),
                    direction,
                    "seed {seed}, explained by node {node}: {probe:?}"
                );
            }
        }
        probes.into_iter().zip(decisions).collect()
    }
}

fn uid(number: usize) -> PodUid {
    Arc::from(format!("pod-{number}"))
}

/// Sets the groups of the links of pods on the node of the calling thread.
fn set_groups(profiles: impl Iterator<Item = (PodUid, ProfileId)>) {
    let mut socket = RtSocket::open().unwrap();
    for (uid, profile) in profiles {
        let number = uid.strip_prefix("pod-").and_then(|number| number.parse().ok()).unwrap();
        let link = socket.link(&link(number)).unwrap().unwrap().index;
        socket.run(&Op::SetLinkGroup { link, group: profile.0 }).unwrap();
    }
}

fn compare_connections(node_of: &[usize], worlds: u64) {
    let (started, mut lab) = (Instant::now(), Lab::new(node_of));
    let seeds = common::seeds(worlds);
    let decided: Vec<(Probe, Decision)> = seeds.clone().flat_map(|seed| lab.compare(seed)).collect();
    let count = |of: &dyn Fn(&Probe) -> bool| {
        let of_direction = |direction: Option<Direction>| {
            let is_counted = |decision: &Decision| match decision {
                Decision::Arrived => direction.is_none(),
                Decision::Denied(_, of) => direction == Some(*of),
            };
            decided.iter().filter(|(probe, decision)| of(probe) && is_counted(decision)).count()
        };
        [None, Some(Direction::Egress), Some(Direction::Ingress)].map(of_direction)
    };
    let by_service = |probe: &Probe| probe.target != probe.receiver;
    let to_own_node = |probe: &Probe| match (probe.from, probe.to) {
        (At::Pod(number), At::Node(node)) => node_of[number] == node,
        (At::Pod(_) | At::Node(_) | At::Outside, _) => false,
    };
    let (all, services) = (count(&|_| true), count(&by_service));
    let (itself, own_node) = (count(&|probe| probe.from == probe.to), count(&to_own_node));
    println!(
        "{} worlds in {:?}; accepted, denied at egress, denied at ingress: all {all:?}, by service {services:?}, \
         to the pod itself {itself:?}, to its own node {own_node:?}",
        seeds.count(),
        started.elapsed()
    );
    assert!(all.iter().all(|of| of * 20 > decided.len()), "one result is rare");
    assert!(services.iter().all(|of| *of > 0));
    assert!(itself[0] > 0 && itself[1] > 0 && own_node[0] > 0 && own_node[1] > 0);
}

#[test]
fn d_real_connections_on_one_node_get_the_verdicts_of_the_naive_model() {
    compare_connections(&[0, 0, 0, 0], 30);
}

#[test]
fn d_real_connections_between_two_nodes_get_the_verdicts_of_the_naive_model() {
    compare_connections(&[0, 0, 0, 1, 1, 1], 30);
}
