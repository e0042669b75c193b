//! Which parts of a node record other nodes use.
//!
//! A record can name anything, also by mistake or because it is stale. The claim of a block decides who owns it, the network's
//! division decides what a block is. A part that is refused keeps its reason; the valid parts of the same record are used.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use types::{Mac, NodeName};

use crate::block_layout::BlockLayout;
use crate::object::NodeRecord;

/// Blocks of one record that are used. An agent claims at most 100; the rest allows for later versions. It bounds the work
/// that one record causes on every other node.
pub const MAX_BLOCKS: usize = 1024;
/// Addresses of one record that are used. An agent publishes at most one of each family.
pub const MAX_ADDRESSES: usize = 8;
/// A sentence names this many blocks or addresses; it counts the others.
const NAMED: usize = 3;

/// A node record and the revision at which the store created its key. The holder of a tunnel MAC is the record that was
/// created first: a record that comes later cannot choose a smaller revision, and every node comes to the same result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredNode {
    pub record: NodeRecord,
    pub created: u64,
}

/// Why a block of a record is not routed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockRefusal {
    Outside,
    /// The network is divided into blocks of another size, or the block is not aligned.
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
            Self::Outside => f.write_str("outside of the pod network"),
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

/// May this node have this block? `owner` is the node that the block's claim names.
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

/// Can another node be reached at this address? `subnets` are those of the pod network.
pub fn check_address(subnets: &[IpNet], address: IpAddr) -> Result<(), AddressRefusal> {
    let refusal = match address {
        address if address.is_unspecified() => AddressRefusal::Unspecified,
        address if address.is_loopback() => AddressRefusal::Loopback,
        address if address.is_multicast() => AddressRefusal::Multicast,
        IpAddr::V4(v4) if v4.is_link_local() => AddressRefusal::LinkLocal,
        // 0.0.0.0/8, and 240.0.0.0/4 with the broadcast address at its end.
        IpAddr::V4(v4) if matches!(v4.octets(), [0 | 240..=255, ..]) => AddressRefusal::Reserved,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => AddressRefusal::LinkLocal,
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => AddressRefusal::Mapped,
        // ::/96, the deprecated IPv4-compatible form.
        IpAddr::V6(v6) if v6.octets().starts_with(&[0; 12]) => AddressRefusal::Mapped,
        address => match subnets.iter().find(|subnet| subnet.contains(&address)) {
            Some(subnet) => AddressRefusal::InPodNetwork(*subnet),
            None => return Ok(()),
        },
    };
    Err(refusal)
}

impl NodeRecord {
    /// The blocks that are considered, as networks, each once.
    pub(crate) fn named_blocks(&self) -> BTreeSet<IpNet> {
        self.blocks.iter().take(MAX_BLOCKS).map(IpNet::trunc).collect()
    }

    /// The addresses that are considered.
    pub(crate) fn named_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().take(MAX_ADDRESSES).copied()
    }
}

/// Parts of one record that are not used for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedParts {
    what: &'static str,
    consequence: &'static str,
    parts: Vec<String>,
    why: String,
}

impl RefusedParts {
    /// `block 10.2.3.0/24 is not routed: not claimed in the store`, with the node's name where it is given.
    pub fn sentence(&self, node: Option<&NodeName>) -> String {
        let Self { what, consequence, parts, why } = self;
        let of = node.map(|name| format!(" of node {name}")).unwrap_or_default();
        match parts.as_slice() {
            [one] => format!("{what} {one}{of} is not {consequence}: {why}"),
            several => {
                let named = several.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
                let more = several.len().saturating_sub(NAMED);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let plural = if *what == "address" { "addresses" } else { "blocks" };
                format!("{plural} {named}{more}{of} are not {consequence}: {why}")
            }
        }
    }
}

/// All parts of a record that other nodes do not use because of what it says itself and of the claims.
pub fn refusals<'a>(
    record: &NodeRecord,
    block_layouts: &[BlockLayout],
    owner: impl Fn(&IpNet) -> Option<&'a NodeName>,
) -> Vec<RefusedParts> {
    let mut blocks: BTreeMap<BlockRefusal, Vec<String>> = BTreeMap::new();
    for block in record.named_blocks() {
        if let Err(why) = check_block(block_layouts, owner(&block), &record.name, &block) {
            blocks.entry(why).or_default().push(block.to_string());
        }
    }
    let subnets: Vec<IpNet> = block_layouts.iter().map(BlockLayout::subnet).collect();
    let mut addresses: BTreeMap<AddressRefusal, Vec<String>> = BTreeMap::new();
    for address in record.named_addresses() {
        if let Err(why) = check_address(&subnets, address) {
            addresses.entry(why).or_default().push(address.to_string());
        }
    }
    let refused = |what, consequence, parts, why: String| RefusedParts { what, consequence, parts, why };
    let blocks = blocks.into_iter().map(|(why, parts)| refused("block", "routed", parts, why.to_string()));
    let addresses =
        addresses.into_iter().map(|(why, parts)| refused("address", "used", parts, why.to_string()));
    let beyond = |what, consequence, parts: Vec<String>, most: usize| {
        let why = format!("a record may have {most} at most");
        (!parts.is_empty()).then(|| refused(what, consequence, parts, why))
    };
    let rest = record.blocks.iter().skip(MAX_BLOCKS).map(ToString::to_string).collect();
    let further = record.addresses.iter().skip(MAX_ADDRESSES).map(ToString::to_string).collect();
    blocks
        .chain(beyond("block", "routed", rest, MAX_BLOCKS))
        .chain(addresses)
        .chain(beyond("address", "used", further, MAX_ADDRESSES))
        .collect()
}

/// Records that share a tunnel MAC or an address with another: a sentence for each, by name. A shared address takes nothing
/// from either of them, since routes belong to blocks. A shared MAC does: its holder is the record that was created first.
pub fn shared_parts(nodes: &[StoredNode]) -> Vec<(&NodeName, String)> {
    let mut macs: BTreeMap<Mac, Vec<&StoredNode>> = BTreeMap::new();
    let mut addresses: BTreeMap<IpAddr, Vec<&NodeName>> = BTreeMap::new();
    for node in nodes {
        macs.entry(node.record.tunnel_mac).or_default().push(node);
        let own: BTreeSet<IpAddr> = node.record.named_addresses().collect();
        own.into_iter().for_each(|address| addresses.entry(address).or_default().push(&node.record.name));
    }
    let mut found = Vec::new();
    for (mac, mut holders) in macs.into_iter().filter(|(_, holders)| holders.len() > 1) {
        holders.sort_by_key(|node| (node.created, &node.record.name));
        let Some((first, later)) = holders.split_first() else { continue };
        for node in later {
            let what =
                format!("its tunnel MAC {mac} is that of node {}, whose record is older", first.record.name);
            found.push((&node.record.name, what));
        }
    }
    for (address, names) in addresses.into_iter().filter(|(_, names)| names.len() > 1) {
        for name in &names {
            let others = names.iter().filter(|other| other != &name).map(|other| other.as_str());
            let others: Vec<&str> = others.take(NAMED).collect();
            found.push((*name, format!("address {address} is also that of node {}", others.join(", "))));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use types::NodeUid;

    use super::*;

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
            blocks: blocks.iter().map(|text| net(text)).collect(),
            tunnel_mac: Mac::local([1; 5]),
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
    fn a5_only_claimed_blocks_of_the_networks_division_are_admitted() {
        let claims = BTreeMap::from([
            (net("10.2.3.0/24"), name("a")),
            (net("10.2.4.0/24"), name("b")),
            // A claim does not make a block of what is none.
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
                "blocks 10.0.0.0/8, 10.9.0.0/24 are not routed: outside of the pod network",
                "block 10.2.5.7/32 is not routed: the network is divided into aligned blocks of prefix length 24",
                "blocks 10.2.6.0/24, fd00:2::/72 are not routed: not claimed in the store",
                "block 10.2.4.0/24 is not routed: claimed by node b",
            ]
        );
    }

    #[test]
    fn a5_a_record_has_a_bounded_number_of_blocks_and_addresses() {
        let many: Vec<String> = (0..3000).map(|n| format!("10.2.{}.{}/32", n / 256, n % 256)).collect();
        let blocks: Vec<&str> = many.iter().map(String::as_str).collect();
        let addresses: Vec<String> = (1..=20).map(|n| format!("192.0.2.{n}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let shown = sentences(&record(&blocks, &addresses), &BTreeMap::new());
        let [blocks, beyond, addresses] = &shown[..] else { panic!("{shown:?}") };
        assert!(blocks.contains("10.2.0.2/32 and 1021 more are not routed"), "{blocks}");
        assert!(
            beyond.contains("and 1973 more") && beyond.ends_with("a record may have 1024 at most"),
            "{beyond}"
        );
        assert!(addresses.contains("and 9 more are not used: a record may have 8 at most"), "{addresses}");
        assert!(shown.iter().all(|one| one.len() < 200), "{shown:?}");
    }

    #[test]
    fn a5_addresses_that_reach_no_node_are_refused_with_the_reason() {
        for (address, why) in [
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
            let shown = sentences(&record(&[], &[address, "192.0.2.1", "2001:db8::1"]), &BTreeMap::new());
            let [one] = &shown[..] else { panic!("{address}: {shown:?}") };
            assert!(one.starts_with("address ") && one.contains(" is not used: "), "{one}");
            assert!(one.contains(why), "{one}");
        }
    }

    #[test]
    fn a5_of_two_with_one_mac_the_older_record_keeps_it() {
        let node = |text: &str, created| {
            let record = NodeRecord { name: name(text), ..record(&[], &["192.0.2.1"]) };
            StoredNode { record, created }
        };
        let nodes = [node("a", 9), node("b", 4)];
        let found = shared_parts(&nodes);
        let of_a: Vec<&str> =
            found.iter().filter(|(one, _)| one.as_str() == "a").map(|(_, what)| what.as_str()).collect();
        assert_eq!(
            of_a,
            [
                "its tunnel MAC 02:01:01:01:01:01 is that of node b, whose record is older",
                "address 192.0.2.1 is also that of node b"
            ]
        );
        assert_eq!(found.len(), 3, "{found:?}");
    }
}
