use std::net::IpAddr;

use ipnet::IpNet;
use model::Labels;
use policy::{NodeEntry, PodEntry, World};
use types::NodeName;

/// The other end of a flow.
pub(super) enum Peer<'a> {
    /// The pod itself.
    Itself {
        pod: &'a PodEntry,
    },
    Pod {
        pod: &'a PodEntry,
        address: IpAddr,
    },
    /// A node, also for pods that use its network.
    Node {
        name: &'a NodeName,
        node: &'a NodeEntry,
    },
    /// An address inside of a network without a pod or node.
    Unknown {
        address: IpAddr,
    },
    /// An address outside of the cluster.
    Outside {
        address: IpAddr,
    },
}

impl<'a> Peer<'a> {
    pub(super) fn of(world: &'a World, subject: &PodEntry, address: IpAddr) -> Self {
        if let Some(pod) = super::pod_at(world, address) {
            return if pod.uid == subject.uid { Self::Itself { pod } } else { Self::Pod { pod, address } };
        }
        // "A node's class contains all its addresses."
        if let Some((name, node)) = world.nodes.iter().find(|(_, node)| node.addresses.contains(&address)) {
            return Self::Node { name, node };
        }
        // "An address inside a network's CIDR without a record is UNKNOWN."
        let is_pod_address = world
            .networks
            .values()
            .flat_map(|network| &network.subnets)
            .any(|subnet| subnet.contains(&address));
        if is_pod_address { Self::Unknown { address } } else { Self::Outside { address } }
    }

    /// The pod at the other end, also if it is the subject itself.
    pub(super) fn pod(&self) -> Option<&'a PodEntry> {
        match self {
            Self::Itself { pod } | Self::Pod { pod, .. } => Some(pod),
            Self::Node { .. } | Self::Unknown { .. } | Self::Outside { .. } => None,
        }
    }

    pub(super) fn is_itself(&self) -> bool {
        matches!(self, Self::Itself { .. })
    }

    pub(super) fn is_own_node(&self, subject: &PodEntry) -> bool {
        matches!(self, Self::Node { name, .. } if **name == subject.node)
    }

    /// "ipBlock matches pod and node addresses too"; "an ipBlock that contains a node's status address matches all of them";
    /// "`except` limits its own block only". A pod as its own peer is one class for all of its addresses, too.
    pub(super) fn is_in_block(&self, cidr: &IpNet, except: &[IpNet]) -> bool {
        let addresses = match self {
            Self::Itself { pod } => pod.addresses.as_deref().unwrap_or_default(),
            Self::Pod { address, .. } | Self::Unknown { address } | Self::Outside { address } => {
                std::slice::from_ref(address)
            }
            Self::Node { node, .. } => node.addresses.as_slice(),
        };
        addresses
            .iter()
            .any(|address| cidr.contains(address) && !except.iter().any(|one| one.contains(address)))
    }
}

/// Labels of a namespace: "a missing namespace has no labels".
pub(super) fn namespace_labels(world: &World, name: &str) -> Labels {
    world.namespaces.get(name).cloned().unwrap_or_default()
}
