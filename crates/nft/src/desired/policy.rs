//! The table of policies. Its chains are fixed, and all policies are elements of its maps ([`policy::PolicyElement`]).
//!
//! ```text
//! forward-policy ─► forbidden flow: drop ─► reply: accept ─┬► from a pod's link: egress  ─┐
//!                                                          └► to a pod's link:   ingress ─┴► class ─► specific maps
//! input-policy (optional) ─► egress-node ─► class ─► specific maps ─► tenants ─► maps of any peer ─► accept, or the deny chain
//! ```
//!
//! `meta priority` is the only register that a data map can write and a later map can read. It has the class of the peer first. A
//! matching element replaces the class by a result, which no key contains, so that all later lookups by class fail. It is 0:0 again
//! after a flow was accepted. Only the first packet of a flow passes this, so later packets keep the priority that they had.
//!
//! The maps have data instead of verdicts, because denied packets are counted and logged, and jumps to a chain are slow to change.
//!
//! Packets that the kernel cannot assign to a flow (state invalid) are judged like the first packet of a flow. So pods without
//! policies receive them. If they are denied, they are counted separately and not logged: they are late or forged segments, not
//! attempts to connect. Connection tracking reassembles fragments before the forward hook. Non-first fragments without it have no
//! ports, so only elements without ports match them. Frames that are not IP do not pass the hook. A transport header that is too
//! short has no ports, either.

use model::objects::Direction;
use policy::{ClassId, PolicyVerdict, ProfileId};

use super::ChainType::Filter;
use super::HookPoint::{Forward, Input};
use super::Type::{Ip4, Ip6};
use super::policy_maps::{VerdictMap, classes, link_group};
use super::{Chain, Name, Set, SetKeys, Table, TableFamily, TableId};

pub use super::policy_maps::PolicySizes;

pub(crate) const POLICY: TableId<'static> = TableId { family: TableFamily::Inet, name: "podwire-policy" };
pub(crate) const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];
/// The chains that drop forbidden flows in their first rule, which is the only one with a counter.
pub(crate) const FORBIDDEN_CHAINS: [&str; 2] = ["forward-policy", "input-policy"];
/// The maps and sets of addresses, for IPv4 and IPv6.
pub(crate) const CLASSES: [&str; 2] = ["class4", "class6"];
pub(crate) const RANGES: [&str; 2] = ["range4", "range6"];
pub(crate) const OWN: [&str; 2] = ["self4", "self6"];
/// The netlink group that gets denied packets.
pub const LOG_GROUP: u16 = 113;
/// Bytes of a denied packet that are logged: all headers.
const LOGGED_BYTES: u32 = 128;
/// Before the chains of other programs, so that these see only packets that policies accept.
const PRIORITY: i32 = -5;

/// One bit of the mark of flows. It is set for flows that a later change forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkBit(u32);

impl MarkBit {
    /// None if marks have no such bit.
    pub fn new(number: u8) -> Option<Self> {
        1_u32.checked_shl(number.into()).map(Self)
    }

    pub fn mask(self) -> u32 {
        self.0
    }
}

/// Whether flows from pods to their own node are judged. These do not pass the forward hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnNode {
    /// All of them are accepted.
    Accepted,
    /// Like flows to other peers, if the address has a class of its own.
    Judged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyOptions {
    pub forbidden: MarkBit,
    pub own_node: OwnNode,
    /// Denied packets that are logged per second and direction. None: the kernel needs no support for logging.
    pub logs_per_second: Option<u32>,
    pub sizes: PolicySizes,
}

/// The names and expressions of one direction.
struct DirectionWords {
    chain: &'static str,
    specific: &'static str,
    deny: &'static str,
    peer: &'static str,
}

fn words(direction: Direction) -> DirectionWords {
    match direction {
        Direction::Ingress => DirectionWords {
            chain: "ingress",
            specific: "ingress-specific",
            deny: "ingress-deny",
            peer: "saddr",
        },
        Direction::Egress => DirectionWords {
            chain: "egress",
            specific: "egress-specific",
            deny: "egress-deny",
            peer: "daddr",
        },
    }
}

/// The chain that counts and logs what this direction denies.
pub(crate) fn deny_chain(direction: Direction) -> &'static str {
    words(direction).deny
}

/// The prefix of logged packets.
pub(crate) fn log_prefix(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "podwire-in",
        Direction::Egress => "podwire-out",
    }
}

/// The number that a map contains for this verdict.
pub(crate) fn result(verdict: PolicyVerdict) -> ClassId {
    match verdict {
        PolicyVerdict::Accept => ClassId::ACCEPTED,
        PolicyVerdict::Drop => ClassId::DROPPED,
    }
}

fn class_text(class: ClassId) -> String {
    format!("{:x}:{:x}", class.0 >> 16, class.0 & 0xffff)
}

/// The table without elements.
pub fn table(options: &PolicyOptions) -> Table {
    let sizes = options.sizes;
    let mut sets = Vec::new();
    for (index, address) in [Ip4, Ip6].into_iter().enumerate() {
        let range = classes(RANGES[index], &[address], sizes.others);
        sets.push(classes(CLASSES[index], &[address], sizes.addresses));
        sets.push(Set { keys: SetKeys::Intervals, ..range });
        sets.push(Set { size: Some(sizes.others), ..Set::lasting(OWN[index], &[address, address]) });
    }
    let mut chains = vec![forward(options)];
    for direction in DIRECTIONS {
        sets.extend(VerdictMap::all().map(|map| map.set(direction, sizes)));
        chains.extend([judge(direction), specific(direction), deny(direction, options.logs_per_second)]);
    }
    match options.own_node {
        OwnNode::Accepted => {}
        OwnNode::Judged => chains.extend([input(options), node()]),
    }
    Table::new(POLICY.family, POLICY.name, sets, chains)
}

fn chain(name: &'static str, rules: Vec<Name>) -> Chain {
    Chain { rules, ..Chain::plain(name, &[]) }
}

/// The rules before a flow is judged. The kernel's ICMP errors, and connections that a helper expects, are related.
fn known_flows(options: &PolicyOptions) -> Vec<Name> {
    vec![
        format!("ct mark & {:#010x} != 0 counter drop", options.forbidden.mask()).into(),
        "ct state established,related accept".into(),
    ]
}

/// A tunnel may have a name like that of a pod's link, but its kind is not veth. If both ends of a flow are pods of this node, both
/// are judged.
fn forward(options: &PolicyOptions) -> Chain {
    let mut rules = known_flows(options);
    rules.push(r#"iifname "pw*" meta iifkind "veth" jump egress"#.into());
    rules.push(r#"oifname "pw*" meta oifkind "veth" jump ingress"#.into());
    chain(FORBIDDEN_CHAINS[0], rules).at(Filter, Forward, PRIORITY)
}

fn input(options: &PolicyOptions) -> Chain {
    let mut rules = known_flows(options);
    rules.push(r#"iifname "pw*" meta iifkind "veth" jump egress-node"#.into());
    chain(FORBIDDEN_CHAINS[1], rules).at(Filter, Input, PRIORITY)
}

/// The rules that write the class of the peer into the register. A pod as its own peer is recognised last.
fn class_of_peer(peer: &str) -> Vec<Name> {
    let mut rules = vec![Name::from("meta priority set 0:0")];
    let exact = |(ip, set): (&str, &str)| format!("meta priority set {ip} {peer} map @{set}").into();
    let range = |(ip, set): (&str, &str)| {
        format!("meta priority 0:0 meta priority set {ip} {peer} map @{set}").into()
    };
    let own = |(ip, set): (&str, &str)| {
        let class = class_text(ClassId::SELF);
        format!("{ip} saddr . {ip} daddr @{set} meta priority set {class}").into()
    };
    let of = |sets: [&'static str; 2]| ["ip", "ip6"].into_iter().zip(sets);
    rules.extend(of(CLASSES).map(exact));
    rules.extend(of(RANGES).map(range));
    rules.extend(of(OWN).map(own));
    rules
}

/// Links without a profile are closed. An unclassified peer is denied: the ranges cover all addresses, so elements are missing.
fn judge(direction: Direction) -> Chain {
    let DirectionWords { chain: name, deny, peer, .. } = words(direction);
    let mut rules = vec![closed(direction)];
    rules.extend(class_of_peer(peer));
    rules.push(format!("meta priority {} goto {deny}", class_text(ClassId::NONE)).into());
    rules.extend(verdict_of_class(direction));
    chain(name, rules)
}

fn closed(direction: Direction) -> Name {
    let (first, last) = (ProfileId::FIRST, ProfileId::LAST);
    format!("{} != {first}-{last} goto {}", link_group(direction), words(direction).deny).into()
}

/// The rules that look up the verdict of the class in the register. An accepted flow returns.
fn verdict_of_class(direction: Direction) -> Vec<Name> {
    let DirectionWords { specific, deny, .. } = words(direction);
    let accepted: Name =
        format!("meta priority {} meta priority set 0:0 return", class_text(ClassId::ACCEPTED)).into();
    let mut rules = vec![format!("jump {specific}").into(), VerdictMap::PeerClasses.rule(direction)];
    rules.push(accepted.clone());
    rules.push(format!("meta priority {} goto {deny}", class_text(ClassId::DROPPED)).into());
    rules.extend(VerdictMap::ANY_PEER.map(|map| map.rule(direction)));
    rules.push(accepted);
    rules.push(format!("goto {deny}").into());
    rules
}

fn specific(direction: Direction) -> Chain {
    chain(words(direction).specific, VerdictMap::SPECIFIC.map(|map| map.rule(direction)).to_vec())
}

/// Egress to this node. Neighbour discovery is always accepted. Multicast and link-local addresses have no class of their own, so
/// they are accepted. The elements of the node's class complete those for any peer, so all of them decide.
fn node() -> Chain {
    let mut rules: Vec<Name> = vec![
        "icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert } accept".into(),
        closed(Direction::Egress),
        "meta priority set 0:0".into(),
        format!("meta priority set ip daddr map @{}", CLASSES[0]).into(),
        format!("meta priority set ip6 daddr map @{}", CLASSES[1]).into(),
        "meta priority 0:0 return".into(),
    ];
    rules.extend(verdict_of_class(Direction::Egress));
    chain("egress-node", rules)
}

fn deny(direction: Direction, logs_per_second: Option<u32>) -> Chain {
    let mut rules = vec!["ct state invalid counter drop".into(), "counter".into()];
    rules.extend(logs_per_second.map(|rate| {
        let prefix = log_prefix(direction);
        let log = format!(r#"log prefix "{prefix}" group {LOG_GROUP} snaplen {LOGGED_BYTES}"#);
        format!("limit rate {rate}/second burst {rate} packets {log}").into()
    }));
    rules.push("drop".into());
    chain(words(direction).deny, rules)
}
