//! An engine whose deltas are applied to a set of elements. Every change is checked.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::objects::Direction;

use super::build::node_name;
use super::kernel::{Kernel, Packet};
use crate::element::{PolicyVerdict, ProfileId};
use crate::engine::PolicyEngine;
use crate::explain::{FlowEnd, Judgement, JudgementReason, PolicyFlow};
use crate::world::{PodUid, World, WorldChange};

pub(crate) struct Lab {
    pub(crate) engine: PolicyEngine,
    pub(crate) kernel: Kernel,
}

/// A direction, a local pod, and a packet.
type Question = (Direction, PodUid, Packet);

const TRAFFIC: [(u8, u16); 12] = [
    (6, 80),
    (6, 81),
    (6, 90),
    (6, 443),
    (6, 8080),
    (17, 53),
    (17, 80),
    (132, 80),
    (1, 0),
    (58, 0),
    (47, 0),
    (6, 0),
];

impl Lab {
    /// Node `n1`.
    pub(crate) fn new() -> Self {
        let engine = PolicyEngine::new(node_name("n1"));
        let kernel = Kernel::of(&engine);
        Self { engine, kernel }
    }

    pub(crate) fn with(changes: impl IntoIterator<Item = WorldChange>) -> Self {
        let mut lab = Self::new();
        lab.apply(changes);
        lab
    }

    pub(crate) fn apply(&mut self, changes: impl IntoIterator<Item = WorldChange>) {
        self.apply_and_check(changes, &[]);
    }

    /// `outside`: addresses to test besides those of the world.
    pub(crate) fn apply_and_check(
        &mut self,
        changes: impl IntoIterator<Item = WorldChange>,
        outside: &[IpAddr],
    ) {
        let (old_kernel, old_world) = (self.kernel.clone(), self.engine.world().clone());
        let delta = self.engine.apply(changes);
        self.kernel.set(&delta);
        let between = self.kernel.clone();
        self.kernel.finish(&delta);
        self.kernel.profiles.retain(|pod, _| self.engine.profile(pod).is_some());
        let expected = Kernel::of(&self.engine);
        assert_eq!(self.kernel.elements, expected.elements);
        assert_eq!(self.kernel.profiles, expected.profiles);
        assert!(self.engine.apply([]).is_empty());
        for question in self.questions(outside) {
            let old = verdict(&old_kernel, &question);
            let new = verdict(&self.kernel, &question);
            let kept = old_kernel.profiles.get(&question.1) == self.kernel.profiles.get(&question.1);
            if old == new && kept && is_same_peer(&old_world, self.engine.world(), &question) {
                assert_eq!(verdict(&between, &question), new, "between: {question:?}");
            }
            self.check_explanation(&question, new);
        }
    }

    /// Compares with an engine that gets the same world at once.
    pub(crate) fn check_against_new_engine(&self, outside: &[IpAddr]) {
        let mut other = PolicyEngine::new(self.engine.world().local_node.clone());
        other.apply(changes_of(self.engine.world()));
        assert_eq!(other.world(), self.engine.world());
        let other = Kernel::of(&other);
        assert_eq!(other.elements.len(), self.kernel.elements.len());
        for question in self.questions(outside) {
            assert_eq!(verdict(&self.kernel, &question), verdict(&other, &question), "{question:?}");
        }
    }

    fn questions(&self, outside: &[IpAddr]) -> Vec<Question> {
        let world = self.engine.world();
        let mut peers = outside.to_vec();
        peers.extend(world.pods.values().flat_map(|pod| pod.addresses.iter().flatten()));
        peers.extend(world.nodes.values().flat_map(|node| &node.addresses));
        peers.extend(["192.0.2.1", "2001:db8::1"].map(|text| text.parse::<IpAddr>().unwrap()));
        peers.sort_unstable();
        peers.dedup();
        let mut questions = Vec::new();
        for (uid, _) in self.engine.profiles() {
            for own in world.pods[uid].addresses.iter().flatten() {
                for peer in peers.iter().filter(|peer| peer.is_ipv4() == own.is_ipv4()) {
                    for (protocol, port) in TRAFFIC {
                        let packet =
                            |from: &IpAddr, to: &IpAddr| Packet { from: *from, to: *to, protocol, port };
                        questions.push((Direction::Ingress, uid.clone(), packet(peer, own)));
                        questions.push((Direction::Egress, uid.clone(), packet(own, peer)));
                    }
                }
            }
        }
        questions
    }

    fn check_explanation(&self, question: &Question, expected: Option<PolicyVerdict>) {
        let (direction, uid, packet) = question;
        let own = match direction {
            Direction::Ingress => packet.to,
            Direction::Egress => packet.from,
        };
        // Of two pods with one address, only the first counts.
        let owner = self.engine.addresses.owner(own);
        if owner != Some(&crate::address::AddressOwner::LocalPod(uid.clone())) {
            return;
        }
        let flow = PolicyFlow {
            from: FlowEnd::Address(packet.from),
            to: FlowEnd::Address(packet.to),
            protocol: packet.protocol,
            port: packet.port,
        };
        let explanation = self.engine.explain(&flow);
        let judgement: Judgement = match direction {
            Direction::Ingress => explanation.ingress.clone(),
            Direction::Egress => explanation.egress.clone(),
        }
        .unwrap();
        if judgement.reason != JudgementReason::OwnNode {
            assert_eq!(Some(judgement.verdict), expected, "{question:?}\n{explanation:#?}");
        }
    }

    /// Whether a flow between addresses or uids of pods is accepted in both directions.
    pub(crate) fn accepts(&self, from: &str, to: &str, (protocol, port): (u8, u16)) -> bool {
        let end = |text: &str| match text.parse() {
            Ok(address) => FlowEnd::Address(address),
            Err(_) => FlowEnd::Pod(text.into()),
        };
        let flow = PolicyFlow { from: end(from), to: end(to), protocol, port };
        self.engine.explain(&flow).verdict == PolicyVerdict::Accept
    }
}

pub(crate) const ICMP: (u8, u16) = (1, 0);

#[expect(non_snake_case, reason = "reads like a protocol and its port")]
pub(crate) fn TCP(port: u16) -> (u8, u16) {
    (6, port)
}

#[expect(non_snake_case, reason = "reads like a protocol and its port")]
pub(crate) fn UDP(port: u16) -> (u8, u16) {
    (17, port)
}

#[expect(non_snake_case, reason = "reads like a protocol and its port")]
pub(crate) fn SCTP(port: u16) -> (u8, u16) {
    (132, port)
}

fn verdict(kernel: &Kernel, (direction, pod, packet): &Question) -> Option<PolicyVerdict> {
    let profile: ProfileId = *kernel.profiles.get(pod)?;
    Some(kernel.verdict(*direction, profile, *packet))
}

/// The peer's address belongs to the same unchanged pod or node as before.
fn is_same_peer(old: &World, new: &World, (direction, _, packet): &Question) -> bool {
    let peer = match direction {
        Direction::Ingress => packet.from,
        Direction::Egress => packet.to,
    };
    let owners = |world: &World| {
        let pods = world.pods.values();
        let pods = pods.filter(|pod| pod.addresses.iter().flatten().any(|address| *address == peer));
        pods.cloned().collect::<Vec<_>>()
    };
    owners(old) == owners(new)
}

/// Changes that create a world.
pub(crate) fn changes_of(world: &World) -> Vec<WorldChange> {
    let mut changes = Vec::new();
    changes.extend(world.pods.values().cloned().map(WorldChange::SetPod));
    changes.extend(world.cluster_policies.values().cloned().map(WorldChange::SetClusterPolicy));
    changes.extend(world.network_policies.values().cloned().map(WorldChange::SetNetworkPolicy));
    changes.extend(world.namespaces.iter().map(|(k, v)| WorldChange::SetNamespace(k.clone(), v.clone())));
    changes.extend(world.shares.values().cloned().map(WorldChange::SetShare));
    changes.extend(world.group_policies.values().cloned().map(WorldChange::SetGroupPolicy));
    changes.extend(world.groups.values().cloned().map(WorldChange::SetGroup));
    changes.extend(world.tenants.values().cloned().map(WorldChange::SetTenant));
    changes.extend(world.networks.values().cloned().map(WorldChange::SetNetwork));
    changes.extend(world.nodes.iter().map(|(k, v)| WorldChange::SetNode(k.clone(), v.clone())));
    changes
}

/// Changes that empty a world.
pub(crate) fn removal_of(world: &World) -> Vec<WorldChange> {
    let mut names: BTreeMap<usize, WorldChange> = BTreeMap::new();
    let mut push = |change| drop(names.insert(names.len(), change));
    world.tenants.keys().for_each(|name| push(WorldChange::RemoveTenant(name.clone())));
    world
        .groups
        .keys()
        .for_each(|(tenant, name)| push(WorldChange::RemoveGroup(tenant.clone(), name.clone())));
    let policies = world.group_policies.keys();
    policies.for_each(|(tenant, name)| push(WorldChange::RemoveGroupPolicy(tenant.clone(), name.clone())));
    world
        .shares
        .keys()
        .for_each(|(tenant, name)| push(WorldChange::RemoveShare(tenant.clone(), name.clone())));
    world.namespaces.keys().for_each(|name| push(WorldChange::RemoveNamespace(name.clone())));
    let policies = world.network_policies.keys();
    policies.for_each(|(space, name)| push(WorldChange::RemoveNetworkPolicy(space.clone(), name.clone())));
    world.cluster_policies.keys().for_each(|name| push(WorldChange::RemoveClusterPolicy(name.clone())));
    world
        .networks
        .keys()
        .for_each(|(tenant, id)| push(WorldChange::RemoveNetwork(tenant.clone(), id.clone())));
    world.nodes.keys().for_each(|name| push(WorldChange::RemoveNode(name.clone())));
    world.pods.keys().for_each(|uid| push(WorldChange::RemovePod(uid.clone())));
    names.into_values().collect()
}
