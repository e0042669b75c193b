//! What can go wrong, said for people.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::types::LeaseId;

/// What was tried, on what: `read /podwire/network`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    pub verb: &'static str,
    pub object: String,
}

impl Operation {
    pub(crate) fn new(verb: &'static str, object: impl Into<String>) -> Self {
        Self { verb, object: object.into() }
    }
}

impl Operation {
    /// Needs the right to write.
    fn is_write(&self) -> bool {
        matches!(self.verb, "write" | "count up" | "revoke")
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.object)
    }
}

type BoxedSource = Box<dyn StdError + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "cannot {operation}: {store} cannot be reached ({source}): is it running, and can this node reach it?"
    )]
    Unreachable { operation: Operation, store: String, source: BoxedSource },
    #[error("cannot {operation}: {store} does not let us in ({source}): {advice}")]
    Denied { operation: Operation, store: String, advice: &'static str, source: BoxedSource },
    #[error("cannot {operation}: {store} did not answer within {} s: it is overloaded or stuck", waited.as_secs_f64())]
    TooLate { operation: Operation, store: String, waited: Duration },
    #[error("cannot {operation}: the lease {lease} has run out; grant another")]
    LeaseGone { operation: Operation, lease: LeaseId },
    #[error("cannot {operation}: {store} refuses: {source}")]
    Failed { operation: Operation, store: String, source: BoxedSource },
    #[error("cannot {operation}: {problem}")]
    Invalid { operation: Operation, problem: String },
    #[error("the store broke off while {prefix} was watched ({source}): it is asked again")]
    WatchBroke { prefix: String, source: BoxedSource },
    #[error("cannot {operation}: cannot {verb} {}: {source}", path.display())]
    Io { operation: Operation, verb: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{} is damaged at byte {offset} ({problem}); nothing was changed: stop the agent, move the file away or restore \
         an earlier copy of it, and start the agent again",
        path.display()
    )]
    Damaged { path: PathBuf, offset: u64, problem: String },
    #[error(
        "the store in {} is in use by {holder}: stop it, or give this agent a store of its own (--store-dir); agents share \
         a store through etcd",
        dir.display()
    )]
    Held { dir: PathBuf, holder: String },
    #[error("the store's settings are wrong: {problem}")]
    Config { problem: String },
}

impl Error {
    /// Worth another try later, without anybody doing anything about it.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TooLate { .. } | Self::WatchBroke { .. } => true,
            // A full disk is emptied by somebody, but nobody has to tell us.
            Self::Io { .. } => true,
            Self::Denied { .. }
            | Self::LeaseGone { .. }
            | Self::Failed { .. }
            | Self::Invalid { .. }
            | Self::Damaged { .. }
            | Self::Held { .. }
            | Self::Config { .. } => false,
        }
    }

    /// A name or password, a certificate, or a right is missing or wrong.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Denied { .. })
    }

    /// The right to write is missing. Reads may succeed all the same.
    pub fn is_denied_write(&self) -> bool {
        matches!(self, Self::Denied { operation, .. } if operation.is_write())
    }
}
