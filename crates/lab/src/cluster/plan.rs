//! The plan of a cluster, and the underlay addresses of its hosts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Hosts of one subnet are numbered from 1; the router has the number 254.
pub(super) const MAX_NODES: usize = 200;
pub(super) const MAX_SUBNETS: usize = 64;
const ROUTER: u16 = 254;
/// The subnet of the etcd hosts. Nodes are in subnets from 1 on, so all nodes reach etcd through the router.
const ETCD_SUBNET: usize = 0;

/// The cluster to create. Tests override single fields with struct update: `Plan { nodes: 5, ..Plan::default() }`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub nodes: usize,
    /// Nodes are assigned to subnets round-robin. A router connects the subnets.
    pub subnets: usize,
    pub store: LabStore,
    pub transport: TransportMode,
    /// MTU of all underlay links.
    pub mtu: u32,
    /// Address families of the underlay.
    pub underlay: Families,
    /// The pod network, one subnet per family.
    pub pods: Vec<IpNet>,
    /// Prefix length of a node's block minus the prefix length of the network's subnet.
    pub margin: u8,
    /// Extra options for all agents.
    pub all: Extra,
    /// Extra options per agent, by node name.
    pub each: BTreeMap<String, Extra>,
    pub etcd_flags: Vec<String>,
    /// Mutual TLS between etcd members and clients.
    pub etcd_tls: Option<Tls>,
}

/// PEM files. The certificate is used by members and clients and must cover `Plan::etcd_addresses`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tls {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// Extra options of an agent.
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
    /// An embedded store in a directory; for a single node.
    Embedded,
    /// No store: each agent works alone, with a fixed block.
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

/// A host's subnet and addresses on the underlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnderlayHost {
    pub(super) subnet: usize,
    pub(super) addresses: Vec<IpNet>,
    pub(super) link_local: IpNet,
    /// Fixed, so that it is the same after a power cycle, as with real hardware.
    pub(super) mac: String,
}

impl Plan {
    /// Checks that this host can create the lab. The error says what to change.
    pub fn check(&self) -> Result<()> {
        self.check_shape()?;
        match self.store {
            LabStore::Etcd { .. } => crate::etcd::check_installed(),
            LabStore::Embedded | LabStore::Alone => Ok(()),
        }
    }

    /// Checks the plan's numbers without checking the host.
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
            "an embedded store supports one node: a lab of {nodes} needs etcd"
        );
        if let LabStore::Etcd { members } = self.store {
            ensure!(matches!(members, 1 | 3), "a lab has 1 or 3 etcd members, not {members}");
        }
        for name in self.each.keys() {
            ensure!(
                self.node_names().contains(name),
                "the plan has options for node {name}, which is not part of the lab"
            );
        }
        Ok(())
    }

    pub fn node_names(&self) -> Vec<String> {
        (1..=self.nodes).map(|number| format!("n{number}")).collect()
    }

    /// Addresses of the etcd members.
    pub fn etcd_addresses(&self) -> Vec<IpAddr> {
        let LabStore::Etcd { members } = self.store else { return vec![] };
        (0..members).filter_map(|index| Some(self.etcd_host(index).addresses.first()?.addr())).collect()
    }

    /// The numbers of all underlay subnets.
    pub(super) fn underlay_subnets(&self) -> Vec<usize> {
        let etcd = matches!(self.store, LabStore::Etcd { .. }).then_some(ETCD_SUBNET);
        etcd.into_iter().chain(1..=self.subnets).collect()
    }

    /// The underlay addresses of a node; `index` counts from 0.
    pub(super) fn node_host(&self, index: usize) -> UnderlayHost {
        self.underlay_host(1 + index % self.subnets, index as u16 + 1)
    }

    pub(super) fn etcd_host(&self, index: usize) -> UnderlayHost {
        self.underlay_host(ETCD_SUBNET, index as u16 + 1)
    }

    pub(super) fn router_host(&self, subnet: usize) -> UnderlayHost {
        self.underlay_host(subnet, ROUTER)
    }

    fn underlay_host(&self, subnet: usize, host: u16) -> UnderlayHost {
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

    /// Extra flags of a node's agent.
    pub(super) fn extra_flags(&self, node: &str) -> Vec<String> {
        let all = [Some(&self.all), self.each.get(node)].into_iter().flatten();
        all.flat_map(|extra| extra.flags.iter().cloned()).collect()
    }

    pub(super) fn agent_env(&self, node: &str) -> Vec<(String, String)> {
        let all = [Some(&self.all), self.each.get(node)].into_iter().flatten();
        all.flat_map(|extra| extra.env.iter().cloned()).collect()
    }

    /// The fixed block of a node that works without a store.
    pub(super) fn standalone_block(&self, index: usize) -> Vec<IpNet> {
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
        let hosts: Vec<_> = (0..3).map(|index| plan.node_host(index)).collect();
        assert_eq!(hosts.iter().map(|p| p.subnet).collect::<Vec<_>>(), [1, 2, 1]);
        let texts = |underlay_host: &UnderlayHost| {
            underlay_host.addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(texts(&hosts[1]), ["10.199.2.2/24", "fd99:2::2/64"]);
        assert_eq!(texts(&plan.etcd_host(0)), ["10.199.0.1/24", "fd99::1/64"]);
        assert_eq!(texts(&plan.router_host(2)), ["10.199.2.254/24", "fd99:2::fe/64"]);
        assert_eq!(plan.underlay_subnets(), [0, 1, 2]);
    }

    #[test]
    fn impossible_plans_are_rejected() {
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
