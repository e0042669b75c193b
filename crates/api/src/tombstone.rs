//! Tombstones: DEL requests that were received while no agent ran, stored in a directory for the agent.
//!
//! One file per attachment key, replaced atomically. Plugins write them, and only the agent removes them.
//! Files with a leading dot are not tombstones: they are temporary files, or tombstones that the agent put aside.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{Error as IoError, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use files::{Replacement, Writers, optional};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use types::{AttachmentKey, Digest, cause};

use crate::{CniCall, MAX_BODY};

/// Temporary files older than this were left by a killed plugin.
const MAX_TEMPORARY_AGE: Duration = Duration::from_secs(600);
/// The maximum size that is read: a request that the agent would accept, and the key, which repeats parts of it.
const MAX_SIZE: usize = 2 * MAX_BODY;
const PUT_ASIDE: &str = ".unreadable-";

#[derive(Debug, thiserror::Error)]
pub enum TombstoneError {
    #[error("cannot {op} {}: {}", path.display(), cause(source))]
    Io { op: &'static str, path: PathBuf, source: IoError },
    #[error("cannot parse tombstone {}: {source}", path.display())]
    Content { path: PathBuf, source: serde_json::Error },
    #[error("the directory of tombstones is not safe: {0}")]
    Unsafe(#[from] files::UnsafeDir),
}

/// The directory of a node's tombstones.
#[derive(Debug, Clone)]
pub struct Tombstones {
    dir: PathBuf,
}

/// A tombstone, as read.
#[derive(Debug)]
pub struct Tombstone {
    pub path: PathBuf,
    /// None if the tombstone is unreadable.
    pub key: Option<AttachmentKey>,
    /// The DEL to serve.
    pub call: Result<CniCall, TombstoneError>,
    identity: FileIdentity,
}

/// Distinguishes a file from a later file with the same name. A rename does not change it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileIdentity {
    inode: u64,
    device: u64,
    modified: (i64, i64),
}

impl FileIdentity {
    fn of(meta: &Metadata) -> Self {
        Self { inode: meta.ino(), device: meta.dev(), modified: (meta.mtime(), meta.mtime_nsec()) }
    }
}

/// The call and its key. The agent can read the key even if it cannot process the call.
#[derive(Serialize, Deserialize)]
struct TombstoneContent<C> {
    key: AttachmentKey,
    #[serde(flatten)]
    call: C,
}

impl Tombstones {
    pub fn new(run_dir: &Path) -> Self {
        Self { dir: run_dir.join("tombstones") }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a tombstone for this DEL. It replaces an earlier one with the same key.
    pub fn write(&self, call: &CniCall, key: &AttachmentKey) -> Result<(), TombstoneError> {
        let (dir, path) = (&self.dir, self.path_of(key));
        let content = TombstoneContent { key: key.clone(), call };
        let text = serde_json::to_vec(&content)
            .map_err(|source| TombstoneError::Content { path: path.clone(), source })?;
        dir.parent().map_or(Ok(()), files::check_dir)?;
        files::create_dir(dir).map_err(io("create", dir))?;
        files::check_dir(dir)?;
        let how = Replacement { writers: Writers::Many, ..Replacement::STATE };
        files::replace(&path, &text, how).map_err(io("write", &path))
    }

    /// All tombstones, including unreadable ones. Removes temporary files of killed plugins.
    pub fn list(&self) -> Result<Vec<Tombstone>, TombstoneError> {
        files::remove_leftovers(&self.dir, None, MAX_TEMPORARY_AGE)
            .map_err(io("remove temporary files in", &self.dir))?;
        let mut all = Vec::new();
        for name in self.names()?.iter().filter(|name| is_tombstone(name)) {
            all.extend(read(self.dir.join(name))?);
        }
        Ok(all)
    }

    pub fn exists(&self, key: &AttachmentKey) -> Result<bool, TombstoneError> {
        let path = self.path_of(key);
        optional(path.symlink_metadata()).map_err(io("inspect", &path)).map(|metadata| metadata.is_some())
    }

    /// Reads the directory once. A missing directory is empty.
    pub fn is_empty(&self) -> Result<bool, TombstoneError> {
        Ok(!self.names()?.iter().any(is_tombstone))
    }

    /// Removes a tombstone that was served, unless a newer one has replaced it.
    ///
    /// A file cannot be checked and removed in one step, so it is first renamed to a private name. That name is listed as well,
    /// so nothing is lost if the process is killed in between.
    pub fn remove(&self, tombstone: &Tombstone) -> Result<(), TombstoneError> {
        let Some(private) = self.rename_if_same(tombstone, |name| format!("{name}-served"))? else {
            return Ok(());
        };
        remove_if_exists(&private)
    }

    /// Renames an unreadable tombstone for inspection by an operator, and returns the path. None if it does not exist any more.
    pub fn put_aside(&self, tombstone: &Tombstone) -> Result<Option<PathBuf>, TombstoneError> {
        self.rename_if_same(tombstone, |name| format!("{PUT_ASIDE}{name}"))
    }

    /// Renames the file that was read. None if it was removed or replaced.
    fn rename_if_same(
        &self,
        tombstone: &Tombstone,
        rename: impl Fn(&str) -> String,
    ) -> Result<Option<PathBuf>, TombstoneError> {
        let path = &tombstone.path;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let private = self.dir.join(rename(&name));
        if optional(fs::rename(path, &private)).map_err(io("rename", path))?.is_none() {
            return Ok(None);
        }
        let meta = private.symlink_metadata().map_err(io("inspect", &private))?;
        if FileIdentity::of(&meta) == tombstone.identity {
            return Ok(Some(private));
        }
        match renameat_with(CWD, &private, CWD, path, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(None),
            // An even newer file exists, which replaces this one as well.
            Err(Errno::EXIST) => remove_if_exists(&private).map(|()| None),
            Err(errno) => Err(io("rename to", path)(errno.into())),
        }
    }

    fn path_of(&self, key: &AttachmentKey) -> PathBuf {
        let words = ["tombstone", key.network.as_str(), key.container.as_str(), key.ifname.as_str()];
        self.dir.join(Digest::of(&words).base32(51))
    }

    fn names(&self) -> Result<Vec<OsString>, TombstoneError> {
        let entries = match fs::read_dir(&self.dir) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(io("list", &self.dir))?,
        };
        entries.map(|entry| entry.map(|e| e.file_name()).map_err(io("list", &self.dir))).collect()
    }
}

fn is_tombstone(name: &OsString) -> bool {
    !name.as_encoded_bytes().starts_with(b".")
}

/// None if the file was removed after the directory was read.
fn read(path: PathBuf) -> Result<Option<Tombstone>, TombstoneError> {
    let Some(meta) = optional(path.symlink_metadata()).map_err(io("inspect", &path))? else {
        return Ok(None);
    };
    let mut identity = FileIdentity::of(&meta);
    // Content and identity are read through one descriptor, because the file may be replaced at any time.
    let content = match optional(files::open(&path, File::options().read(true))).map_err(io("open", &path)) {
        Ok(Some(file)) => content_of(&file, &path, &mut identity),
        Ok(None) => return Ok(None),
        Err(e) => Err(e),
    };
    let (key, call) = match content {
        Ok(content) => (Some(content.key), Ok(content.call)),
        Err(e) => (None, Err(e)),
    };
    Ok(Some(Tombstone { path, key, call, identity }))
}

fn content_of(
    file: &File,
    path: &Path,
    identity: &mut FileIdentity,
) -> Result<TombstoneContent<CniCall>, TombstoneError> {
    *identity = FileIdentity::of(&file.metadata().map_err(io("inspect", path))?);
    let text = files::read_limited(file, MAX_SIZE as u64).map_err(io("read", path))?;
    serde_json::from_slice(&text).map_err(|source| TombstoneError::Content { path: path.to_owned(), source })
}

fn remove_if_exists(path: &Path) -> Result<(), TombstoneError> {
    files::remove(path).map_err(io("remove", path)).map(drop)
}

fn io<'a>(op: &'static str, path: &'a Path) -> impl FnOnce(IoError) -> TombstoneError + 'a {
    move |source| TombstoneError::Io { op, path: path.to_owned(), source }
}

#[cfg(test)]
#[path = "tombstone_tests.rs"]
mod tests;
