//! What an error of etcd means for us.

use std::error::Error as StdError;
use std::fmt;

use etcd_client::Error as EtcdError;
use tonic::{Code, ConnectError, Status};

use crate::error::{Error, Operation};

/// An error as one line of text: what lies below says more than what lies on top.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reason(String);

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Reason {}

impl Reason {
    /// An error and all that lies below it.
    pub(super) fn of(error: &(dyn StdError + 'static)) -> Self {
        let mut parts: Vec<String> = Vec::new();
        for error in chain(error) {
            let text = match error.downcast_ref::<Status>() {
                Some(status) => status.message().to_owned(),
                None => error.to_string(),
            };
            // Many layers repeat the one below, or have nothing to say.
            if text != "transport error" && !text.is_empty() && !parts.iter().any(|part| part.contains(&text))
            {
                parts.push(text);
            }
        }
        if parts.is_empty() {
            parts.push(error.to_string());
        }
        Self(parts.join(": "))
    }

    fn says(&self, what: &str) -> bool {
        self.0.to_ascii_lowercase().contains(what)
    }
}

fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn StdError + 'static)| (*error).source())
}

#[derive(Debug, Clone)]
pub(super) enum EtcdFailure {
    /// It certainly did not happen; another try, maybe elsewhere, may help.
    NotDone(Reason),
    /// It may have happened.
    Unknown(Reason),
    /// No answer in time; it may have happened.
    Silent,
    Denied {
        advice: &'static str,
        reason: Reason,
    },
    LeaseGone,
    Compacted,
    /// The answer is larger than what we read.
    TooLarge(Reason),
    Refused(Reason),
}

impl From<EtcdError> for EtcdFailure {
    fn from(error: EtcdError) -> Self {
        match error {
            EtcdError::GRpcStatus(status) => Self::of_status(&status),
            EtcdError::TransportError(error) => Self::of_transport(&error),
            EtcdError::LeaseKeepAliveError(text) if text == "lease not found" => Self::LeaseGone,
            EtcdError::IoError(error) => Self::Unknown(Reason::of(&error)),
            EtcdError::WatchError(text) | EtcdError::LeaseKeepAliveError(text) => Self::Unknown(text.into()),
            other => Self::Refused(Reason::from(other.to_string())),
        }
    }
}

impl EtcdFailure {
    /// Of an answer, or of what came instead of one.
    fn of_status(status: &Status) -> Self {
        let reason = Reason::of(status);
        if !reason.says("etcdserver:") && status.source().is_some() {
            return Self::of_transport(status);
        }
        match status.code() {
            Code::Unavailable if reason.says("no leader") => Self::NotDone(reason),
            Code::InvalidArgument if reason.says("auth store is old") => Self::NotDone(reason),
            Code::ResourceExhausted if reason.says("too many requests") => Self::NotDone(reason),
            Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled | Code::DeadlineExceeded => {
                Self::Unknown(reason)
            }
            Code::Unauthenticated => Self::Denied { advice: PASSWORD, reason },
            Code::InvalidArgument if reason.says("authentication failed") => {
                Self::Denied { advice: PASSWORD, reason }
            }
            Code::InvalidArgument if reason.says("user name is empty") => {
                Self::Denied { advice: "etcd wants a user and a password: set both", reason }
            }
            Code::PermissionDenied => Self::Denied { advice: ROLE, reason },
            Code::NotFound if reason.says("lease not found") => Self::LeaseGone,
            Code::OutOfRange if reason.says("compacted") => Self::Compacted,
            Code::OutOfRange | Code::ResourceExhausted if reason.says("message length too large") => {
                Self::TooLarge(reason)
            }
            _ => Self::Refused(reason),
        }
    }

    /// Of the connection.
    pub(super) fn of_transport(error: &(dyn StdError + 'static)) -> Self {
        let reason = Reason::of(error);
        let advice = if reason.says("invalid peer certificate") {
            "the server's certificate is not signed by our CA (none is set: by whom the system trusts), or not for this name: check the endpoint and the file of the CA"
        } else if reason.says("fatal alert") || reason.says("certificate required") {
            "the server does not accept our certificate: check the files of the certificate and its key"
        } else if reason.says("corrupt message") {
            "the server does not speak TLS: is the endpoint http://?"
        } else if chain(error).any(<dyn StdError>::is::<ConnectError>) {
            return Self::NotDone(reason);
        } else {
            return Self::Unknown(reason);
        };
        Self::Denied { advice, reason }
    }

    /// etcd tells of a watch that it does not begin in words only.
    pub(super) fn of_cancelled_watch(text: &str) -> Self {
        let reason = Reason::from(text.to_owned());
        if reason.says("permission denied") {
            Self::Denied { advice: ROLE, reason }
        } else if reason.says("invalid auth token") {
            Self::Denied { advice: PASSWORD, reason }
        } else {
            Self::Refused(reason)
        }
    }

    /// For people, without what was tried.
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::NotDone(reason)
            | Self::Unknown(reason)
            | Self::TooLarge(reason)
            | Self::Refused(reason) => reason.clone(),
            Self::Denied { reason, .. } => reason.clone(),
            Self::Silent => Reason::from("no answer in time".to_owned()),
            Self::LeaseGone => Reason::from("the lease has run out".to_owned()),
            Self::Compacted => Reason::from("this revision was compacted away".to_owned()),
        }
    }

    pub(super) fn into_error(self, operation: Operation, store: String) -> Error {
        match self {
            Self::Denied { advice, reason } => {
                Error::Denied { operation, store, advice, source: reason.into() }
            }
            Self::NotDone(_) | Self::Unknown(_) | Self::Silent => {
                Error::Unreachable { operation, store, source: self.reason().into() }
            }
            Self::LeaseGone | Self::Compacted | Self::TooLarge(_) | Self::Refused(_) => {
                Error::Failed { operation, store, source: self.reason().into() }
            }
        }
    }
}

const ROLE: &str =
    "give the user, or else the name in the certificate, a role that may read and write our keys";
const PASSWORD: &str = "check the user and the password";
