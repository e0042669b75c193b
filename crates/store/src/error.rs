//! Errors of the store.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use types::cause;

use crate::etcd::Reason;
use crate::types::LeaseId;

/// The attempted operation and its object: `read /podwire/network`.
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
    /// Whether the operation needs write permission.
    fn is_write(&self) -> bool {
        matches!(self.verb, "write" | "increment" | "revoke")
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
    #[error("cannot {operation}: {store} denied access ({source}): {advice}")]
    Denied { operation: Operation, store: String, advice: &'static str, source: BoxedSource },
    #[error("cannot {operation}: {store} did not answer within {} s: it is overloaded or stuck", waited.as_secs_f64())]
    Timeout { operation: Operation, store: String, waited: Duration },
    #[error("cannot {operation}: lease {lease} has expired; grant a new one")]
    LeaseExpired { operation: Operation, lease: LeaseId },
    #[error("cannot {operation}: {store} refused the request: {source}")]
    Failed { operation: Operation, store: String, source: BoxedSource },
    #[error("cannot {operation}: {problem}")]
    Invalid { operation: Operation, problem: String },
    #[error("watch of {prefix} failed ({source}); retrying")]
    WatchFailed { prefix: String, source: BoxedSource },
    #[error("cannot {operation}: cannot {verb} {}: {}", path.display(), cause(source))]
    Io { operation: Operation, verb: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{} is corrupt at byte {offset} ({problem}); nothing was changed: stop the agent, move the file away or restore \
         a backup, and start the agent again",
        path.display()
    )]
    Corrupt { path: PathBuf, offset: u64, problem: String },
    #[error(
        "the store in {} is in use by {holder}: stop it, or configure a different directory for this agent (--store-dir); \
         agents share a store through etcd",
        dir.display()
    )]
    Held { dir: PathBuf, holder: String },
    #[error("invalid store configuration: {problem}")]
    Config { problem: String },
}

impl Error {
    /// Whether a retry may succeed without any action by an operator.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Timeout { .. } | Self::WatchFailed { .. } => true,
            // For example a full disk: once there is free space, a retry succeeds.
            Self::Io { .. } => true,
            Self::Denied { .. }
            | Self::LeaseExpired { .. }
            | Self::Failed { .. }
            | Self::Invalid { .. }
            | Self::Corrupt { .. }
            | Self::Held { .. }
            | Self::Config { .. } => false,
        }
    }

    /// No process listens on any endpoint: the store does not run. A store that is slow or not reachable gives no such answer.
    pub fn is_connection_refused(&self) -> bool {
        match self {
            Self::Unreachable { source, .. } => {
                source.downcast_ref().is_some_and(|reason: &Reason| reason.is_connection_refused)
            }
            Self::Denied { .. }
            | Self::Timeout { .. }
            | Self::LeaseExpired { .. }
            | Self::Failed { .. }
            | Self::Invalid { .. }
            | Self::WatchFailed { .. }
            | Self::Io { .. }
            | Self::Corrupt { .. }
            | Self::Held { .. }
            | Self::Config { .. } => false,
        }
    }

    /// A user name, password, certificate or permission is missing or wrong.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Denied { .. })
    }

    /// The store answered and refused this request, for example because of its size. Other requests may succeed.
    pub fn is_about_request(&self) -> bool {
        match self {
            Self::Failed { .. } | Self::Invalid { .. } => true,
            Self::Unreachable { .. }
            | Self::Denied { .. }
            | Self::Timeout { .. }
            | Self::LeaseExpired { .. }
            | Self::WatchFailed { .. }
            | Self::Io { .. }
            | Self::Corrupt { .. }
            | Self::Held { .. }
            | Self::Config { .. } => false,
        }
    }

    /// Write permission is missing. Reads may still succeed.
    pub fn is_denied_write(&self) -> bool {
        matches!(self, Self::Denied { operation, .. } if operation.is_write())
    }
}
