//! Address pools of groups. A pool is a part of a network: pods of its group get addresses of their pools only, and all other pods
//! get none of them. In a family without pools, a group gets addresses like pods without a group.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::{Error, ErrorCode};
use ipam::{Range, RangeSet, RangeSpec};
use ipnet::IpNet;
use types::GroupName;

use crate::addresses::{self, Addresses};
use crate::comma_separated;

/// The pools of the groups of a network. They do not overlap.
pub type GroupPools = BTreeMap<GroupName, Vec<IpNet>>;

/// The addresses of a network with pools, on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PooledAddresses {
    groups: BTreeMap<GroupName, NodeAddresses>,
    others: NodeAddresses,
}

/// The addresses that the blocks of this node provide.
#[derive(Debug, Clone, PartialEq, Eq)]
enum NodeAddresses {
    Available(Addresses),
    /// The blocks contain no address of these parts of the network.
    Missing(Vec<IpNet>),
}

impl PooledAddresses {
    pub(crate) fn new(subnets: &[IpNet], blocks: &[IpNet], pools: &GroupPools) -> Result<Self, Error> {
        let all: Vec<IpNet> = pools.values().flatten().copied().collect();
        let inputs = PoolInputs { subnets, blocks, all: &all };
        let groups = pools.iter().map(|(group, own)| Ok((group.clone(), inputs.addresses(own)?)));
        Ok(Self { groups: groups.collect::<Result<_, Error>>()?, others: inputs.addresses(&[])? })
    }

    /// The addresses for a pod of this group.
    pub(crate) fn of(&self, group: Option<&GroupName>) -> Result<&Addresses, Error> {
        let of_group = group.and_then(|group| self.groups.get(group));
        match (of_group.unwrap_or(&self.others), group.filter(|_| of_group.is_some())) {
            (NodeAddresses::Available(addresses), _) => Ok(addresses),
            (NodeAddresses::Missing(parts), Some(group)) => Err(Error::new(
                ErrorCode::AddressesExhausted,
                format!(
                    "no block of this node has addresses of {}, the pools of group {group}",
                    comma_separated(parts)
                ),
            )),
            (NodeAddresses::Missing(parts), None) => Err(Error::new(
                ErrorCode::AddressesExhausted,
                format!("all addresses of this node in {} belong to pools of groups", comma_separated(parts)),
            )),
        }
    }
}

struct PoolInputs<'a> {
    subnets: &'a [IpNet],
    blocks: &'a [IpNet],
    /// The pools of all groups.
    all: &'a [IpNet],
}

impl PoolInputs<'_> {
    /// The addresses of a group with these pools. Without pools in a family: all addresses outside of pools.
    fn addresses(&self, own: &[IpNet]) -> Result<NodeAddresses, Error> {
        let mut sets = Vec::new();
        for subnet in self.subnets {
            let own: Vec<IpNet> = own.iter().filter(|pool| subnet.contains(*pool)).copied().collect();
            let blocks = self.blocks.iter().filter(|block| subnet.contains(*block));
            let ranges: Vec<Range> = match own.is_empty() {
                true => blocks.filter_map(|block| self.outside(block)).collect(),
                false => blocks.flat_map(|block| own.iter().filter_map(|pool| inside(block, pool))).collect(),
            };
            if ranges.is_empty() {
                return Ok(NodeAddresses::Missing(if own.is_empty() { vec![*subnet] } else { own }));
            }
            sets.push(RangeSet::new(ranges).map_err(|error| crate::invalid("ipam.ranges", error))?);
        }
        addresses::pools(sets).map(|pools| NodeAddresses::Available(Addresses::Own(pools)))
    }

    /// The part of a block outside of all pools. None if no address is left.
    fn outside(&self, block: &IpNet) -> Option<Range> {
        let overlaps = |pool: &&IpNet| pool.contains(block) || block.contains(*pool);
        let exclude = self.all.iter().filter(overlaps).copied().collect();
        Range::new(RangeSpec { subnet: *block, start: None, end: None, gateway: None, exclude }).ok()
    }
}

/// The part of a pool inside a block. None if no address is left.
fn inside(block: &IpNet, pool: &IpNet) -> Option<Range> {
    let ends: Option<(IpAddr, IpAddr)> = match (block.contains(pool), pool.contains(block)) {
        (_, true) => None,
        (true, false) => Some((pool.network(), pool.broadcast())),
        (false, false) => return None,
    };
    let (start, end) = ends.unzip();
    Range::new(RangeSpec { subnet: *block, start, end, gateway: None, exclude: Vec::new() }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn group(name: &str) -> GroupName {
        name.try_into().unwrap()
    }

    /// Whether a pod of a group may have these addresses, or the error.
    fn assignable(pooled: &PooledAddresses, of: Option<&str>, ips: &[&str]) -> Result<Vec<bool>, String> {
        let of = of.map(group);
        let Addresses::Own(pools) = pooled.of(of.as_ref()).map_err(|error| error.msg)? else { panic!() };
        let has = |ip: IpAddr| {
            pools
                .sets()
                .iter()
                .flat_map(RangeSet::ranges)
                .any(|range| range.contains(ip) && range.allocatable(ip))
        };
        Ok(ips.iter().map(|ip| has(ip.parse().unwrap())).collect())
    }

    #[test]
    fn d_a_pool_belongs_to_its_group_only() {
        let pools = GroupPools::from([
            (group("web"), nets(&["10.5.0.64/28", "10.5.1.0/24", "fd05::100/120"])),
            (group("db"), nets(&["10.5.9.0/24"])),
        ]);
        let subnets = nets(&["10.5.0.0/16", "fd05::/64"]);
        let blocks = nets(&["10.5.0.0/24", "fd05::/112", "10.5.1.0/24"]);
        let pooled = PooledAddresses::new(&subnets, &blocks, &pools).unwrap();
        let ips = ["10.5.0.2", "10.5.0.64", "10.5.0.79", "10.5.0.80", "10.5.1.7", "fd05::2", "fd05::102"];
        let web = assignable(&pooled, Some("web"), &ips).unwrap();
        assert_eq!(web, [false, true, true, false, true, false, true]);
        for other in [None, Some("without-pools")] {
            let others = assignable(&pooled, other, &ips).unwrap();
            assert_eq!(others, [true, false, false, true, false, true, false], "{other:?}");
        }
        let missing = assignable(&pooled, Some("db"), &[]).unwrap_err();
        assert_eq!(missing, "no block of this node has addresses of 10.5.9.0/24, the pools of group db");
        // The gateway of a block inside of a pool is not assigned.
        assert_eq!(assignable(&pooled, Some("web"), &["10.5.1.1"]).unwrap(), [false]);
    }

    #[test]
    fn d_a_node_with_blocks_inside_of_pools_only_has_no_addresses_for_other_pods() {
        let pools = GroupPools::from([(group("web"), nets(&["10.5.0.0/23"]))]);
        let pooled = PooledAddresses::new(&nets(&["10.5.0.0/16"]), &nets(&["10.5.1.0/24"]), &pools).unwrap();
        assert_eq!(assignable(&pooled, Some("web"), &["10.5.1.9"]).unwrap(), [true]);
        let error = assignable(&pooled, None, &[]).unwrap_err();
        assert_eq!(error, "all addresses of this node in 10.5.0.0/16 belong to pools of groups");
    }
}
