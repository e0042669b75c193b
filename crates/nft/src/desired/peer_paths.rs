//! The path of packets from pods of other nodes. Packets that are forwarded, usually to pods of this node, are accepted from a peer's block
//! only in frames from a link of the peer or from its tunnel device.
//!
//! One lookup for each length of blocks finds out whether the source is in a block that is checked. Only then a second one compares the
//! MAC. Packets for this node itself are not checked: a peer may send them by another path, for example through a router.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use types::PeerSource;

use super::ChainType::Filter;
use super::HookPoint::Forward;
use super::peers::PeerRules;
use super::{Chain, Name, Set, TableId, Type};
use crate::element::{Element, Field};

/// Before the chain of policies, which relies on source addresses.
const PRIORITY: i32 = -150;
const CHAIN: &str = "path";

/// The blocks of one family and length.
struct BlockPaths {
    is_v4: bool,
    length: u8,
}

impl BlockPaths {
    fn has(&self, block: &IpNet) -> bool {
        (self.is_v4, self.length) == (block.addr().is_ipv4(), block.prefix_len())
    }

    fn suffix(&self) -> String {
        format!("{}_{}", if self.is_v4 { 4 } else { 6 }, self.length)
    }

    fn blocks(&self) -> String {
        format!("checked{}", self.suffix())
    }

    fn links(&self) -> String {
        format!("links{}", self.suffix())
    }

    fn chain(&self) -> String {
        format!("path{}", self.suffix())
    }

    fn address(&self) -> Type {
        if self.is_v4 { Type::Ip4 } else { Type::Ip6 }
    }

    /// The block of the source address.
    fn source(&self) -> String {
        let length = u32::from(self.length);
        if self.is_v4 {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(length)).unwrap_or(0);
            format!("ip saddr & {}", Ipv4Addr::from(mask))
        } else {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(length)).unwrap_or(0);
            format!("ip6 saddr & {}", Ipv6Addr::from(mask))
        }
    }
}

impl PeerRules {
    fn paths(&self) -> impl Iterator<Item = BlockPaths> {
        self.block_lengths().into_iter().map(|(is_v4, length)| BlockPaths { is_v4, length })
    }

    pub(super) fn path_sets(&self) -> Vec<Set> {
        let of = |paths: BlockPaths| {
            [
                Set::lasting(paths.blocks(), &[paths.address()]),
                Set::lasting(paths.links(), &[paths.address(), Type::Mac]),
            ]
        };
        self.paths().flat_map(of).collect()
    }

    pub(super) fn path_chains(&self) -> Vec<Chain> {
        let (mut rules, mut chains) = (Vec::<Name>::new(), Vec::new());
        for paths in self.paths() {
            let (source, chain) = (paths.source(), paths.chain());
            rules.push(format!("{source} @{} goto {chain}", paths.blocks()).into());
            let checks: Vec<Name> = vec![
                format!("{source} . ether saddr @{} accept", paths.links()).into(),
                "counter drop".into(),
            ];
            chains.push(Chain { name: chain.into(), rules: checks, ..Chain::plain("", &[]) });
        }
        chains.push(Chain { rules, ..Chain::plain(CHAIN, &[]) }.at(Filter, Forward, PRIORITY));
        chains
    }

    /// The elements of sources that are not in the tunnel. A block of another length has none.
    pub(super) fn path_elements<'a>(&self, table: TableId<'a>, source: &PeerSource) -> Vec<Element<'a>> {
        let (block, mac) = match source {
            PeerSource::Tunnel { .. } => return Vec::new(),
            PeerSource::Link { mac, block } => (block, Some(*mac)),
            PeerSource::Checked { block } => (block, None),
        };
        let Some(paths) = self.paths().find(|paths| paths.has(block)) else { return Vec::new() };
        let network: IpAddr = block.network();
        vec![match mac {
            Some(mac) => Element::member(table, paths.links(), vec![Field::Ip(network), Field::Mac(mac)]),
            None => Element::member(table, paths.blocks(), vec![Field::Ip(network)]),
        }]
    }
}
