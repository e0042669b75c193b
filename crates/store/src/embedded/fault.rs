//! What goes wrong with files; an [`Error`] when it is said which call it was.

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
    Damaged {
        path: PathBuf,
        offset: u64,
        problem: String,
    },
    /// Written by a version that knows more.
    Newer {
        path: PathBuf,
        format: u32,
    },
    LeaseGone(LeaseId),
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
            Self::Damaged { path, offset, problem } => Error::Damaged { path, offset, problem },
            Self::Held { dir, holder } => Error::Held { dir, holder },
            Self::LeaseGone(lease) => Error::LeaseGone { operation, lease },
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
