//! Data of the store's interface.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An existing key. Invalid UTF-8 in a key, which Podwire never writes, is replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Vec<u8>,
    /// The revision of the last change.
    pub revision: u64,
    /// The revision of the creation. It changes only if the key is deleted and created again.
    pub created: u64,
    /// The number of writes since creation, starting with 1.
    pub version: u64,
    pub lease: Option<LeaseId>,
}

/// All entries of a directory at one revision, sorted by key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<Entry>,
    /// A watch from the next revision misses no event.
    pub revision: u64,
}

/// A precondition of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    Absent(String),
    Exists(String),
    /// The key was not changed after this revision.
    Revision(String, u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Put {
        key: String,
        value: Vec<u8>,
        lease: Option<LeaseId>,
    },
    /// The key need not exist.
    Delete(String),
}

impl Change {
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete(key) => key,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
    /// If the commit had no effect, `revision` is the current one.
    Done { revision: u64 },
    /// A compare did not hold, and nothing was changed.
    Refused,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Put(Entry),
    Delete { key: String, revision: u64 },
}

impl Event {
    pub fn key(&self) -> &str {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Delete { key, .. } => key,
        }
    }

    pub fn revision(&self) -> u64 {
        match self {
            Self::Put(entry) => entry.revision,
            Self::Delete { revision, .. } => *revision,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// At least one event, in order. `revision` is the revision of the last one.
    Events { events: Vec<Event>, revision: u64 },
    /// No further events are pending. The answer to `Watch::request_progress`.
    Current,
    /// The events since the start revision were compacted: list again, and watch from that revision.
    Compacted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    Alive,
    /// The lease expired or was revoked, and its keys were removed.
    Gone,
}

/// A lease. When it ends, the keys that were put with it are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub(crate) i64);

/// As etcdctl prints it.
impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
