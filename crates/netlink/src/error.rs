use std::io;

use rustix::io::Errno;

use crate::netns::NetNsError;
use crate::socket::{Refusal, TIMEOUT};

/// Why an operation failed. Every variant says which operation, in words; callers need not add it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {operation}: {refusal}")]
    Refused { operation: String, refusal: Refusal },
    /// The kernel answered that it does not know a kind of qdisc, filter or action: a module is missing.
    #[error("cannot {operation}: this kernel lacks a part that is needed: {refusal}")]
    Lacking { operation: String, refusal: Refusal },
    #[error("cannot {operation}: {reason}")]
    Invalid { operation: String, reason: String },
    #[error("cannot {operation}: the netlink socket failed: {}", io::Error::from(*errno))]
    Socket { operation: String, errno: Errno },
    #[error("cannot {operation}: the kernel did not answer within {} seconds", TIMEOUT.as_secs())]
    Timeout { operation: String },
    #[error("cannot {operation}: it changed while being read, {tries} times in a row; try again")]
    Interrupted { operation: String, tries: u32 },
    #[error("cannot {operation}: the kernel's answer is malformed: {what}")]
    Malformed { operation: String, what: &'static str },
    #[error(transparent)]
    NetNs(#[from] NetNsError),
}

impl Error {
    /// The same error for another operation: the lower layer knows what happened, the upper one to what.
    pub fn during(mut self, words: impl std::fmt::Display) -> Self {
        match &mut self {
            Self::Refused { operation, .. }
            | Self::Lacking { operation, .. }
            | Self::Invalid { operation, .. }
            | Self::Socket { operation, .. }
            | Self::Timeout { operation }
            | Self::Interrupted { operation, .. }
            | Self::Malformed { operation, .. } => *operation = words.to_string(),
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

    /// Something of that name, address or destination is already there.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }

    /// The link, address, route, neighbour or qdisc is not there: what a deletion may ignore.
    pub fn is_missing(&self) -> bool {
        let missing = [Errno::NOENT, Errno::NODEV, Errno::SRCH, Errno::ADDRNOTAVAIL, Errno::NXIO];
        !matches!(self, Self::Lacking { .. }) && self.errno().is_some_and(|e| missing.contains(&e))
    }

    pub fn is_permission(&self) -> bool {
        matches!(self.errno(), Some(Errno::PERM | Errno::ACCESS))
    }

    /// This kernel cannot do it at all: a module, a family or an option is missing.
    pub fn is_unsupported(&self) -> bool {
        let unsupported = [Errno::OPNOTSUPP, Errno::AFNOSUPPORT, Errno::PROTONOSUPPORT];
        matches!(self, Self::Lacking { .. }) || self.errno().is_some_and(|e| unsupported.contains(&e))
    }

    /// There is no route to the destination.
    pub fn is_unreachable(&self) -> bool {
        matches!(self.errno(), Some(Errno::NETUNREACH | Errno::HOSTUNREACH))
    }
}
