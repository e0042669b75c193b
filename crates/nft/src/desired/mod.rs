//! Everything that Podwire wants in nftables, as values: tables with sets, maps, chains and rules. Pure.
//! Each table has a function that returns its value. All tables are rendered, applied, observed and compared by the same code.
//!
//! ```text
//! pods::tables, peers, limit, clamp, dscp, policy ─► Table ─┬► text: `nft -f -`, one transaction   (apply)
//!                                                           └► diff: against the kernel's listing  (observe, diff)
//! pod_elements::of(pod), PeerRules::elements ─► Element: one netlink request each                (request)
//! ```
//!
//! [`Firewall::reconcile_table`](crate::Firewall::reconcile_table) applies any such table with its elements and repairs drift.

pub(crate) mod clamp;
pub mod dscp;
pub(crate) mod limit;
mod peer_paths;
pub(crate) mod peers;
pub(crate) mod pods;
pub mod policy;
pub(crate) mod policy_maps;
mod text;

use std::borrow::Cow;
use std::fmt;

use types::{AttachmentKey, Digest, NetworkName};

pub use crate::element::{Data, Element, Field, MapVerdict};

/// The name of the tables of pods, in every family.
pub(crate) const TABLE: &str = "podwire";
/// The prefix of all other managed tables.
const MANAGED_PREFIX: &str = "podwire-";

/// The map that identifies a table's structure. Its one element maps [`REVISION_KEY`] to a number derived from the table's text.
pub(crate) const REVISION: &str = "revision";
pub(crate) const REVISION_KEY: u32 = 1;
/// The map with a digest of every chain and set, computed from the kernel's listing right after they were applied. Versions of
/// nft and kernel list the same rule differently, so a digest of the text cannot be compared with the listing.
pub(crate) const APPLIED: &str = "applied";

/// The name of a set, chain or table, or the text of a rule.
pub type Name = Cow<'static, str>;

/// `inet` tables filter packets at the host's IP layer, `bridge` tables filter frames between ports of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableFamily {
    Inet,
    Bridge,
}

impl TableFamily {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Bridge => "bridge",
        }
    }
}

/// A table as nft names it: `inet podwire`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId<'a> {
    pub family: TableFamily,
    pub name: &'a str,
}

impl TableId<'static> {
    /// The table of pods of this family.
    pub(crate) const fn of_pods(family: TableFamily) -> Self {
        Self { family, name: TABLE }
    }
}

impl fmt::Display for TableId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family.word(), self.name)
    }
}

/// Whether an `inet` or `bridge` table of this name is managed by Podwire.
pub(crate) fn is_managed_table(name: &str) -> bool {
    name == TABLE || name.starts_with(MANAGED_PREFIX)
}

/// The tables of one network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NetworkTable {
    Peers,
    Limit,
    Clamp,
    Dscp,
}

impl NetworkTable {
    const ALL: [Self; 4] = [Self::Peers, Self::Limit, Self::Clamp, Self::Dscp];

    fn prefix(self) -> &'static str {
        match self {
            Self::Peers => "podwire-peers-",
            Self::Limit => "podwire-limit-",
            Self::Clamp => "podwire-clamp-",
            Self::Dscp => "podwire-dscp-",
        }
    }

    pub(crate) fn name(self, network: &NetworkName) -> String {
        format!("{}{}", self.prefix(), AttachmentKey::network_dir(network))
    }

    /// The kind of a table, and its network as [`AttachmentKey::network_dir`] names it.
    pub(crate) fn of(table: &str) -> Option<(Self, &str)> {
        Self::ALL.into_iter().find_map(|kind| Some((kind, table.strip_prefix(kind.prefix())?)))
    }
}

/// The type of one field of a key or of a map's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Ip4,
    Ip6,
    Mac,
    Link,
    /// The group of a link (`ip link set … group`).
    LinkGroup,
    Protocol,
    Port,
    Mark,
    /// `major:minor`, the type of `meta priority`.
    Class,
    /// Bits of the packet, counted from the transport header. nft writes them as a number.
    Bits {
        start: u16,
        length: u16,
    },
}

/// What a set maps its keys to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetValue {
    /// It is a set, not a map.
    None,
    Data(Vec<Type>),
    Verdict,
}

/// Whether a key is one value or an interval of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetKeys {
    Exact,
    /// Every element has a [`Field::Net`] or [`Field::Ports`] in its key. Intervals must not overlap: the kernel refuses them.
    Intervals,
}

/// How elements are added and removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Members {
    /// They stay until they are deleted.
    Lasting,
    /// They may have a timeout. Elements of a removed pod expire.
    Expiring,
    /// Rules add them. Podwire neither adds nor compares them.
    Dynamic,
}

/// A set, or a map if it has a value. A set whose type changes needs a new name: the kernel refuses a transaction that declares
/// an existing set with another type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    pub name: Name,
    pub key: Vec<Type>,
    pub value: SetValue,
    pub keys: SetKeys,
    pub members: Members,
    /// The largest number of elements. Before Linux 6.13, an interval counts as two.
    pub size: Option<u32>,
}

impl Set {
    pub fn lasting(name: impl Into<Name>, key: &[Type]) -> Self {
        Self {
            name: name.into(),
            key: key.to_vec(),
            value: SetValue::None,
            keys: SetKeys::Exact,
            members: Members::Lasting,
            size: None,
        }
    }

    pub(crate) fn expiring(name: impl Into<Name>, key: &[Type]) -> Self {
        Self { members: Members::Expiring, ..Self::lasting(name, key) }
    }

    pub(crate) fn to(self, value: &[Type]) -> Self {
        Self { value: SetValue::Data(value.to_vec()), ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainType {
    Filter,
    Nat,
}

/// The hooks of base chains. Their numbers are the same in all families that Podwire uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookPoint {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

impl HookPoint {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Prerouting => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
            Self::Postrouting => 4,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        }
    }
}

/// Hook and priority of a base chain. The policy of all base chains is accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    pub kind: ChainType,
    pub hook: HookPoint,
    pub priority: i32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    pub name: Name,
    pub base: Option<Base>,
    /// In the syntax of nft.
    pub rules: Vec<Name>,
}

impl Chain {
    pub fn plain(name: &'static str, rules: &[&'static str]) -> Self {
        let rules = rules.iter().map(|rule| Name::from(*rule)).collect();
        Self { name: name.into(), base: None, rules }
    }

    #[must_use]
    pub fn at(self, kind: ChainType, hook: HookPoint, priority: i32) -> Self {
        Self { base: Some(Base { kind, hook, priority }), ..self }
    }
}

/// A table. [`Table::new`] adds the maps [`REVISION`] and [`APPLIED`] to its sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub(crate) family: TableFamily,
    pub(crate) name: Name,
    pub(crate) sets: Vec<Set>,
    pub(crate) chains: Vec<Chain>,
    /// Sets and chains with this prefix may belong to another process, which compares them itself.
    pub(crate) shared: Option<&'static str>,
}

impl Table {
    /// The name must be one that [`is_managed_table`] accepts, so that the monitor reports the table's changes.
    pub fn new(family: TableFamily, name: impl Into<Name>, sets: Vec<Set>, chains: Vec<Chain>) -> Self {
        let mark = |name| Set::lasting(name, &[Type::Mark]).to(&[Type::Mark]);
        let sets = [mark(REVISION), mark(APPLIED)].into_iter().chain(sets).collect();
        Self { family, name: name.into(), sets, chains, shared: None }
    }

    pub fn id(&self) -> TableId<'_> {
        TableId { family: self.family, name: &self.name }
    }

    /// Whether a set or chain of this name may belong to another process.
    pub(crate) fn is_shared(&self, name: &str) -> bool {
        self.shared.is_some_and(|prefix| name.starts_with(prefix))
    }

    /// The sets with elements that Podwire adds and compares.
    pub(crate) fn filled_sets(&self) -> impl Iterator<Item = &Set> {
        self.sets.iter().filter(|set| match set.members {
            Members::Lasting | Members::Expiring => set.name != REVISION && set.name != APPLIED,
            Members::Dynamic => false,
        })
    }

    /// A number that changes with the table's own structure. It identifies tables of another version or configuration.
    pub(crate) fn revision(&self) -> u32 {
        let own = Self {
            sets: self.sets.iter().filter(|set| !self.is_shared(&set.name)).cloned().collect(),
            chains: self.chains.iter().filter(|chain| !self.is_shared(&chain.name)).cloned().collect(),
            ..self.clone()
        };
        number(&Digest::of(&["structure", &own.structure()]))
    }
}

/// The first four bytes of a digest, as a value of a map.
pub(crate) fn number(digest: &Digest) -> u32 {
    let [a, b, c, d, _] = digest.first5();
    u32::from_be_bytes([a, b, c, d])
}

/// A set or chain as the key of map [`APPLIED`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AppliedObject<'a> {
    Set(&'a str),
    Chain(&'a str),
}

impl AppliedObject<'_> {
    pub(crate) fn key(self) -> u32 {
        number(&match self {
            Self::Set(name) => Digest::of(&["set", name]),
            Self::Chain(name) => Digest::of(&["chain", name]),
        })
    }
}
