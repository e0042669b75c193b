//! The table of peers as nft text, and its elements. Pure.
//!
//! Positions in a packet are counted in bits from the UDP header: 64 of UDP, 64 of VXLAN (the VNI in its last word), and
//! then the inner frame with its Ethernet header of 112.

use std::net::IpAddr;

use ipnet::IpNet;
use types::{AttachmentKey, Digest, NetworkName};

use super::{Entry, PeerRules, PeerSource};
use crate::ruleset::{REVISION, REVISION_KEY};

const PREFIX: &str = "podwire-peers-";

const VNI: &str = "@th,96,24";
const INNER_MAC: &str = "@th,128,48";
const INNER_TYPE: &str = "@th,224,16";
/// Where inner source addresses begin.
const SOURCE4: u16 = 336;
const SOURCE6: u16 = 304;
const IPV4: &str = "0x0800";
const IPV6: &str = "0x86dd";

/// An inner packet of neighbour discovery: neighbours of tunnels are permanent, and nothing is learnt from packets.
const DISCOVERY: &str = "@th,288,8 58 @th,560,8 133-137";

/// In the map of the revision: the block lengths, by which the keys of a table are read.
pub(super) const LENGTHS_KEY: u32 = REVISION_KEY + 1;

const PEERS4: &str = "peers4";
const PEERS6: &str = "peers6";

pub(super) fn name_of(network: &NetworkName) -> String {
    format!("{PREFIX}{}", AttachmentKey::network_dir(network))
}

pub(super) fn network_of(table: &str) -> Option<&str> {
    table.strip_prefix(PREFIX)
}

/// Is this the name of a table of peers?
pub(crate) fn is_peer_table(name: &[u8]) -> bool {
    name.starts_with(PREFIX.as_bytes())
}

/// The sets of one outer and one inner family.
struct Pair {
    block: &'static str,
    host: &'static str,
    /// `ip` or `ip6`, of the outer packet.
    outer: &'static str,
    is_outer4: bool,
    is_inner4: bool,
}

const PAIRS: [Pair; 4] = [
    Pair { block: "over4_block4", host: "over4_host4", outer: "ip", is_outer4: true, is_inner4: true },
    Pair { block: "over4_block6", host: "over4_host6", outer: "ip", is_outer4: true, is_inner4: false },
    Pair { block: "over6_block4", host: "over6_host4", outer: "ip6", is_outer4: false, is_inner4: true },
    Pair { block: "over6_block6", host: "over6_host6", outer: "ip6", is_outer4: false, is_inner4: false },
];

/// The first bits of an inner source address, as an expression for nft. Loads are whole bytes; the rest is masked out.
struct Bits {
    start: u16,
    loaded: u16,
    mask: Option<u128>,
}

impl Bits {
    fn of(is_v4: bool, length: u8) -> Self {
        let (length, start) = (u16::from(length), if is_v4 { SOURCE4 } else { SOURCE6 });
        let loaded = length.next_multiple_of(8).max(8);
        let spare = loaded - length;
        let all = u128::MAX >> (128 - u32::from(loaded));
        Self { start, loaded, mask: (spare > 0).then(|| all & !((1 << spare) - 1)) }
    }

    fn load(&self) -> String {
        format!("@th,{},{}", self.start, self.loaded)
    }

    fn expression(&self) -> String {
        match self.mask {
            Some(mask) => format!("{} & {mask:#x}", self.load()),
            None => self.load(),
        }
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

impl PeerRules {
    fn length(&self, is_v4: bool) -> Option<u8> {
        if is_v4 { self.block4 } else { self.block6 }
    }

    fn local(&self, is_v4: bool) -> Option<IpAddr> {
        self.locals.iter().copied().find(|local| local.is_ipv4() == is_v4)
    }

    /// Those that packets can come by: a tunnel of the outer family, and pods of the inner one.
    fn pairs(&self) -> impl Iterator<Item = (&'static Pair, IpAddr, u8)> {
        PAIRS
            .iter()
            .filter_map(|pair| Some((pair, self.local(pair.is_outer4)?, self.length(pair.is_inner4)?)))
    }

    pub(super) fn sets(&self) -> impl Iterator<Item = &'static str> {
        self.pairs().flat_map(|(pair, _, _)| [pair.block, pair.host]).chain([PEERS4, PEERS6])
    }

    /// What a source is in the sets. A block of another length than the network's is nothing: no lookup could find it.
    pub(super) fn entries(&self, source: &PeerSource) -> Vec<Entry> {
        let PeerSource { outer, inner } = source;
        let is_host = inner.prefix_len() == inner.max_prefix_len();
        let mut entries = Vec::new();
        if is_host && inner.addr() == *outer {
            entries.push((if outer.is_ipv4() { PEERS4 } else { PEERS6 }, octets(*outer)));
        }
        let is_v4 = matches!(inner, IpNet::V4(_));
        let pair =
            self.pairs().find(|(pair, ..)| (pair.is_outer4, pair.is_inner4) == (outer.is_ipv4(), is_v4));
        let Some((pair, _, length)) = pair else { return entries };
        let (set, length) = match inner.prefix_len() {
            same if same == length => (pair.block, length),
            _ if is_host => (pair.host, inner.max_prefix_len()),
            _ => return entries,
        };
        let mut key = octets(*outer);
        key.extend(&octets(inner.network())[..usize::from(length.div_ceil(8))]);
        key.resize(key.len().next_multiple_of(4), 0);
        entries.push((set, key));
        entries
    }

    /// The table without elements, for `nft -f -`.
    pub(super) fn text(&self, name: &str) -> String {
        let (revision, lengths) = (self.revision(name), self.lengths());
        format!(
            "{}flush map inet {name} {REVISION}\nadd element inet {name} {REVISION} {{ {REVISION_KEY} : {revision:#010x}, \
             {LENGTHS_KEY} : {lengths:#010x} }}\n",
            self.structure(name)
        )
    }

    /// Zero stands for a family that pods do not have.
    fn lengths(&self) -> u32 {
        let [v4, v6] = [self.block4, self.block6].map(Option::unwrap_or_default);
        u32::from_be_bytes([0, 0, v4, v6])
    }

    /// Do keys of this set in a table with these lengths mean the same as in one with these rules?
    pub(super) fn fits(&self, set: &str, lengths: Option<u32>) -> bool {
        PAIRS.iter().all(|pair| pair.block != set) || lengths == Some(self.lengths())
    }

    /// Another process may have made a set of this name for other keys.
    pub(super) fn is_key(&self, (set, key): &Entry) -> bool {
        let pair = self.pairs().find(|(pair, ..)| pair.block == *set || pair.host == *set);
        let length = match pair {
            Some((pair, _, length)) => {
                let full = if pair.is_inner4 { 4 } else { 16 };
                let inner = if pair.block == *set { usize::from(length.div_ceil(8)) } else { full };
                let outer = if pair.is_outer4 { 4 } else { 16 };
                outer + inner.next_multiple_of(4)
            }
            None if *set == PEERS4 => 4,
            None => 16,
        };
        key.len() == length
    }

    /// A number that changes with the text.
    pub(super) fn revision(&self, name: &str) -> u32 {
        let [a, b, c, d, _] = Digest::of(&["peers", &self.structure(name)]).first5();
        u32::from_be_bytes([a, b, c, d])
    }

    fn structure(&self, name: &str) -> String {
        format!(
            "table inet {name} {{
\tcomment \"podwire\"
\tmap {REVISION} {{ type mark : mark; }}
{}\tchain input {{ type filter hook input priority -299; policy accept; }}
\tchain forward {{ type filter hook forward priority -151; policy accept; }}
\tchain receive {{ }}
\tchain send {{ }}
}}
table inet {name} {{
{}}}
",
            self.sets_text(),
            self.rules_text(),
        )
    }

    fn sets_text(&self) -> String {
        let mut out = String::new();
        for (pair, _, length) in self.pairs() {
            let outer = format!("{} saddr", pair.outer);
            let full = if pair.is_inner4 { 32 } else { 128 };
            for (set, length) in [(pair.block, length), (pair.host, full)] {
                let load = Bits::of(pair.is_inner4, length).load();
                out.push_str(&format!("\tset {set} {{ typeof {outer} . {load}; }}\n"));
            }
        }
        out.push_str(&format!(
            "\tset {PEERS4} {{ type ipv4_addr; }}\n\tset {PEERS6} {{ type ipv6_addr; }}\n"
        ));
        out
    }

    fn rules_text(&self) -> String {
        let dispatch = format!("udp dport {} {VNI} {:#x}", self.port, self.vni);
        let [a, b, c, d, e, f] = self.mac.octets();
        let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        let mut accepts = String::new();
        let mut drops_discovery = false;
        for is_host in [false, true] {
            for (pair, local, length) in self.pairs() {
                let full = if pair.is_inner4 { 32 } else { 128 };
                let (set, length) = if is_host { (pair.host, full) } else { (pair.block, length) };
                let (outer, kind) = (pair.outer, if pair.is_inner4 { IPV4 } else { IPV6 });
                let source = Bits::of(pair.is_inner4, length).expression();
                if !pair.is_inner4 && !drops_discovery {
                    drops_discovery = true;
                    accepts.push_str(&format!("\t\t{INNER_TYPE} {IPV6} {DISCOVERY} drop\n"));
                }
                accepts.push_str(&format!(
                    "\t\t{INNER_TYPE} {kind} {outer} daddr {local} {outer} saddr . {source} @{set} accept\n"
                ));
            }
        }
        format!(
            "\tchain input {{
\t\t{dispatch} goto receive
\t}}
\tchain receive {{
\t\t# also broadcast and multicast
\t\t{INNER_MAC} != {mac:#014x} drop
{accepts}\t\tcounter drop
\t}}
\tchain forward {{
\t\t{dispatch} goto send
\t}}
\tchain send {{
\t\t# this node may be another one's router
\t\tip saddr @{PEERS4} accept
\t\tip6 saddr @{PEERS6} accept
\t\tip daddr @{PEERS4} drop
\t\tip6 daddr @{PEERS6} drop
\t}}
"
        )
    }

    /// A key as nft writes it: an address, or an address and as many bytes as are loaded of the inner one.
    pub(super) fn key_text(&self, set: &str, key: &[u8]) -> String {
        let Some(pair) = PAIRS.iter().find(|pair| pair.block == set || pair.host == set) else {
            return address(key);
        };
        let full = if pair.is_inner4 { 32 } else { 128 };
        let length = if pair.block == set { self.length(pair.is_inner4).unwrap_or(full) } else { full };
        let (outer, inner) = key.split_at(key.len().min(if pair.is_outer4 { 4 } else { 16 }));
        let digits: String =
            inner.iter().take(usize::from(length.div_ceil(8))).map(|octet| format!("{octet:02x}")).collect();
        format!("{} . 0x{digits}", address(outer))
    }
}

fn address(octets: &[u8]) -> String {
    match (octets.first_chunk::<16>(), octets.first_chunk::<4>()) {
        (Some(v6), _) => IpAddr::from(*v6).to_string(),
        (None, Some(v4)) => IpAddr::from(*v4).to_string(),
        (None, None) => String::new(),
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
            block4: Some(block4),
            block6: Some(block6),
        }
    }

    fn entries(rules: &PeerRules, outer: &str, inner: &str) -> Vec<String> {
        let source = PeerSource { outer: outer.parse().unwrap(), inner: inner.parse().unwrap() };
        let entries = rules.entries(&source);
        entries.iter().map(|(set, key)| format!("{set} {}", rules.key_text(set, key))).collect()
    }

    #[test]
    fn a_source_is_an_element_of_its_families_and_length() {
        let even = rules(24, 72);
        assert_eq!(entries(&even, "192.0.2.5", "10.42.3.0/24"), ["over4_block4 192.0.2.5 . 0x0a2a03"]);
        assert_eq!(
            entries(&even, "192.0.2.5", "fd42:0:0:0:300::/72"),
            ["over4_block6 192.0.2.5 . 0xfd4200000000000003"]
        );
        assert_eq!(
            entries(&even, "192.0.2.5", "192.0.2.5/32"),
            ["peers4 192.0.2.5", "over4_host4 192.0.2.5 . 0xc0000205"]
        );
        assert_eq!(entries(&even, "192.0.2.5", "10.42.2.0/23"), [""; 0], "another length");
        // There is no tunnel over IPv6, but its port is protected.
        assert_eq!(entries(&even, "2001:db8::5", "10.42.3.0/24"), [""; 0]);
        assert_eq!(entries(&even, "2001:db8::5", "2001:db8::5/128"), ["peers6 2001:db8::5"]);
        assert_eq!(
            entries(&rules(26, 70), "192.0.2.5", "10.42.3.64/26"),
            ["over4_block4 192.0.2.5 . 0x0a2a0340"]
        );
    }

    #[test]
    fn odd_lengths_are_masked() {
        let text = rules(26, 70).text("t");
        assert!(text.contains("ip saddr . @th,336,32 & 0xffffffc0 @over4_block4 accept"), "{text}");
        assert!(text.contains("ip saddr . @th,304,72 & 0xfffffffffffffffffc @over4_block6 accept"), "{text}");
        assert!(rules(24, 72).text("t").contains("ip saddr . @th,336,24 @over4_block4 accept"));
        assert!(rules(24, 128).text("t").contains("ip saddr . @th,304,128 @over4_block6 accept"));
    }

    #[test]
    fn another_address_length_or_number_is_another_revision() {
        let base = rules(24, 72);
        for other in [
            PeerRules { vni: 1, ..base.clone() },
            PeerRules { port: 1, ..base.clone() },
            PeerRules { mac: "02:00:00:00:00:08".parse().unwrap(), ..base.clone() },
            PeerRules { locals: vec!["192.0.2.2".parse().unwrap()], ..base.clone() },
            rules(25, 72),
            PeerRules { block6: None, ..base.clone() },
        ] {
            assert_ne!(base.revision("t"), other.revision("t"), "{other:?}");
        }
    }
}
