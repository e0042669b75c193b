//! Failures of the log's files. They become an [`Error`] together with the operation.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Operation};
use crate::types::LeaseId;

#[derive(Debug)]
pub(super) enum EmbeddedFault {
    Io {
        verb: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    Corrupt {
        path: PathBuf,
        offset: u64,
        problem: String,
    },
    /// Written by a newer version of Podwire.
    Newer {
        path: PathBuf,
        format: u32,
    },
    LeaseExpired(LeaseId),
    /// Another process owns the store.
    Held {
        dir: PathBuf,
        holder: String,
    },
}

impl EmbeddedFault {
    pub(super) fn into_error(self, operation: Operation) -> Error {
        match self {
            Self::Io { verb, path, source } => Error::Io { operation, verb, path, source },
            Self::Corrupt { path, offset, problem } => Error::Corrupt { path, offset, problem },
            Self::Held { dir, holder } => Error::Held { dir, holder },
            Self::LeaseExpired(lease) => Error::LeaseExpired { operation, lease },
            Self::Newer { path, format } => {
                let problem = format!(
                    "{} has format {format}, which is newer than this podwire: update podwire",
                    path.display()
                );
                Error::Invalid { operation, problem }
            }
        }
    }
}

pub(super) fn io_fault<E: Into<io::Error>>(
    verb: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> EmbeddedFault {
    move |error| EmbeddedFault::Io { verb, path: path.to_owned(), source: error.into() }
}
