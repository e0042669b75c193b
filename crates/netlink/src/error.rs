use rustix::io::Errno;
use types::cause;

use crate::netns::NetNsError;
use crate::socket::{Refusal, TIMEOUT};

/// Why an operation failed. Every variant describes the operation, so callers need not add it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {operation}: {refusal}")]
    Refused { operation: String, refusal: Refusal },
    /// The kernel does not know a kind of qdisc, filter or action because a module is missing.
    #[error("cannot {operation}: the kernel lacks a required module: {refusal}")]
    Lacking { operation: String, refusal: Refusal },
    #[error("cannot {operation}: {reason}")]
    Invalid { operation: String, reason: String },
    #[error("cannot {operation}: the netlink socket failed: {}", cause(errno))]
    Socket { operation: String, errno: Errno },
    #[error("cannot {operation}: the kernel did not answer within {} seconds", TIMEOUT.as_secs())]
    Timeout { operation: String },
    #[error("cannot {operation}: the list changed while it was read, {tries} times in a row; try again")]
    Interrupted { operation: String, tries: u32 },
    #[error("cannot {operation}: the kernel's answer is malformed: {what}")]
    Malformed { operation: String, what: &'static str },
    #[error(transparent)]
    NetNs(#[from] NetNsError),
}

impl Error {
    /// Replaces the operation: the lower layer knows the cause, the caller knows the operation.
    pub fn during(mut self, new_operation: impl std::fmt::Display) -> Self {
        match &mut self {
            Self::Refused { operation, .. }
            | Self::Lacking { operation, .. }
            | Self::Invalid { operation, .. }
            | Self::Socket { operation, .. }
            | Self::Timeout { operation }
            | Self::Interrupted { operation, .. }
            | Self::Malformed { operation, .. } => *operation = new_operation.to_string(),
            Self::NetNs(_) => {}
        }
        self
    }

    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { refusal, .. } | Self::Lacking { refusal, .. } => Some(refusal.errno),
            Self::Socket { errno, .. } => Some(*errno),
            Self::NetNs(error) => error.errno(),
            Self::Invalid { .. }
            | Self::Timeout { .. }
            | Self::Interrupted { .. }
            | Self::Malformed { .. } => None,
        }
    }

    /// An object with that name, address or destination exists already.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }

    /// The link, address, route, neighbour or qdisc does not exist. Deletions can ignore this.
    pub fn is_missing(&self) -> bool {
        let missing = [Errno::NOENT, Errno::NODEV, Errno::SRCH, Errno::ADDRNOTAVAIL, Errno::NXIO];
        !matches!(self, Self::Lacking { .. }) && self.errno().is_some_and(|e| missing.contains(&e))
    }

    pub fn is_permission(&self) -> bool {
        matches!(self.errno(), Some(Errno::PERM | Errno::ACCESS))
    }

    /// The kernel lacks a module, a family or an option.
    pub fn is_unsupported(&self) -> bool {
        let unsupported = [Errno::OPNOTSUPP, Errno::AFNOSUPPORT, Errno::PROTONOSUPPORT];
        matches!(self, Self::Lacking { .. }) || self.errno().is_some_and(|e| unsupported.contains(&e))
    }

    /// There is no route to the destination.
    pub fn is_unreachable(&self) -> bool {
        matches!(self.errno(), Some(Errno::NETUNREACH | Errno::HOSTUNREACH))
    }
}
