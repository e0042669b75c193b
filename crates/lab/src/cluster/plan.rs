//! What a cluster is to be, and which addresses its hosts have.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Hosts of one subnet have the numbers from 1 on; the router comes last.
pub(super) const MAX_NODES: usize = 200;
pub(super) const MAX_SUBNETS: usize = 64;
const ROUTER: u16 = 254;
/// The subnet of the hosts of etcd. Nodes are in those from 1 on, so etcd is behind the router for all of them.
const ETCD_SUBNET: usize = 0;

/// What to make. Change what a test needs with struct update: `Plan { nodes: 5, ..Plan::default() }`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub nodes: usize,
    /// Nodes are spread over them in turn. Those of different subnets have a router between them.
    pub subnets: usize,
    pub store: LabStore,
    pub transport: TransportMode,
    /// Of the nodes' links and everything between them.
    pub mtu: u32,
    /// Which addresses the nodes themselves have.
    pub underlay: Families,
    /// The pods' network, one subnet for each family.
    pub pods: Vec<IpNet>,
    /// How many bits longer than the network's subnet a node's block is.
    pub margin: u8,
    /// For all agents.
    pub all: Extra,
    /// For the agent of the node of this name.
    pub each: BTreeMap<String, Extra>,
    pub etcd_flags: Vec<String>,
    /// Clients of etcd and its members show each other certificates.
    pub etcd_tls: Option<Tls>,
}

/// PEM files: one certificate for both sides, for the addresses of `Plan::etcd_addresses`, and who signed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tls {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// More for an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extra {
    pub flags: Vec<String>,
    pub env: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LabStore {
    Etcd {
        members: usize,
    },
    /// A directory that one agent owns: for one node.
    Embedded,
    /// None: each agent is alone, with a block of its own.
    Alone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportMode {
    Auto,
    Direct,
    Vxlan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Families {
    Both,
    V4,
    V6,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            nodes: 3,
            subnets: 1,
            store: LabStore::Etcd { members: 1 },
            transport: TransportMode::Auto,
            mtu: 1500,
            underlay: Families::Both,
            pods: vec![
                IpNet::new_assert(Ipv4Addr::new(10, 42, 0, 0).into(), 16),
                IpNet::new_assert(Ipv6Addr::new(0xfd42, 0, 0, 0, 0, 0, 0, 0).into(), 64),
            ],
            margin: 8,
            all: Extra::default(),
            each: BTreeMap::new(),
            etcd_flags: vec![],
            etcd_tls: None,
        }
    }
}

impl TransportMode {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Vxlan => "vxlan",
        }
    }
}

/// A host's place on the underlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnderlayHost {
    pub(super) subnet: usize,
    pub(super) addresses: Vec<IpNet>,
    pub(super) link_local: IpNet,
    /// The same after the host was made anew, as that of a real machine: its neighbours remember it.
    pub(super) mac: String,
}

impl Plan {
    /// Whether it can be made; what to change if not.
    pub fn check(&self) -> Result<()> {
        self.check_shape()?;
        match self.store {
            LabStore::Etcd { .. } => crate::etcd::check_installed(),
            LabStore::Embedded | LabStore::Alone => Ok(()),
        }
    }

    /// Whether its numbers fit together, whatever this machine has.
    pub fn check_shape(&self) -> Result<()> {
        ensure!(
            (1..=MAX_NODES).contains(&self.nodes),
            "a lab has 1 to {MAX_NODES} nodes, not {}",
            self.nodes
        );
        let most = MAX_SUBNETS.min(self.nodes);
        let (nodes, subnets) = match most {
            1 => ("1 node".to_owned(), "1 subnet".to_owned()),
            most => (format!("{} nodes", self.nodes), format!("1 to {most} subnets")),
        };
        ensure!((1..=most).contains(&self.subnets), "a lab of {nodes} has {subnets}, not {}", self.subnets);
        ensure!(
            self.store != LabStore::Embedded || self.nodes == 1,
            "one agent owns an embedded store: a lab of {nodes} needs etcd"
        );
        if let LabStore::Etcd { members } = self.store {
            ensure!(matches!(members, 1 | 3), "etcd has 1 or 3 members here, not {members}");
        }
        for name in self.each.keys() {
            ensure!(self.node_names().contains(name), "there will be no node {name}");
        }
        Ok(())
    }

    pub fn node_names(&self) -> Vec<String> {
        (1..=self.nodes).map(|number| format!("n{number}")).collect()
    }

    /// Where the members of etcd will be.
    pub fn etcd_addresses(&self) -> Vec<IpAddr> {
        let LabStore::Etcd { members } = self.store else { return vec![] };
        (0..members).filter_map(|index| Some(self.etcd_place(index).addresses.first()?.addr())).collect()
    }

    /// All subnets of the underlay, by number.
    pub(super) fn underlay_subnets(&self) -> Vec<usize> {
        let etcd = matches!(self.store, LabStore::Etcd { .. }).then_some(ETCD_SUBNET);
        etcd.into_iter().chain(1..=self.subnets).collect()
    }

    /// Of the node with this number, counted from 0.
    pub(super) fn node_place(&self, index: usize) -> UnderlayHost {
        self.place(1 + index % self.subnets, index as u16 + 1)
    }

    pub(super) fn etcd_place(&self, index: usize) -> UnderlayHost {
        self.place(ETCD_SUBNET, index as u16 + 1)
    }

    pub(super) fn router_place(&self, subnet: usize) -> UnderlayHost {
        self.place(subnet, ROUTER)
    }

    fn place(&self, subnet: usize, host: u16) -> UnderlayHost {
        let v4 = Ipv4Addr::new(10, 199, subnet as u8, host as u8);
        let v6 = Ipv6Addr::new(0xfd99, subnet as u16, 0, 0, 0, 0, 0, host);
        let v4 = IpNet::new_assert(v4.into(), 24);
        let v6 = IpNet::new_assert(v6.into(), 64);
        let addresses = match self.underlay {
            Families::Both => vec![v4, v6],
            Families::V4 => vec![v4],
            Families::V6 => vec![v6],
        };
        let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, subnet as u16, host);
        let mac = format!("02:00:0a:c7:{subnet:02x}:{host:02x}");
        UnderlayHost { subnet, addresses, link_local: IpNet::new_assert(link_local.into(), 64), mac }
    }

    /// What a test adds to what the agent of a node is told.
    pub(super) fn more_flags(&self, node: &str) -> Vec<String> {
        let all = [Some(&self.all), self.each.get(node)].into_iter().flatten();
        all.flat_map(|extra| extra.flags.iter().cloned()).collect()
    }

    pub(super) fn agent_env(&self, node: &str) -> Vec<(String, String)> {
        let all = [Some(&self.all), self.each.get(node)].into_iter().flatten();
        all.flat_map(|extra| extra.env.iter().cloned()).collect()
    }

    /// The block that a node takes without asking anybody.
    pub(super) fn own_block(&self, index: usize) -> Vec<IpNet> {
        let block = |net: &IpNet| match net.addr() {
            IpAddr::V4(base) => {
                let base = u32::from(base) + ((index as u32) << 8);
                IpNet::new_assert(Ipv4Addr::from(base).into(), 24)
            }
            IpAddr::V6(base) => {
                let base = u128::from(base) + ((index as u128) << 48);
                IpNet::new_assert(Ipv6Addr::from(base).into(), 80)
            }
        };
        self.pods.iter().map(block).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_spread_over_the_subnets_and_etcd_is_behind_the_router() {
        let plan = Plan { nodes: 3, subnets: 2, ..Plan::default() };
        let places: Vec<_> = (0..3).map(|index| plan.node_place(index)).collect();
        assert_eq!(places.iter().map(|p| p.subnet).collect::<Vec<_>>(), [1, 2, 1]);
        let texts =
            |place: &UnderlayHost| place.addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&places[1]), ["10.199.2.2/24", "fd99:2::2/64"]);
        assert_eq!(texts(&plan.etcd_place(0)), ["10.199.0.1/24", "fd99::1/64"]);
        assert_eq!(texts(&plan.router_place(2)), ["10.199.2.254/24", "fd99:2::fe/64"]);
        assert_eq!(plan.underlay_subnets(), [0, 1, 2]);
    }

    #[test]
    fn plans_that_cannot_be_are_refused() {
        for plan in [
            Plan { nodes: 0, ..Plan::default() },
            Plan { nodes: MAX_NODES + 1, ..Plan::default() },
            Plan { subnets: 0, ..Plan::default() },
            Plan { nodes: 2, subnets: 3, ..Plan::default() },
            Plan { store: LabStore::Etcd { members: 2 }, ..Plan::default() },
            Plan { each: [("n9".to_owned(), Extra::default())].into(), ..Plan::default() },
        ] {
            assert!(plan.check().is_err(), "{plan:?}");
        }
        let one = Plan { nodes: 1, subnets: 2, ..Plan::default() };
        assert_eq!(one.check().unwrap_err().to_string(), "a lab of 1 node has 1 subnet, not 2");
    }
}
