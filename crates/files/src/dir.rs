//! Directories with state.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// A directory that is not trusted with state.
#[derive(Debug, thiserror::Error)]
pub enum UnsafeDir {
    #[error("{} is a symlink of another user: remove it", .0.display())]
    Symlink(PathBuf),
    #[error("{dir} is owned by untrusted user {owner}: run 'chown {euid} {dir}'", dir = dir.display())]
    Owner { dir: PathBuf, owner: u32, euid: u32 },
    #[error("other users can write to {dir} (mode {mode:04o}): run 'chmod go-w {dir}'", dir = dir.display())]
    Mode { dir: PathBuf, mode: u32 },
}

/// Whether the owner is root or this user. geteuid(2) is only called if the owner is not root.
pub(crate) fn is_trusted(meta: &Metadata) -> bool {
    meta.uid() == 0 || meta.uid() == rustix::process::geteuid().as_raw()
}

/// The mode, if the group or other users can write.
pub(crate) fn mode_if_shared(meta: &Metadata) -> Option<u32> {
    Some(meta.mode() & 0o7777).filter(|mode| mode & 0o022 != 0)
}

/// Checks that only root or this user can change a directory. A path that is not a directory passes, because no file can be
/// opened below it.
pub fn check_dir(dir: &Path) -> Result<(), UnsafeDir> {
    // lstat(2) of a path with a trailing slash would follow a symlink.
    let dir: PathBuf = dir.components().collect();
    let Ok(meta) = fs::symlink_metadata(&dir) else { return Ok(()) };
    // The operator may relocate the directory with a symlink. Then its target is checked.
    let meta = match meta {
        link if link.is_symlink() && !is_trusted(&link) => return Err(UnsafeDir::Symlink(dir)),
        link if link.is_symlink() => match fs::metadata(&dir) {
            Ok(meta) => meta,
            Err(_) => return Ok(()),
        },
        meta => meta,
    };
    if !meta.is_dir() {
        return Ok(());
    }
    if !is_trusted(&meta) {
        return Err(UnsafeDir::Owner { dir, owner: meta.uid(), euid: rustix::process::geteuid().as_raw() });
    }
    mode_if_shared(&meta).map_or(Ok(()), |mode| Err(UnsafeDir::Mode { dir, mode }))
}

/// Creates a directory and its missing parents with mode 0700. An existing directory is not an error.
pub fn create_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Flushes the entries of a directory to the disk.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
#[path = "tests/dir.rs"]
mod tests;
