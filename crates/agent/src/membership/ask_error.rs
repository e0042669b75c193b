//! Why a query about the cluster failed. The server maps each variant to an HTTP status.

use types::NodeName;

use super::command::TRIES;
use super::join::JoinError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AskError {
    /// The store does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// The store refuses the agent, or its data cannot be used.
    #[error("{0}")]
    Refused(String),
    #[error("too many requests about the cluster are waiting")]
    Busy,
    #[error("the agent did not answer within {seconds} s")]
    TimedOut { seconds: u64 },
    #[error("the agent no longer follows the store: see `podwire status`")]
    Stopped,
    /// This node cannot answer, independent of the store.
    #[error("{0}")]
    Failed(String),
    #[error(
        "there is no node {0} in the store: see `podwire nodes` (nodes that know it from before the store lost its data drop it \
         within an hour)"
    )]
    NotFound(NodeName),
    #[error(
        "the agent of {0} is alive: stop it first (--force removes its record nevertheless, and the agent registers it again)"
    )]
    Alive(NodeName),
    #[error("{0} is this node: stop its agent, then remove it from another node")]
    Own(NodeName),
    /// A record of a newer version, or a corrupt record, which is not removed.
    #[error("{key} in the store: {problem}")]
    Unreadable { key: String, problem: String },
    #[error("{0}")]
    ObjectInvalid(String),
    #[error("{0}")]
    ObjectMissing(String),
    /// The object is in use, permanent, or of a newer version.
    #[error("{0}")]
    ObjectConflict(String),
    #[error("objects changed {TRIES} times while they were written: try again")]
    ObjectsContended,
    #[error("the record of {0} changed {TRIES} times while it was removed: try again")]
    Contended(NodeName),
}

impl From<JoinError> for AskError {
    fn from(error: JoinError) -> Self {
        match error.is_transient() {
            true => Self::Unreachable(error.to_string()),
            false => Self::Refused(error.to_string()),
        }
    }
}

impl From<store::Error> for AskError {
    fn from(error: store::Error) -> Self {
        match error.is_transient() {
            true => Self::Unreachable(error.to_string()),
            false => Self::Refused(error.to_string()),
        }
    }
}
