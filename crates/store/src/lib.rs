//! The store for cluster objects: etcd, or a local directory. It stores raw keys and values; callers define their meaning.
//!
//! ```text
//!   agent, tool ──► Store ──► check (limits, which are the same for both)
//!                     ├──► etcd       one connection to the endpoint that answers first; a stream for each watch
//!                     └──► embedded   a log in a directory, owned by one process
//! ```
//!
//! Both backends give the same guarantees and pass the same suite (`tests/conformance`):
//!
//! * A commit is atomic, and durable when the call returns.
//! * Every change increments the revision by one. A watch from `Listing::revision + 1` misses no event.
//! * Every call ends by its deadline, in all failure modes of the store.
//! * A commit that fails with `Unreachable` or `Timeout` may have been executed: read the state before a retry.

#![forbid(unsafe_code)]

mod check;
mod config;
mod embedded;
mod error;
mod etcd;
mod store;
mod types;

pub use check::{MAX_CHANGES, MAX_COMMIT, MAX_KEY, MAX_VALUE};
pub use config::{EtcdConfig, StoreConfig};
pub use error::{Error, Operation};
pub use store::{DEADLINE, Store, Watch};
pub use types::{Change, CommitOutcome, Compare, Entry, Event, LeaseId, LeaseState, Listing, Watched};

pub type Result<T, E = Error> = std::result::Result<T, E>;
