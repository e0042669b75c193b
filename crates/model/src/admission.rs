//! Decides which parts of a node record other nodes use.
//!
//! A record can contain wrong or stale data. The claim of a block decides which node owns it, and the block layout of the
//! network decides what a block is. A refused part is reported with its reason. Valid parts of the same record are used.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use types::{Mac, NodeName};

use crate::block_layout::BlockLayout;
use crate::object::NodeRecord;

/// The maximum number of blocks of one record that are used. An agent claims at most 100; the difference allows for later
/// versions. It limits the work that one record causes on every other node.
pub const MAX_BLOCKS: usize = 1024;
/// The maximum number of addresses of one record that are used. An agent publishes at most one per family.
pub const MAX_ADDRESSES: usize = 8;
/// The number of blocks or addresses that a message names. It counts the others.
const MAX_NAMED: usize = 3;

/// A node record and the revision at which the store created its key. The record that was created first holds a tunnel MAC:
/// a later record cannot choose a smaller revision, and all nodes get the same result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredNode {
    pub record: NodeRecord,
    pub created: u64,
}

/// Why a block of a record is not routed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockRefusal {
    Outside,
    /// The block has a different size from the blocks of the network, or is not aligned.
    NotABlock {
        length: u8,
    },
    Unclaimed,
    ClaimedBy(NodeName),
}

/// Why an address of a record is not used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressRefusal {
    Mapped,
    Unspecified,
    Loopback,
    Multicast,
    LinkLocal,
    Reserved,
    InPodNetwork(IpNet),
}

impl fmt::Display for BlockRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outside => f.write_str("outside of the pod networks"),
            Self::NotABlock { length } => {
                write!(f, "the network is divided into aligned blocks of prefix length {length}")
            }
            Self::Unclaimed => f.write_str("not claimed in the store"),
            Self::ClaimedBy(name) => write!(f, "claimed by node {name}"),
        }
    }
}

impl fmt::Display for AddressRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapped => f.write_str("IPv4 address in IPv6 form"),
            Self::Unspecified => f.write_str("unspecified address"),
            Self::Loopback => f.write_str("loopback address"),
            Self::Multicast => f.write_str("multicast address"),
            Self::LinkLocal => f.write_str("link-local address"),
            Self::Reserved => f.write_str("reserved address"),
            Self::InPodNetwork(subnet) => write!(f, "inside the pod network {subnet}"),
        }
    }
}

/// Whether the node owns this block. `owner` is the node in the block's claim.
pub fn check_block(
    block_layouts: &[BlockLayout],
    owner: Option<&NodeName>,
    name: &NodeName,
    block: &IpNet,
) -> Result<(), BlockRefusal> {
    let block_layout = block_layouts
        .iter()
        .find(|block_layout| block_layout.subnet().contains(block))
        .ok_or(BlockRefusal::Outside)?;
    if !block_layout.owns(block) {
        return Err(BlockRefusal::NotABlock { length: block_layout.length() });
    }
    match owner {
        None => Err(BlockRefusal::Unclaimed),
        Some(owner) if owner == name => Ok(()),
        Some(owner) => Err(BlockRefusal::ClaimedBy(owner.clone())),
    }
}

/// Whether another node can be reached at this address, which must not be in a pod network.
pub fn check_address(block_layouts: &[BlockLayout], address: IpAddr) -> Result<(), AddressRefusal> {
    let refusal = match address {
        address if address.is_unspecified() => AddressRefusal::Unspecified,
        address if address.is_loopback() => AddressRefusal::Loopback,
        address if address.is_multicast() => AddressRefusal::Multicast,
        IpAddr::V4(v4) if v4.is_link_local() => AddressRefusal::LinkLocal,
        // 0.0.0.0/8, and 240.0.0.0/4 including the broadcast address.
        IpAddr::V4(v4) if matches!(v4.octets(), [0 | 240..=255, ..]) => AddressRefusal::Reserved,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => AddressRefusal::LinkLocal,
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => AddressRefusal::Mapped,
        // ::/96, the deprecated IPv4-compatible form.
        IpAddr::V6(v6) if v6.octets().starts_with(&[0; 12]) => AddressRefusal::Mapped,
        address => match block_layouts.iter().map(BlockLayout::subnet).find(|net| net.contains(&address)) {
            Some(subnet) => AddressRefusal::InPodNetwork(subnet),
            None => return Ok(()),
        },
    };
    Err(refusal)
}

impl NodeRecord {
    /// The blocks that are considered, truncated and without duplicates.
    pub(crate) fn named_blocks(&self) -> BTreeSet<IpNet> {
        self.blocks.iter().take(MAX_BLOCKS).map(IpNet::trunc).collect()
    }

    /// The addresses that are considered.
    pub(crate) fn named_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().take(MAX_ADDRESSES).copied()
    }
}

/// Parts of one record that are not used for the same reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedParts {
    kind: &'static str,
    verb: &'static str,
    parts: Vec<String>,
    reason: String,
}

impl RefusedParts {
    /// `block 10.2.3.0/24 is not routed: not claimed in the store`, with the node's name if it is given.
    pub fn sentence(&self, node: Option<&NodeName>) -> String {
        let Self { kind, verb, parts, reason } = self;
        let of_node = node.map(|name| format!(" of node {name}")).unwrap_or_default();
        match parts.as_slice() {
            [one] => format!("{kind} {one}{of_node} is not {verb}: {reason}"),
            several => {
                let named = several.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join(", ");
                let more = several.len().saturating_sub(MAX_NAMED);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let plural = if *kind == "address" { "addresses" } else { "blocks" };
                format!("{plural} {named}{more}{of_node} are not {verb}: {reason}")
            }
        }
    }
}

/// All parts of a record that other nodes do not use, because of their values or because of the claims.
pub fn refusals<'a>(
    record: &NodeRecord,
    block_layouts: &[BlockLayout],
    owner: impl Fn(&IpNet) -> Option<&'a NodeName>,
) -> Vec<RefusedParts> {
    let mut blocks: BTreeMap<BlockRefusal, Vec<String>> = BTreeMap::new();
    for block in record.named_blocks() {
        if let Err(reason) = check_block(block_layouts, owner(&block), &record.name, &block) {
            blocks.entry(reason).or_default().push(block.to_string());
        }
    }
    let mut addresses: BTreeMap<AddressRefusal, Vec<String>> = BTreeMap::new();
    for address in record.named_addresses() {
        if let Err(reason) = check_address(block_layouts, address) {
            addresses.entry(reason).or_default().push(address.to_string());
        }
    }
    let refused = |kind, verb, parts, reason: String| RefusedParts { kind, verb, parts, reason };
    let blocks =
        blocks.into_iter().map(|(reason, parts)| refused("block", "routed", parts, reason.to_string()));
    let addresses =
        addresses.into_iter().map(|(reason, parts)| refused("address", "used", parts, reason.to_string()));
    let over_limit = |kind, verb, parts: Vec<String>, max: usize| {
        let reason = format!("a record may have {max} at most");
        (!parts.is_empty()).then(|| refused(kind, verb, parts, reason))
    };
    let excess_blocks = record.blocks.iter().skip(MAX_BLOCKS).map(ToString::to_string).collect();
    let excess_addresses = record.addresses.iter().skip(MAX_ADDRESSES).map(ToString::to_string).collect();
    blocks
        .chain(over_limit("block", "routed", excess_blocks, MAX_BLOCKS))
        .chain(addresses)
        .chain(over_limit("address", "used", excess_addresses, MAX_ADDRESSES))
        .collect()
}

/// Reports records that share a tunnel MAC or an address with another record, as node name and message. A shared address has
/// no effect on routes, which belong to blocks. A shared MAC does: only the record that was created first uses it.
pub fn shared_parts(nodes: &[StoredNode]) -> Vec<(&NodeName, String)> {
    let mut macs: BTreeMap<Mac, Vec<&StoredNode>> = BTreeMap::new();
    let mut addresses: BTreeMap<IpAddr, Vec<&NodeName>> = BTreeMap::new();
    for node in nodes {
        macs.entry(node.record.tunnel_mac).or_default().push(node);
        let own: BTreeSet<IpAddr> = node.record.named_addresses().collect();
        own.into_iter().for_each(|address| addresses.entry(address).or_default().push(&node.record.name));
    }
    let mut shared = Vec::new();
    for (mac, mut holders) in macs.into_iter().filter(|(_, holders)| holders.len() > 1) {
        holders.sort_by_key(|node| (node.created, &node.record.name));
        let Some((first, later)) = holders.split_first() else { continue };
        for node in later {
            let message = format!(
                "its tunnel MAC {mac} is also used by node {}, which has an older record",
                first.record.name
            );
            shared.push((&node.record.name, message));
        }
    }
    for (address, names) in addresses.into_iter().filter(|(_, names)| names.len() > 1) {
        for name in &names {
            let others = names.iter().filter(|other| other != &name).map(|other| other.as_str());
            let others: Vec<&str> = others.take(MAX_NAMED).collect();
            shared.push((*name, format!("address {address} is also used by node {}", others.join(", "))));
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use types::NodeUid;

    use super::*;
    use crate::BlockAllocation;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn name(text: &str) -> NodeName {
        text.try_into().unwrap()
    }

    fn block_layouts() -> Vec<BlockLayout> {
        vec![
            BlockLayout::new(net("10.2.0.0/16"), 8).unwrap(),
            BlockLayout::new(net("fd00:2::/64"), 8).unwrap(),
        ]
    }

    fn record(blocks: &[&str], addresses: &[&str]) -> NodeRecord {
        NodeRecord {
            name: name("a"),
            uid: NodeUid::from_random([1; 16]),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            blocks: BlockAllocation::of_default(blocks.iter().map(|text| net(text)).collect()),
            tunnel_mac: Mac::local([1; 5]),
            macs: Vec::new(),
            version: "1".to_owned(),
            transport: None,
        }
    }

    fn sentences(record: &NodeRecord, claims: &BTreeMap<IpNet, NodeName>) -> Vec<String> {
        refusals(record, &block_layouts(), |block| claims.get(block))
            .iter()
            .map(|one| one.sentence(None))
            .collect()
    }

    #[test]
    fn a5_only_claimed_blocks_of_the_layout_are_admitted() {
        let claims = BTreeMap::from([
            (net("10.2.3.0/24"), name("a")),
            (net("10.2.4.0/24"), name("b")),
            // A claim has no effect on a network that is not a block.
            (net("10.2.5.7/32"), name("a")),
            (net("10.9.0.0/24"), name("a")),
        ]);
        let record = record(
            &[
                "10.2.3.0/24",
                "10.2.4.0/24",
                "10.2.6.0/24",
                "10.2.5.7/32",
                "10.9.0.0/24",
                "10.0.0.0/8",
                "fd00:2::/72",
            ],
            &["192.0.2.1"],
        );
        assert_eq!(
            sentences(&record, &claims),
            [
                "blocks 10.0.0.0/8, 10.9.0.0/24 are not routed: outside of the pod networks",
                "block 10.2.5.7/32 is not routed: the network is divided into aligned blocks of prefix length 24",
                "blocks 10.2.6.0/24, fd00:2::/72 are not routed: not claimed in the store",
                "block 10.2.4.0/24 is not routed: claimed by node b",
            ]
        );
    }

    #[test]
    fn a5_the_number_of_used_blocks_and_addresses_is_limited() {
        let many: Vec<String> = (0..3000).map(|n| format!("10.2.{}.{}/32", n / 256, n % 256)).collect();
        let blocks: Vec<&str> = many.iter().map(String::as_str).collect();
        let addresses: Vec<String> = (1..=20).map(|n| format!("192.0.2.{n}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let messages = sentences(&record(&blocks, &addresses), &BTreeMap::new());
        let [blocks, excess, addresses] = &messages[..] else { panic!("{messages:?}") };
        assert!(blocks.contains("10.2.0.2/32 and 1021 more are not routed"), "{blocks}");
        assert!(
            excess.contains("and 1973 more") && excess.ends_with("a record may have 1024 at most"),
            "{excess}"
        );
        assert!(addresses.contains("and 9 more are not used: a record may have 8 at most"), "{addresses}");
        assert!(messages.iter().all(|one| one.len() < 200), "{messages:?}");
    }

    #[test]
    fn a5_addresses_that_reach_no_node_are_refused_with_the_reason() {
        for (address, reason) in [
            ("::ffff:192.0.2.1", "IPv4 address in IPv6 form"),
            ("::192.0.2.1", "IPv4 address in IPv6 form"),
            ("0.0.0.0", "unspecified"),
            ("::", "unspecified"),
            ("127.1.2.3", "loopback"),
            ("::1", "loopback"),
            ("224.0.0.5", "multicast"),
            ("ff02::1", "multicast"),
            ("169.254.1.1", "link-local"),
            ("fe80::5", "link-local"),
            ("0.1.2.3", "reserved"),
            ("255.255.255.255", "reserved"),
            ("10.2.9.9", "inside the pod network 10.2.0.0/16"),
            ("fd00:2::9", "inside the pod network fd00:2::/64"),
        ] {
            let messages = sentences(&record(&[], &[address, "192.0.2.1", "2001:db8::1"]), &BTreeMap::new());
            let [one] = &messages[..] else { panic!("{address}: {messages:?}") };
            assert!(one.starts_with("address ") && one.contains(" is not used: "), "{one}");
            assert!(one.contains(reason), "{one}");
        }
    }

    #[test]
    fn a5_the_older_record_keeps_a_shared_mac() {
        let node = |text: &str, created| {
            let record = NodeRecord { name: name(text), ..record(&[], &["192.0.2.1"]) };
            StoredNode { record, created }
        };
        let nodes = [node("a", 9), node("b", 4)];
        let shared = shared_parts(&nodes);
        let of_a: Vec<&str> = shared
            .iter()
            .filter(|(one, _)| one.as_str() == "a")
            .map(|(_, message)| message.as_str())
            .collect();
        assert_eq!(
            of_a,
            [
                "its tunnel MAC 02:01:01:01:01:01 is also used by node b, which has an older record",
                "address 192.0.2.1 is also used by node b"
            ]
        );
        assert_eq!(shared.len(), 3, "{shared:?}");
    }
}
