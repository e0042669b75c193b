//! Where the cluster's objects live: in etcd, or in a directory of this machine. Raw keys and values; what they mean is the
//! business of others.
//!
//! ```text
//!   agent, tool ──► Store ──► check (sizes, directories: the same for both)
//!                     ├──► etcd       one connection, to whichever endpoint answers; a stream for each watch
//!                     └──► embedded   a log in a directory, owned by one process
//! ```
//!
//! Both keep the same promises, and pass the same suite (`tests/conformance`):
//!
//! * a commit happens as a whole or not at all, and is durable when it returns;
//! * every change has a revision, one higher than the last; a watch from `Listing::revision + 1` misses nothing;
//! * every call ends by its deadline, whatever the store does;
//! * a commit that ends with `Unreachable` or `TooLate` may have happened: look before doing it again.

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
