//! Sets of address blocks, and the partition of the address space by them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use types::Family;

/// Blocks with the number of their uses. Blocks are nested or disjoint, so the smallest block that contains an address determines all
/// others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cidrs {
    uses: HashMap<IpNet, usize>,
    /// The number of blocks by prefix length, long prefixes first. One map for IPv4, one for IPv6.
    lengths: [BTreeMap<Reverse<u8>, usize>; 2],
}

/// Addresses that the same blocks contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AddressPart {
    pub(crate) first: IpAddr,
    pub(crate) last: IpAddr,
    /// The smallest block that contains them.
    pub(crate) cidr: Option<IpNet>,
    pub(crate) is_in_network: bool,
}

fn family_index(family: Family) -> usize {
    match family {
        Family::V4 => 0,
        Family::V6 => 1,
    }
}

impl Cidrs {
    /// True if the block is new.
    pub(crate) fn add(&mut self, cidr: IpNet) -> bool {
        let cidr = cidr.trunc();
        let uses = self.uses.entry(cidr).or_default();
        *uses += 1;
        let is_new = *uses == 1;
        if is_new {
            *self.lengths_of(cidr).entry(Reverse(cidr.prefix_len())).or_default() += 1;
        }
        is_new
    }

    /// True if this was the last use of the block.
    pub(crate) fn remove(&mut self, cidr: IpNet) -> bool {
        let cidr = cidr.trunc();
        let Some(uses) = self.uses.get_mut(&cidr) else { return false };
        *uses -= 1;
        if *uses > 0 {
            return false;
        }
        self.uses.remove(&cidr);
        let length = Reverse(cidr.prefix_len());
        let lengths = self.lengths_of(cidr);
        if let Some(blocks) = lengths.get_mut(&length) {
            *blocks -= 1;
            if *blocks == 0 {
                lengths.remove(&length);
            }
        }
        true
    }

    fn lengths_of(&mut self, cidr: IpNet) -> &mut BTreeMap<Reverse<u8>, usize> {
        &mut self.lengths[family_index(Family::of(cidr.addr()))]
    }

    /// The smallest block that contains the address.
    pub(crate) fn smallest(&self, address: IpAddr) -> Option<IpNet> {
        let lengths = self.lengths[family_index(Family::of(address))].keys();
        lengths
            .filter_map(|Reverse(length)| IpNet::new(address, *length).ok())
            .map(|net| net.trunc())
            .find(|net| self.uses.contains_key(net))
    }

    fn blocks(&self) -> impl Iterator<Item = &IpNet> {
        self.uses.keys()
    }
}

/// Divides all addresses of both families by the blocks and networks. The parts are in ascending order.
pub(crate) fn partition(cidrs: &Cidrs, networks: &Cidrs) -> Vec<AddressPart> {
    let mut parts = Vec::new();
    for family in [Family::V4, Family::V6] {
        let mut starts = BTreeSet::from([0]);
        for net in cidrs.blocks().chain(networks.blocks()).filter(|net| Family::of(net.addr()) == family) {
            starts.insert(to_number(net.network()));
            starts.extend(to_number(net.broadcast()).checked_add(1).filter(|start| *start <= max(family)));
        }
        let lasts = starts.iter().skip(1).map(|start| start - 1).chain([max(family)]);
        for (first, last) in starts.iter().zip(lasts) {
            let (first, last) = (to_address(family, *first), to_address(family, last));
            let is_in_network = networks.smallest(first).is_some();
            parts.push(AddressPart { first, last, cidr: cidrs.smallest(first), is_in_network });
        }
    }
    parts
}

fn max(family: Family) -> u128 {
    match family {
        Family::V4 => u128::from(u32::MAX),
        Family::V6 => u128::MAX,
    }
}

fn to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

fn to_address(family: Family, number: u128) -> IpAddr {
    match family {
        // Numbers of this family have at most 32 bits.
        Family::V4 => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        Family::V6 => Ipv6Addr::from(number).into(),
    }
}
