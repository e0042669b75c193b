//! Nodes, networks, namespaces and pods.

use std::net::IpAddr;
use std::sync::Arc;

use model::Labels;
use model::objects::{Identity, NamedPort, NamespacedName};
use policy::{NodeEntry, PodEntry, PodPhase, PolicyNetwork, WorldChange};
use types::{Placement, Protocol};

use super::{GROUPS, KEYS, NAMESPACES, NETWORKS, PORT_NAMES, VALUES};
use crate::Dice;
use crate::build::{NODES, named, net, parsed};

/// Some nodes have no IPv6 addresses, some have the address of a tunnel.
pub(super) fn node(dice: &mut Dice, index: usize) -> WorldChange {
    let number = index + 1;
    let mut addresses = vec![format!("192.168.0.{number}"), format!("10.83.{number}.1")];
    if dice.chance(70) {
        addresses.extend([format!("fd00:1::{number}"), format!("fd00:88:{number}::1")]);
    }
    if dice.chance(30) {
        addresses.push(format!("172.16.0.{number}"));
    }
    let addresses = addresses.iter().map(|text| parsed(text)).collect();
    WorldChange::SetNode(named(NODES[index]), NodeEntry { addresses, labels: labels(dice, 50) })
}

pub(super) fn network(index: usize) -> WorldChange {
    let (tenant, id, v4, v6) = NETWORKS[index];
    let v6 = v6.map(|prefix| net(&format!("{prefix}::/32")));
    let subnets = std::iter::once(net(&format!("{v4}.0.0/16"))).chain(v6).collect();
    WorldChange::SetNetwork(PolicyNetwork { tenant: named(tenant), id: named(id), subnets })
}

pub(super) fn namespace(dice: &mut Dice, index: usize) -> WorldChange {
    WorldChange::SetNamespace(NAMESPACES[index].to_owned(), labels(dice, 60))
}

/// The first namespaces have most pods and policies.
pub(super) fn namespace_name(dice: &mut Dice) -> String {
    let count = if dice.chance(70) { 2 } else { NAMESPACES.len() };
    NAMESPACES[dice.below(count)].to_owned()
}

pub(super) fn labels(dice: &mut Dice, percent: usize) -> Labels {
    let keys = KEYS.into_iter().filter(|_| dice.chance(percent)).collect::<Vec<_>>();
    keys.into_iter().map(|key| (key.to_owned(), (dice.pick(&VALUES)).to_owned())).collect()
}

/// A completed pod whose addresses belong to this pod now.
pub(super) fn predecessor(dice: &mut Dice, pod: &PodEntry) -> WorldChange {
    let mut identity = (*pod.identity).clone();
    identity.labels = labels(dice, 60);
    WorldChange::SetPod(PodEntry {
        uid: Arc::from(format!("{}-old", pod.uid)),
        identity: Arc::new(identity),
        phase: PodPhase::Completed,
        ..pod.clone()
    })
}

/// Pod `number` has addresses of its own.
pub(super) fn pod(dice: &mut Dice, number: usize, networks: usize) -> WorldChange {
    let network = random_network(dice, networks);
    let node = if dice.chance(50) { 0 } else { dice.below(NODES.len()) };
    let is_completed = dice.chance(8);
    let addresses = (!dice.chance(10)).then(|| addresses(dice, network, (node, number)));
    let phase = if is_completed { PodPhase::Completed } else { PodPhase::Running };
    WorldChange::SetPod(PodEntry { phase, ..running(dice, network, (node, number), addresses) })
}

/// A running pod with addresses, on this node.
pub(super) fn running_pod(dice: &mut Dice, (node, number): (usize, usize), networks: usize) -> WorldChange {
    let network = random_network(dice, networks);
    let addresses = addresses(dice, network, (node, number));
    WorldChange::SetPod(running(dice, network, (node, number), Some(addresses)))
}

fn random_network(dice: &mut Dice, networks: usize) -> usize {
    if dice.chance(65) { 0 } else { dice.below(networks) }
}

fn running(
    dice: &mut Dice,
    network: usize,
    (node, number): (usize, usize),
    addresses: Option<Vec<IpAddr>>,
) -> PodEntry {
    let namespace = (!dice.chance(10)).then(|| namespace_name(dice));
    PodEntry {
        uid: Arc::from(format!("pod-{number}")),
        name: NamespacedName { namespace: namespace.clone(), name: format!("pod-{number}") },
        node: named(NODES[node]),
        identity: Arc::new(Identity {
            placement: placement(dice, network),
            namespace,
            labels: labels(dice, 60),
            ports: if dice.chance(60) { dice.list(0, 3, named_port) } else { Vec::new() },
        }),
        addresses,
        phase: PodPhase::Running,
    }
}

fn addresses(dice: &mut Dice, network: usize, (node, number): (usize, usize)) -> Vec<IpAddr> {
    let (_, _, v4, v6) = NETWORKS[network];
    let v4 = parsed(&format!("{v4}.{}.{}", node + 1, number + 10));
    let v6 = v6.map(|prefix| parsed(&format!("{prefix}:{}::{}", node + 1, number + 10)));
    match (dice.below(10), v6) {
        (0..=1, _) | (_, None) => vec![v4],
        (2, Some(v6)) => vec![v6],
        (_, Some(v6)) => vec![v4, v6],
    }
}

fn placement(dice: &mut Dice, network: usize) -> Placement {
    let (tenant, id, _, _) = NETWORKS[network];
    let group = dice.chance(60).then(|| named(dice.pick(&GROUPS)));
    Placement { tenant: named(tenant), network: named(id), group }
}

/// The same name can have several protocols and numbers.
fn named_port(dice: &mut Dice) -> NamedPort {
    NamedPort {
        name: (dice.pick(&PORT_NAMES)).to_owned(),
        protocol: protocol(dice),
        port: dice.pick(&[80, 81, 8080, 8090, 9153]),
    }
}

pub(super) fn protocol(dice: &mut Dice) -> Protocol {
    dice.pick(&[Protocol::Tcp, Protocol::Tcp, Protocol::Udp, Protocol::Sctp])
}
