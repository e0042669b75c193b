//! Files that appear whole, and the comparison of what is there with what should be.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use ::files::{Durability, Replacement, Writers, optional};
use types::Digest;

use crate::InstallError;

/// A process that has not renamed its temporary file by then was killed.
const ABANDONED: Duration = Duration::from_secs(60);
const CHUNK: usize = 64 << 10;

/// What a file should hold.
pub(super) enum FileContent<'a> {
    Copy { file: &'a File, path: &'a Path },
    Text(&'a str),
}

/// How a file is compared with what it should be.
pub(super) enum FileState {
    Right,
    Missing,
    /// The content is right, and mode or owner are not.
    Access(String),
    Other(String),
}

impl FileState {
    /// What is wrong, if anything is.
    pub(super) fn complaint(self) -> Option<String> {
        match self {
            Self::Right => None,
            Self::Missing => Some("it was not there".to_owned()),
            Self::Access(why) | Self::Other(why) => Some(why),
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

    /// Piece by piece: a look every half minute must not cost the agent the plugin's size in memory.
    fn is_in(&self, there: &File) -> io::Result<bool> {
        match self {
            Self::Text(text) => {
                let mut rest = text.as_bytes();
                let same = each_chunk(there, |chunk| match rest.strip_prefix(chunk) {
                    Some(tail) => {
                        rest = tail;
                        Ok(true)
                    }
                    None => Ok(false),
                })?;
                Ok(same && rest.is_empty())
            }
            Self::Copy { file, .. } => {
                if file.metadata()?.len() != there.metadata()?.len() {
                    return Ok(false);
                }
                let (mut offset, mut ours) = (0, vec![0; CHUNK]);
                each_chunk(there, |chunk| {
                    let ours = ours.get_mut(..chunk.len()).unwrap_or_default();
                    file.read_exact_at(ours, offset)?;
                    offset += chunk.len() as u64;
                    Ok(*ours == *chunk)
                })
            }
        }
    }
}

/// Calls `see` with the file's pieces until it says false; returns what it said last.
fn each_chunk(file: &File, mut see: impl FnMut(&[u8]) -> io::Result<bool>) -> io::Result<bool> {
    let (mut offset, mut buffer) = (0, vec![0; CHUNK]);
    loop {
        let read = match file.read_at(&mut buffer, offset) {
            Ok(0) => return Ok(true),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if !see(buffer.get(..read).unwrap_or_default())? {
            return Ok(false);
        }
        offset += read as u64;
    }
}

/// A digest wants words; every byte as the character of its number is one, and no two contents give the same.
pub(super) fn digest(bytes: &[u8]) -> String {
    Digest::of_bytes(bytes).base32(51)
}

pub(super) fn look(path: &Path, mode: u32, content: &FileContent<'_>) -> Result<FileState, InstallError> {
    let fail = |source| InstallError::Read { path: path.to_owned(), source };
    let Some(meta) = optional(fs::symlink_metadata(path)).map_err(fail)? else {
        return Ok(FileState::Missing);
    };
    if !meta.is_file() {
        return Ok(FileState::Other("it was not a regular file".to_owned()));
    }
    let opened = ::files::open_unmanaged(path, File::options().read(true));
    let Some(there) = optional(opened).map_err(fail)? else { return Ok(FileState::Missing) };
    if !content.is_in(&there).map_err(fail)? {
        return Ok(FileState::Other("its content was another".to_owned()));
    }
    Ok(access(&meta, mode).map_or(FileState::Right, FileState::Access))
}

fn access(meta: &Metadata, mode: u32) -> Option<String> {
    let (is, us) = (meta.mode() & 0o7777, rustix::process::geteuid().as_raw());
    if is != mode {
        Some(format!("its mode was {is:04o}, not {mode:04o}"))
    } else if meta.uid() != us {
        Some(format!("it belonged to user {}, not {us}", meta.uid()))
    } else {
        None
    }
}

/// Replaces a file, and makes its directory if need be. Some runtimes do not notice a file that is moved in from another
/// directory, and a program that is being executed can be replaced by a rename only. The file is read after every boot, so
/// it is flushed.
pub(super) fn write_whole(path: &Path, content: &[u8], mode: u32) -> Result<(), InstallError> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    make_directory(parent)?;
    let fail = |source| InstallError::Write { path: path.to_owned(), source };
    remove_leftovers(path, ABANDONED).map_err(fail)?;
    // Agents in containers may share the directories of the runtime.
    let how = Replacement { mode, durability: Durability::Disk, writers: Writers::Many };
    ::files::replace(path, content, how).map_err(fail)
}

/// Removes temporary files that were to become the file at `path`.
pub(super) fn remove_leftovers(path: &Path, age: Duration) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    ::files::remove_leftovers(parent, path.file_name(), age).map(drop)
}

/// With what is missing on the way, for all to read, whatever the umask.
fn make_directory(directory: &Path) -> Result<(), InstallError> {
    let missing: Vec<&Path> = directory.ancestors().take_while(|directory| !directory.is_dir()).collect();
    for directory in missing.into_iter().rev() {
        let made = fs::create_dir(directory)
            .and_then(|()| fs::set_permissions(directory, Permissions::from_mode(0o755)));
        match made {
            // Somebody else was quicker.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {}
            made => made.map_err(|source| InstallError::Directory { path: directory.to_owned(), source })?,
        }
    }
    Ok(())
}
