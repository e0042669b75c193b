//! The description of everything that Podwire wants in nftables, as values: tables with sets, maps, chains and rules. Pure.
//! Each table has a function that makes its value; all tables are rendered, applied, observed and compared by the same code.
//!
//! ```text
//! pods::tables, peers, limit, clamp ─► Table ─┬► text: `nft -f -`, one transaction      (apply)
//!                                            └► diff: against the kernel's listing     (observe, diff)
//! element::of(pod), PeerRules::elements  ─► Element: one netlink request each          (request)
//! ```

pub(crate) mod clamp;
pub(crate) mod limit;
pub(crate) mod peers;
pub(crate) mod pods;
mod text;

use std::borrow::Cow;
use std::fmt;

use types::{AttachmentKey, Digest, NetworkName};

/// The name of the tables that hold pods, in every family.
pub(crate) const TABLE: &str = "podwire";
/// The names of tables of one network begin so.
const NETWORK_TABLES: &str = "podwire-";

/// The map that says which structure a table has: one element, [`REVISION_KEY`] to a number made from the table's text.
pub(crate) const REVISION: &str = "revision";
pub(crate) const REVISION_KEY: u32 = 1;
/// The map with a digest of every chain and set, made from the kernel's listing right after they were applied. Versions of nft
/// and kernel write the same rule differently, so a digest of the text says nothing about the listing.
pub(crate) const APPLIED: &str = "applied";

pub(crate) type Name = Cow<'static, str>;

/// Whether a table sees packets at the host's IP layer, or frames between ports of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum TableFamily {
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

/// Which table, as nft names it: `inet podwire`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TableId<'a> {
    pub(crate) family: TableFamily,
    pub(crate) name: &'a str,
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

/// Whether Podwire makes tables of this name.
pub(crate) fn is_own_table(name: &str) -> bool {
    name == TABLE || name.starts_with(NETWORK_TABLES)
}

/// The tables that one network has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NetworkTable {
    Peers,
    Limit,
    Clamp,
}

impl NetworkTable {
    const ALL: [Self; 3] = [Self::Peers, Self::Limit, Self::Clamp];

    fn prefix(self) -> &'static str {
        match self {
            Self::Peers => "podwire-peers-",
            Self::Limit => "podwire-limit-",
            Self::Clamp => "podwire-clamp-",
        }
    }

    pub(crate) fn name(self, network: &NetworkName) -> String {
        format!("{}{}", self.prefix(), AttachmentKey::network_dir(network))
    }

    /// The kind of a table, and the network as its directory is named.
    pub(crate) fn of(table: &str) -> Option<(Self, &str)> {
        Self::ALL.into_iter().find_map(|kind| Some((kind, table.strip_prefix(kind.prefix())?)))
    }
}

/// One part of a key or of a map's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Ip4,
    Ip6,
    Mac,
    Link,
    Protocol,
    Port,
    Mark,
    /// Bits of the packet, counted from the transport header. nft writes them as a number.
    Bits {
        start: u16,
        length: u16,
    },
}

/// How elements come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Members {
    /// Until they are deleted.
    Lasting,
    /// They can be given a timeout, which is how pods leave.
    Expiring,
    /// Rules add them. Podwire neither adds nor compares them.
    Dynamic { most: u32 },
}

/// A set, or a map if it has a value. One that gets another type needs another name: over a table of the version before, the
/// kernel would refuse the transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) name: Name,
    pub(crate) key: Vec<Type>,
    pub(crate) value: Vec<Type>,
    pub(crate) members: Members,
}

impl Set {
    pub(crate) fn expiring(name: impl Into<Name>, key: &[Type]) -> Self {
        Self { name: name.into(), key: key.to_vec(), value: Vec::new(), members: Members::Expiring }
    }

    pub(crate) fn lasting(name: impl Into<Name>, key: &[Type]) -> Self {
        Self { members: Members::Lasting, ..Self::expiring(name, key) }
    }

    pub(crate) fn to(self, value: &[Type]) -> Self {
        Self { value: value.to_vec(), ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainType {
    Filter,
    Nat,
}

/// With the kernel's numbers, which are the same for the families that Podwire uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HookPoint {
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

/// Where a base chain is attached. The policy of all base chains is accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) kind: ChainType,
    pub(crate) hook: HookPoint,
    pub(crate) priority: i32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) name: Name,
    pub(crate) base: Option<Base>,
    /// In nft's language, one rule each.
    pub(crate) rules: Vec<Name>,
}

impl Chain {
    pub(crate) fn plain(name: &'static str, rules: &[&'static str]) -> Self {
        let rules = rules.iter().map(|rule| Name::from(*rule)).collect();
        Self { name: name.into(), base: None, rules }
    }

    pub(crate) fn at(self, kind: ChainType, hook: HookPoint, priority: i32) -> Self {
        Self { base: Some(Base { kind, hook, priority }), ..self }
    }
}

/// A table. Its maps [`REVISION`] and [`APPLIED`] are among its sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) family: TableFamily,
    pub(crate) name: Name,
    pub(crate) sets: Vec<Set>,
    pub(crate) chains: Vec<Chain>,
    /// Sets and chains whose names begin so may belong to another process, which compares them itself.
    pub(crate) shared: Option<&'static str>,
}

impl Table {
    pub(crate) fn new(
        family: TableFamily,
        name: impl Into<Name>,
        sets: Vec<Set>,
        chains: Vec<Chain>,
    ) -> Self {
        let mark = |name| Set::lasting(name, &[Type::Mark]).to(&[Type::Mark]);
        let sets = [mark(REVISION), mark(APPLIED)].into_iter().chain(sets).collect();
        Self { family, name: name.into(), sets, chains, shared: None }
    }

    pub(crate) fn id(&self) -> TableId<'_> {
        TableId { family: self.family, name: &self.name }
    }

    /// Whether a set or chain of this name may belong to another process.
    pub(crate) fn is_shared(&self, name: &str) -> bool {
        self.shared.is_some_and(|prefix| name.starts_with(prefix))
    }

    /// The sets whose elements Podwire adds and compares.
    pub(crate) fn filled_sets(&self) -> impl Iterator<Item = &Set> {
        self.sets.iter().filter(|set| match set.members {
            Members::Lasting | Members::Expiring => set.name != REVISION && set.name != APPLIED,
            Members::Dynamic { .. } => false,
        })
    }

    /// A number that changes with the table's own structure, so that a table of another version or configuration is found.
    pub(crate) fn revision(&self) -> u32 {
        let own = Self {
            sets: self.sets.iter().filter(|set| !self.is_shared(&set.name)).cloned().collect(),
            chains: self.chains.iter().filter(|chain| !self.is_shared(&chain.name)).cloned().collect(),
            ..self.clone()
        };
        number(&Digest::of(&["structure", &own.structure()]))
    }
}

/// The first bytes of a digest, as a value of a map.
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
