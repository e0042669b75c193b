//! Directories that hold state.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Why a directory cannot hold state.
#[derive(Debug, thiserror::Error)]
pub enum UnsafeDir {
    #[error("{} is a symlink of another user: remove it", .0.display())]
    Symlink(PathBuf),
    #[error("{dir} belongs to user {owner}, who could change what is in it: run 'chown {us} {dir}'", dir = dir.display())]
    Owner { dir: PathBuf, owner: u32, us: u32 },
    #[error("{dir} can be written by other users (mode {mode:04o}): run 'chmod go-w {dir}'", dir = dir.display())]
    Mode { dir: PathBuf, mode: u32 },
}

/// Whether it belongs to root or to this user. Asks the kernel for this user only if root is not the owner.
pub(crate) fn is_trusted(meta: &Metadata) -> bool {
    meta.uid() == 0 || meta.uid() == rustix::process::geteuid().as_raw()
}

/// The mode, if group or others can write.
pub(crate) fn mode_if_shared(meta: &Metadata) -> Option<u32> {
    Some(meta.mode() & 0o7777).filter(|mode| mode & 0o022 != 0)
}

/// Checks that only this user can change what is in a directory. A path that does not lead to a directory passes: nothing
/// can be opened below it.
pub fn check_dir(dir: &Path) -> Result<(), UnsafeDir> {
    // Without a slash at the end, which would follow a symlink.
    let dir: PathBuf = dir.components().collect();
    let Ok(meta) = fs::symlink_metadata(&dir) else { return Ok(()) };
    // A relocated directory: what counts is where the link leads, and that no other user made it.
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
        return Err(UnsafeDir::Owner { dir, owner: meta.uid(), us: rustix::process::geteuid().as_raw() });
    }
    mode_if_shared(&meta).map_or(Ok(()), |mode| Err(UnsafeDir::Mode { dir, mode }))
}

/// Makes a directory for this user only, with its missing parents. It may exist.
pub fn create_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Flushes the names in a directory to the disk.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
#[path = "tests/dir.rs"]
mod tests;
