//! Classifies errors of etcd.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use etcd_client::Error as EtcdError;
use tonic::{Code, ConnectError, Status};
use types::cause;

use crate::error::{Error, Operation};

/// An error with its causes as one line of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    text: String,
    /// The host answered that no process listens on the port.
    pub(crate) is_connection_refused: bool,
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self { text, is_connection_refused: false }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for Reason {}

impl Reason {
    /// Joins an error and all its sources.
    pub(super) fn of(error: &(dyn StdError + 'static)) -> Self {
        let mut parts: Vec<String> = Vec::new();
        for error in chain(error) {
            let text = match error.downcast_ref::<Status>() {
                Some(status) => status.message().to_owned(),
                None => cause(error),
            };
            // Many layers repeat the message of their source, or add nothing.
            if text != "transport error" && !text.is_empty() && !parts.iter().any(|part| part.contains(&text))
            {
                parts.push(text);
            }
        }
        if parts.is_empty() {
            parts.push(cause(error));
        }
        Self { text: parts.join(": "), is_connection_refused: chain(error).any(is_connection_refused) }
    }

    /// Adds the endpoint to the text.
    pub(super) fn of_endpoint(self, url: &str) -> Self {
        Self { text: format!("{url}: {}", self.text), ..self }
    }

    fn contains(&self, text: &str) -> bool {
        self.text.to_ascii_lowercase().contains(text)
    }
}

fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn StdError + 'static)| (*error).source())
}

fn is_connection_refused(error: &(dyn StdError + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[derive(Debug, Clone)]
pub(super) enum EtcdFailure {
    /// The request was certainly not executed. A retry, also with another member, may help.
    NotExecuted(Reason),
    /// The request may have been executed.
    Unknown(Reason),
    /// No answer before the deadline. The request may have been executed.
    Timeout,
    Denied {
        advice: &'static str,
        reason: Reason,
    },
    LeaseExpired,
    Compacted,
    /// The answer exceeds the size limit.
    TooLarge(Reason),
    Refused(Reason),
}

impl From<EtcdError> for EtcdFailure {
    fn from(error: EtcdError) -> Self {
        match error {
            EtcdError::GRpcStatus(status) => Self::of_status(&status),
            EtcdError::TransportError(error) => Self::of_transport(&error),
            EtcdError::LeaseKeepAliveError(text) if text == "lease not found" => Self::LeaseExpired,
            EtcdError::IoError(error) => Self::Unknown(Reason::of(&error)),
            EtcdError::WatchError(text) | EtcdError::LeaseKeepAliveError(text) => Self::Unknown(text.into()),
            other => Self::Refused(Reason::from(other.to_string())),
        }
    }
}

impl EtcdFailure {
    /// Classifies an answer, or a transport error without an answer.
    fn of_status(status: &Status) -> Self {
        let reason = Reason::of(status);
        if !reason.contains("etcdserver:") && status.source().is_some() {
            return Self::of_transport(status);
        }
        match status.code() {
            Code::Unavailable if reason.contains("no leader") => Self::NotExecuted(reason),
            Code::InvalidArgument if reason.contains("auth store is old") => Self::NotExecuted(reason),
            Code::ResourceExhausted if reason.contains("too many requests") => Self::NotExecuted(reason),
            Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled | Code::DeadlineExceeded => {
                Self::Unknown(reason)
            }
            Code::Unauthenticated => Self::Denied { advice: PASSWORD, reason },
            Code::InvalidArgument if reason.contains("authentication failed") => {
                Self::Denied { advice: PASSWORD, reason }
            }
            Code::InvalidArgument if reason.contains("user name is empty") => Self::Denied {
                advice: "etcd requires authentication: set etcd.user and its password",
                reason,
            },
            Code::PermissionDenied => Self::Denied { advice: ROLE, reason },
            Code::NotFound if reason.contains("lease not found") => Self::LeaseExpired,
            Code::OutOfRange if reason.contains("compacted") => Self::Compacted,
            Code::OutOfRange | Code::ResourceExhausted if reason.contains("message length too large") => {
                Self::TooLarge(reason)
            }
            _ => Self::Refused(reason),
        }
    }

    /// Classifies an error of the connection.
    pub(super) fn of_transport(error: &(dyn StdError + 'static)) -> Self {
        let reason = Reason::of(error);
        let advice = if reason.contains("invalid peer certificate") {
            "the server's certificate is not signed by the configured CA (without etcd.ca: by the system trust store), or is not valid for this name: check the endpoint and the CA file"
        } else if reason.contains("fatal alert") || reason.contains("certificate required") {
            "the server does not accept the client certificate: check the files of the certificate and its key"
        } else if reason.contains("corrupt message") {
            "the server does not use TLS: check whether the endpoint is http://"
        } else if chain(error).any(<dyn StdError>::is::<ConnectError>) {
            return Self::NotExecuted(reason);
        } else {
            return Self::Unknown(reason);
        };
        Self::Denied { advice, reason }
    }

    /// etcd reports the reason of a refused watch as text only.
    pub(super) fn of_cancelled_watch(text: &str) -> Self {
        let reason = Reason::from(text.to_owned());
        if reason.contains("permission denied") {
            Self::Denied { advice: ROLE, reason }
        } else if reason.contains("invalid auth token") {
            Self::Denied { advice: PASSWORD, reason }
        } else {
            Self::Refused(reason)
        }
    }

    fn is_connection_refused(&self) -> bool {
        matches!(self, Self::NotExecuted(reason) if reason.is_connection_refused)
    }

    /// The failure to report for all endpoints if one failed with `self` and another one with `other`. A failure that needs an
    /// operator has priority. The connection counts as refused only if all endpoints refused it.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (denied @ Self::Denied { .. }, _) => denied,
            (first, refused) if refused.is_connection_refused() => first,
            (_, other) => other,
        }
    }

    /// The cause, without the operation.
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::NotExecuted(reason)
            | Self::Unknown(reason)
            | Self::TooLarge(reason)
            | Self::Refused(reason) => reason.clone(),
            Self::Denied { reason, .. } => reason.clone(),
            Self::Timeout => Reason::from("no answer before the deadline".to_owned()),
            Self::LeaseExpired => Reason::from("the lease has expired".to_owned()),
            Self::Compacted => Reason::from("this revision was compacted".to_owned()),
        }
    }

    pub(super) fn into_error(self, operation: Operation, store: String) -> Error {
        match self {
            Self::Denied { advice, reason } => {
                Error::Denied { operation, store, advice, source: reason.into() }
            }
            Self::NotExecuted(_) | Self::Unknown(_) | Self::Timeout => {
                Error::Unreachable { operation, store, source: self.reason().into() }
            }
            Self::LeaseExpired | Self::Compacted | Self::TooLarge(_) | Self::Refused(_) => {
                Error::Failed { operation, store, source: self.reason().into() }
            }
        }
    }
}

const ROLE: &str = "grant the user, or the common name of the client certificate, a role that may read and write Podwire's keys";
const PASSWORD: &str = "check the user and the password";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_refused_only_if_all_endpoints_refuse_it() {
        let refused = || {
            let error = io::Error::from(io::ErrorKind::ConnectionRefused);
            EtcdFailure::NotExecuted(Reason::of(&error).of_endpoint("http://a:2379"))
        };
        let silent = || EtcdFailure::NotExecuted(Reason::from("no answer".to_owned()));
        let denied = || EtcdFailure::Denied { advice: PASSWORD, reason: Reason::from("denied".to_owned()) };
        assert!(refused().and(refused()).is_connection_refused());
        assert!(!refused().and(silent()).is_connection_refused());
        assert!(!silent().and(refused()).is_connection_refused());
        for failure in [refused().and(denied()), denied().and(refused()), denied().and(silent())] {
            assert!(matches!(failure, EtcdFailure::Denied { .. }), "{failure:?}");
        }
        let error = refused().into_error(Operation::new("read", "/a"), "etcd".to_owned());
        assert!(error.is_connection_refused(), "{error}");
    }
}
