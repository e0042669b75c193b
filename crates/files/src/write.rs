//! Writing files so that a reader finds the earlier content or the new one, never a part of it; and removing them.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::dir::sync_dir;

const PRIVATE: u32 = 0o600;
/// Ends the name of a temporary file, which begins with a dot and the name of the file that it becomes.
const TEMP_SUFFIX: &str = ".podwire-tmp";

/// Whether a file must survive a power failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// It is valid until the next boot. Nothing is flushed.
    Boot,
    /// The file and its directory are flushed to the disk before the call returns.
    Disk,
}

/// Which processes write a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// One at a time, because the caller holds a lock. The next write replaces the temporary file of a killed process.
    One,
    /// Several at once. Temporary files of killed processes stay until [`remove_leftovers`].
    Many,
}

/// How [`replace`] writes a file.
#[derive(Debug, Clone, Copy)]
pub struct Replacement {
    /// Whatever the umask is.
    pub mode: u32,
    pub durability: Durability,
    pub writers: Writers,
}

impl Replacement {
    /// State of this boot, written with a lock held.
    pub const STATE: Self = Self { mode: PRIVATE, durability: Durability::Boot, writers: Writers::One };
    /// State that outlives a boot, written by one process.
    pub const DURABLE: Self = Self { durability: Durability::Disk, ..Self::STATE };
}

/// Replaces the file at `path`, or makes it. It is written under a temporary name in the same directory, closed and renamed:
/// a program that is open for writing cannot be executed. A failure leaves the earlier file, unless it is the flush of the
/// directory that failed.
pub fn replace(path: &Path, bytes: &[u8], how: Replacement) -> io::Result<()> {
    replace_with(path, bytes, how, drop)
}

/// As [`replace`]. Returns the file open.
pub fn replace_open(path: &Path, bytes: &[u8], how: Replacement) -> io::Result<File> {
    replace_with(path, bytes, how, |file| file)
}

fn replace_with<T>(
    path: &Path,
    bytes: &[u8],
    how: Replacement,
    keep: impl FnOnce(File) -> T,
) -> io::Result<T> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let temp = dir.join(temp_name(path.file_name().unwrap_or_default(), how.writers)?);
    let written = write_temp(&temp, bytes, how).map(keep);
    let replaced = written.and_then(|kept| fs::rename(&temp, path).map(|()| kept));
    if replaced.is_err() {
        // The first error is the one to report. A file that stays is a leftover.
        let _ = fs::remove_file(&temp);
    }
    let kept = replaced?;
    match how.durability {
        Durability::Boot => {}
        Durability::Disk => sync_dir(dir)?,
    }
    Ok(kept)
}

fn write_temp(temp: &Path, bytes: &[u8], how: Replacement) -> io::Result<File> {
    let file = write_new(temp, bytes)?;
    if how.mode != PRIVATE {
        file.set_permissions(Permissions::from_mode(how.mode))?;
    }
    match how.durability {
        Durability::Boot => {}
        Durability::Disk => file.sync_all()?,
    }
    Ok(file)
}

/// A leading dot and an unknown suffix: no container runtime takes it for a config. Random, because in a container every
/// agent has the same process id.
fn temp_name(name: &OsStr, writers: Writers) -> io::Result<String> {
    let name = name.to_string_lossy();
    match writers {
        Writers::One => Ok(format!(".{name}{TEMP_SUFFIX}")),
        Writers::Many => {
            let mut random = [0; 8];
            getrandom(&mut random, GetRandomFlags::empty())?;
            Ok(format!(".{name}.{:016x}{TEMP_SUFFIX}", u64::from_ne_bytes(random)))
        }
    }
}

/// Removes temporary files that killed processes left in a directory, and returns their paths. `of`: only those that were
/// to become the file of this name. Files that are younger than `age` may still be written.
pub fn remove_leftovers(dir: &Path, of: Option<&OsStr>, age: Duration) -> io::Result<Vec<PathBuf>> {
    let prefix = of.map_or(".".to_owned(), |name| format!(".{}.", name.to_string_lossy()));
    let mut removed = Vec::new();
    let Some(entries) = optional(fs::read_dir(dir))? else { return Ok(removed) };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !(name.starts_with(&prefix) && name.ends_with(TEMP_SUFFIX)) {
            continue;
        }
        let Some(written) = optional(entry.metadata().and_then(|meta| meta.modified()))? else { continue };
        // A time in the future is not that of a process that writes now.
        let is_young = written.elapsed().is_ok_and(|elapsed| elapsed < age);
        if !is_young && remove(&entry.path())? {
            removed.push(entry.path());
        }
    }
    Ok(removed)
}

/// Makes a new file, for its owner only. Anything but a directory that has the name already is removed first: only for
/// names that the caller alone uses.
pub fn create(path: &Path) -> io::Result<File> {
    let create = || File::options().read(true).write(true).create_new(true).mode(PRIVATE).open(path);
    create().or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => fs::remove_file(path).and_then(|()| create()),
        _ => Err(error),
    })
}

/// As [`create`], with this content.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut file = create(path)?;
    file.write_all(bytes)?;
    Ok(file)
}

/// `Ok(None)` where the path does not exist, also because a part of it is not a directory.
pub fn optional<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Removes a file. False: there was none.
pub fn remove(path: &Path) -> io::Result<bool> {
    Ok(optional(fs::remove_file(path))?.is_some())
}

#[cfg(test)]
#[path = "tests/write.rs"]
mod tests;
