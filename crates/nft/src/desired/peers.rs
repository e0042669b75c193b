//! The table `inet podwire-peers-NETWORK` decides which packets enter the tunnels of one network. It exists only while the node has
//! such a tunnel or peers, and only the network's agent changes it.
//!
//! ```text
//! input hook, before decapsulation:  port and VNI ─► own address, own MAC ─► (sender, inner source) in a set ─► accept
//!                                                                                              anything else ─► drop
//! forward hook:                      port and VNI, to a peer's address ─► drop
//!                                    from a peer's block (`peer_paths`) ─► from a MAC of the peer ─► accept, else drop
//! ```
//!
//! One lookup for each length of blocks binds the inner source to the sender: the first bits of the inner source are the block. A
//! set without elements accepts nothing. Packets that are forwarded to a peer's tunnel port come from pods or other hosts, never
//! from this node's own tunnel. Without the rule, masquerading would give them this node's address, which the peer accepts. Only
//! at the forward hook destinations are final in both directions of a connection: the destination of a reply can also become a
//! tunnel port.
//!
//! Positions in a packet are bits from the UDP header: 64 bits of UDP, 64 bits of VXLAN (the VNI in its last word), then the inner
//! frame with its Ethernet header of 112 bits.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use types::{Mac, NetworkName, PeerSource};

use super::ChainType::Filter;
use super::HookPoint::{Forward, Input};
use super::{Chain, Name, NetworkTable, Set, Table, TableFamily, TableId, Type};
use crate::element::{Element, Field};

const VNI: &str = "@th,96,24";
const INNER_MAC: &str = "@th,128,48";
const INNER_TYPE: &str = "@th,224,16";
/// Positions of the inner source address.
const SOURCE4: u16 = 336;
const SOURCE6: u16 = 304;
const IPV4: &str = "0x0800";
const IPV6: &str = "0x86dd";

/// An inner packet of neighbour discovery. Neighbours of tunnels are permanent, so none is needed.
const DISCOVERY: &str = "@th,288,8 58 @th,560,8 133-137";

const PEERS4: &str = "peers4";
const PEERS6: &str = "peers6";

/// The endpoints of a network's tunnels on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRules {
    pub vni: u32,
    pub port: u16,
    /// The MAC of this node's tunnel devices.
    pub mac: Mac,
    /// The local addresses of the tunnels, at most one of each family.
    pub locals: Vec<IpAddr>,
    /// The prefix lengths of the blocks of all networks, for each address family of pods.
    pub blocks4: BTreeSet<u8>,
    pub blocks6: BTreeSet<u8>,
}

/// Sources of one outer and one inner address family: blocks of one length, or single addresses.
struct Sources {
    is_outer4: bool,
    is_inner4: bool,
    is_host: bool,
    /// The prefix length of the inner source.
    length: u8,
    /// The local address of the tunnel of the outer family.
    local: IpAddr,
}

fn full(is_v4: bool) -> u8 {
    if is_v4 { 32 } else { 128 }
}

/// `4` or `6`
fn digit(is_v4: bool) -> u8 {
    if is_v4 { 4 } else { 6 }
}

impl Sources {
    /// The length is a part of the name, because blocks of another length are other sources.
    fn set(&self) -> String {
        let (outer, inner) = (digit(self.is_outer4), digit(self.is_inner4));
        if self.is_host {
            format!("over{outer}_host{inner}")
        } else {
            format!("over{outer}_block{inner}_{}", self.length)
        }
    }

    /// The loaded bits: whole bytes.
    fn loaded(&self) -> u16 {
        u16::from(self.length).next_multiple_of(8).max(8)
    }

    fn bits(&self) -> Type {
        Type::Bits { start: if self.is_inner4 { SOURCE4 } else { SOURCE6 }, length: self.loaded() }
    }

    fn key(&self) -> [Type; 2] {
        [if self.is_outer4 { Type::Ip4 } else { Type::Ip6 }, self.bits()]
    }

    /// The first bits of the inner source. Bits beyond the length are masked.
    fn expression(&self) -> String {
        let load = self.bits().expression();
        let spare = self.loaded() - u16::from(self.length);
        let all = u128::MAX >> (128 - u32::from(self.loaded()));
        if spare == 0 { load } else { format!("{load} & {:#x}", all & !((1 << spare) - 1)) }
    }

    fn rule(&self) -> Name {
        let (outer, kind) =
            (if self.is_outer4 { "ip" } else { "ip6" }, if self.is_inner4 { IPV4 } else { IPV6 });
        let (local, source, set) = (self.local, self.expression(), self.set());
        format!("{INNER_TYPE} {kind} {outer} daddr {local} {outer} saddr . {source} @{set} accept").into()
    }

    fn has(&self, outer: IpAddr, inner: &IpNet) -> bool {
        let is_inner4 = matches!(inner, IpNet::V4(_));
        (self.is_outer4, self.is_inner4, self.length) == (outer.is_ipv4(), is_inner4, inner.prefix_len())
    }
}

impl PeerRules {
    /// The possible sources: tunnels of the outer family with pods of the inner family. Blocks come first.
    fn sources(&self) -> Vec<Sources> {
        let mut sources = Vec::new();
        for is_host in [false, true] {
            for (is_outer4, is_inner4) in [(true, true), (true, false), (false, true), (false, false)] {
                let local = self.locals.iter().copied().find(|local| local.is_ipv4() == is_outer4);
                let blocks = if is_inner4 { &self.blocks4 } else { &self.blocks6 };
                let host = BTreeSet::from_iter((!blocks.is_empty()).then_some(full(is_inner4)));
                for (local, length) in local.iter().flat_map(|local| {
                    let lengths = if is_host { &host } else { blocks };
                    lengths.iter().map(move |length| (*local, *length))
                }) {
                    sources.push(Sources { is_outer4, is_inner4, is_host, length, local });
                }
            }
        }
        sources
    }

    /// The elements of a source. A block of another length than those of the networks has none, because no lookup would match it.
    pub(crate) fn elements<'a>(&self, table: TableId<'a>, source: &PeerSource) -> Vec<Element<'a>> {
        let (outer, inner) = match source {
            PeerSource::Tunnel { outer, inner } => (outer, inner),
            PeerSource::Link { .. } | PeerSource::Checked { .. } => return self.path_elements(table, source),
        };
        let mut elements = Vec::new();
        if inner.prefix_len() == inner.max_prefix_len() && inner.addr() == *outer {
            let set = if outer.is_ipv4() { PEERS4 } else { PEERS6 };
            elements.push(Element::member(table, set, vec![Field::Ip(*outer)]));
        }
        if let Some(sources) = self.sources().into_iter().find(|sources| sources.has(*outer, inner)) {
            let bits = Field::bits(inner.network(), usize::from(sources.loaded() / 8));
            elements.push(Element::member(table, sources.set(), vec![Field::Ip(*outer), bits]));
        }
        elements
    }

    pub(crate) fn table(&self, network: &NetworkName) -> Table {
        let dispatch = format!("udp dport {} {VNI} {:#x}", self.port, self.vni);
        let to = |chain: &str| vec![Name::from(format!("{dispatch} goto {chain}"))];
        let sources = self.sources();
        let sets = sources.iter().map(|sources| Set::lasting(sources.set(), &sources.key()));
        let sets = sets
            .chain([Set::lasting(PEERS4, &[Type::Ip4]), Set::lasting(PEERS6, &[Type::Ip6])])
            .chain(self.path_sets());
        let mut chains = vec![
            Chain { rules: to("receive"), ..Chain::plain("input", &[]).at(Filter, Input, -299) },
            Chain { rules: to("send"), ..Chain::plain("forward", &[]).at(Filter, Forward, -151) },
            Chain { rules: self.receive(&sources), ..Chain::plain("receive", &[]) },
            // This node may route packets between other nodes.
            Chain::plain(
                "send",
                &[
                    "ip saddr @peers4 accept",
                    "ip6 saddr @peers6 accept",
                    "ip daddr @peers4 drop",
                    "ip6 daddr @peers6 drop",
                ],
            ),
        ];
        let sets = sets.collect();
        chains.extend(self.path_chains());
        Table::new(TableFamily::Inet, NetworkTable::Peers.name(network), sets, chains)
    }

    /// The families and prefix lengths of blocks. True: IPv4.
    pub(super) fn block_lengths(&self) -> Vec<(bool, u8)> {
        let lengths4 = self.blocks4.iter().map(|length| (true, *length));
        lengths4.chain(self.blocks6.iter().map(|length| (false, *length))).collect()
    }

    fn receive(&self, sources: &[Sources]) -> Vec<Name> {
        let [a, b, c, d, e, f] = self.mac.octets();
        let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        // This includes broadcast and multicast.
        let mut rules = vec![Name::from(format!("{INNER_MAC} != {mac:#014x} drop"))];
        let mut drops_discovery = false;
        for sources in sources {
            if !sources.is_inner4 && !drops_discovery {
                drops_discovery = true;
                rules.push(format!("{INNER_TYPE} {IPV6} {DISCOVERY} drop").into());
            }
            rules.push(sources.rule());
        }
        rules.push("counter drop".into());
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(block4: u8, block6: u8) -> PeerRules {
        PeerRules {
            vni: 4077,
            port: 4789,
            mac: "02:00:00:00:00:07".parse().unwrap(),
            locals: vec!["192.0.2.1".parse().unwrap()],
            blocks4: BTreeSet::from([block4]),
            blocks6: BTreeSet::from([block6]),
        }
    }

    fn table(rules: &PeerRules) -> Table {
        rules.table(&"t".try_into().unwrap())
    }

    fn elements(rules: &PeerRules, outer: &str, inner: &str) -> Vec<String> {
        let source = PeerSource::Tunnel { outer: outer.parse().unwrap(), inner: inner.parse().unwrap() };
        let id = TableId { family: TableFamily::Inet, name: "t" };
        rules.elements(id, &source).iter().map(|e| e.to_string().replace("inet t ", "")).collect()
    }

    #[test]
    fn a_source_is_an_element_by_families_and_prefix_length() {
        let even = rules(24, 72);
        assert_eq!(
            elements(&even, "192.0.2.5", "10.42.3.0/24"),
            ["over4_block4_24 { 192.0.2.5 . 0x0a2a03 }"]
        );
        assert_eq!(
            elements(&even, "192.0.2.5", "fd42:0:0:0:300::/72"),
            ["over4_block6_72 { 192.0.2.5 . 0xfd4200000000000003 }"]
        );
        assert_eq!(
            elements(&even, "192.0.2.5", "192.0.2.5/32"),
            ["peers4 { 192.0.2.5 }", "over4_host4 { 192.0.2.5 . 0xc0000205 }"]
        );
        assert_eq!(elements(&even, "192.0.2.5", "10.42.2.0/23"), [""; 0], "another length");
        // There is no tunnel over IPv6, but the peer's port is protected.
        assert_eq!(elements(&even, "2001:db8::5", "10.42.3.0/24"), [""; 0]);
        assert_eq!(elements(&even, "2001:db8::5", "2001:db8::5/128"), ["peers6 { 2001:db8::5 }"]);
        assert_eq!(
            elements(&rules(26, 70), "192.0.2.5", "10.42.3.64/26"),
            ["over4_block4_26 { 192.0.2.5 . 0x0a2a0340 }"]
        );
    }

    #[test]
    fn d_networks_with_blocks_of_several_lengths_have_a_set_for_each() {
        let several = PeerRules { blocks4: BTreeSet::from([24, 26]), ..rules(24, 72) };
        assert_eq!(
            elements(&several, "192.0.2.5", "10.42.3.0/24"),
            ["over4_block4_24 { 192.0.2.5 . 0x0a2a03 }"]
        );
        assert_eq!(
            elements(&several, "192.0.2.5", "10.9.3.64/26"),
            ["over4_block4_26 { 192.0.2.5 . 0x0a090340 }"]
        );
        let text = table(&several).text();
        for rule in ["@over4_block4_24 accept", "@over4_block4_26 accept", "@over4_host4 accept"] {
            assert_eq!(text.matches(rule).count(), 1, "{rule}: {text}");
        }
    }

    #[test]
    fn prefix_lengths_that_are_no_whole_bytes_are_masked() {
        let text = table(&rules(26, 70)).text();
        assert!(text.contains("ip saddr . @th,336,32 & 0xffffffc0 @over4_block4_26 accept"), "{text}");
        assert!(
            text.contains("ip saddr . @th,304,72 & 0xfffffffffffffffffc @over4_block6_70 accept"),
            "{text}"
        );
        assert!(table(&rules(24, 72)).text().contains("ip saddr . @th,336,24 @over4_block4_24 accept"));
        assert!(table(&rules(24, 128)).text().contains("ip saddr . @th,304,128 @over4_block6_128 accept"));
    }

    #[test]
    fn every_changed_setting_changes_the_revision() {
        let base = rules(24, 72);
        for other in [
            PeerRules { vni: 1, ..base.clone() },
            PeerRules { port: 1, ..base.clone() },
            PeerRules { mac: "02:00:00:00:00:08".parse().unwrap(), ..base.clone() },
            PeerRules { locals: vec!["192.0.2.2".parse().unwrap()], ..base.clone() },
            rules(25, 72),
            PeerRules { blocks6: BTreeSet::new(), ..base.clone() },
        ] {
            assert_ne!(table(&base).revision(), table(&other).revision(), "{other:?}");
        }
    }
}
