//! Writes files atomically, and compares them with the expected content.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use ::files::{Durability, Replacement, Writers, optional};
use types::Digest;

use crate::InstallError;

/// Temporary files older than this were left by a killed process.
const MAX_TEMPORARY_AGE: Duration = Duration::from_secs(60);
const CHUNK: usize = 64 << 10;

/// The expected content of a file.
pub(super) enum FileContent<'a> {
    Copy { file: &'a File, path: &'a Path },
    Text(&'a str),
}

/// The result of a comparison of a file with its expected content.
pub(super) enum FileState {
    Correct,
    Missing,
    /// The content is correct, but mode or owner are not.
    WrongAccess(String),
    Different(String),
}

impl FileState {
    /// The problem of the file, if there is one.
    pub(super) fn problem(self) -> Option<String> {
        match self {
            Self::Correct => None,
            Self::Missing => Some("was missing".to_owned()),
            Self::WrongAccess(problem) | Self::Different(problem) => Some(problem),
        }
    }
}

impl FileContent<'_> {
    pub(super) fn bytes(&self) -> Result<Vec<u8>, InstallError> {
        match self {
            Self::Text(text) => Ok(text.as_bytes().to_vec()),
            Self::Copy { file, path } => {
                let fail = |source| InstallError::Source { path: path.to_path_buf(), source };
                let mut bytes = Vec::new();
                each_chunk(file, |chunk| {
                    bytes.extend_from_slice(chunk);
                    Ok(true)
                })
                .map_err(fail)?;
                Ok(bytes)
            }
        }
    }

    pub(super) fn digest(&self) -> Result<String, InstallError> {
        Ok(digest(&self.bytes()?))
    }

    /// Compares in chunks: a check every 30 s must not load the whole plugin into memory.
    fn matches(&self, actual: &File) -> io::Result<bool> {
        match self {
            Self::Text(text) => {
                let mut expected = text.as_bytes();
                let is_prefix = each_chunk(actual, |chunk| match expected.strip_prefix(chunk) {
                    Some(tail) => {
                        expected = tail;
                        Ok(true)
                    }
                    None => Ok(false),
                })?;
                Ok(is_prefix && expected.is_empty())
            }
            Self::Copy { file, .. } => {
                if file.metadata()?.len() != actual.metadata()?.len() {
                    return Ok(false);
                }
                let (mut offset, mut buffer) = (0, vec![0; CHUNK]);
                each_chunk(actual, |chunk| {
                    let expected = buffer.get_mut(..chunk.len()).unwrap_or_default();
                    file.read_exact_at(expected, offset)?;
                    offset += chunk.len() as u64;
                    Ok(*expected == *chunk)
                })
            }
        }
    }
}

/// Calls `visit` with the chunks of the file until it returns false. Returns its last result.
fn each_chunk(file: &File, mut visit: impl FnMut(&[u8]) -> io::Result<bool>) -> io::Result<bool> {
    let (mut offset, mut buffer) = (0, vec![0; CHUNK]);
    loop {
        let read = match file.read_at(&mut buffer, offset) {
            Ok(0) => return Ok(true),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if !visit(buffer.get(..read).unwrap_or_default())? {
            return Ok(false);
        }
        offset += read as u64;
    }
}

pub(super) fn digest(bytes: &[u8]) -> String {
    Digest::of_bytes(bytes).base32(51)
}

pub(super) fn check(path: &Path, mode: u32, content: &FileContent<'_>) -> Result<FileState, InstallError> {
    let fail = |source| InstallError::Read { path: path.to_owned(), source };
    let Some(meta) = optional(fs::symlink_metadata(path)).map_err(fail)? else {
        return Ok(FileState::Missing);
    };
    if !meta.is_file() {
        return Ok(FileState::Different("was not a regular file".to_owned()));
    }
    let opened = ::files::open_unmanaged(path, File::options().read(true));
    let Some(actual) = optional(opened).map_err(fail)? else { return Ok(FileState::Missing) };
    if !content.matches(&actual).map_err(fail)? {
        return Ok(FileState::Different("content differed".to_owned()));
    }
    Ok(access_problem(&meta, mode).map_or(FileState::Correct, FileState::WrongAccess))
}

fn access_problem(meta: &Metadata, mode: u32) -> Option<String> {
    let (actual, own_uid) = (meta.mode() & 0o7777, rustix::process::geteuid().as_raw());
    if actual != mode {
        Some(format!("mode was {actual:04o}, not {mode:04o}"))
    } else if meta.uid() != own_uid {
        Some(format!("owner was user {}, not {own_uid}", meta.uid()))
    } else {
        None
    }
}

/// Replaces a file by a rename inside its directory, which is created if it is missing. Some runtimes do not notice a file
/// that is moved in from another directory, and a running program can only be replaced by a rename. The file is read after
/// every boot, so it is flushed to disk.
pub(super) fn write_atomically(path: &Path, content: &[u8], mode: u32) -> Result<(), InstallError> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    create_directory(parent)?;
    let fail = |source| InstallError::Write { path: path.to_owned(), source };
    remove_leftovers(path, MAX_TEMPORARY_AGE).map_err(fail)?;
    // Agents in containers may share the runtime's directories.
    let how = Replacement { mode, durability: Durability::Disk, writers: Writers::Many };
    ::files::replace(path, content, how).map_err(fail)
}

/// Removes temporary files of earlier writes of `path`.
pub(super) fn remove_leftovers(path: &Path, age: Duration) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    ::files::remove_leftovers(parent, path.file_name(), age).map(drop)
}

/// Creates a directory and its missing parents with mode 0755, regardless of the umask.
fn create_directory(directory: &Path) -> Result<(), InstallError> {
    let missing: Vec<&Path> = directory.ancestors().take_while(|directory| !directory.is_dir()).collect();
    for directory in missing.into_iter().rev() {
        let result = fs::create_dir(directory)
            .and_then(|()| fs::set_permissions(directory, Permissions::from_mode(0o755)));
        match result {
            // Another process created it at the same time.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {}
            result => {
                result.map_err(|source| InstallError::Directory { path: directory.to_owned(), source })?;
            }
        }
    }
    Ok(())
}
