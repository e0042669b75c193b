//! What goes into a store and what comes out of it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A key that exists. A key that is no UTF-8 (somebody else's, in our directory) comes with replacement characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Vec<u8>,
    /// Of its last change.
    pub revision: u64,
    /// Of the change that made it. It stays the same until the key is deleted.
    pub created: u64,
    /// How often it was written since it was made; 1 for a new one.
    pub version: u64,
    pub lease: Option<LeaseId>,
}

/// All entries of a directory at one moment, by key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<Entry>,
    /// A watch from the next revision misses nothing.
    pub revision: u64,
}

/// What must hold for a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    Absent(String),
    Exists(String),
    /// Not changed since this revision.
    Revision(String, u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Put {
        key: String,
        value: Vec<u8>,
        lease: Option<LeaseId>,
    },
    /// It need not exist.
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
    /// Where nothing was there to be changed, the revision is the last one.
    Done { revision: u64 },
    /// A compare did not hold; nothing changed.
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
    /// At least one, in the order in which they happened; the revision is that of the last.
    Events { events: Vec<Event>, revision: u64 },
    /// Nothing else has happened. It is the answer to `Watch::request_progress`.
    Current,
    /// The store has forgotten what happened since: list again, and watch from there.
    Compacted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    Alive,
    /// It ran out or was revoked, and its keys are gone.
    Gone,
}

/// A lease: keys that were put with it go when it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub(crate) i64);

/// As etcdctl shows it.
impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
