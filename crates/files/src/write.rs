//! Atomic replacement of files, so that a reader finds either the old or the new content. Removal of files.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::dir::sync_dir;

const PRIVATE: u32 = 0o600;
/// Temporary files are named `.NAME.podwire-tmp` or `.NAME.RANDOM.podwire-tmp`.
const TEMP_SUFFIX: &str = ".podwire-tmp";

/// Whether a file must survive a power failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The content is valid until the next boot. Nothing is flushed.
    Boot,
    /// The file and its directory are flushed to the disk before the call returns.
    Disk,
}

/// Whether several processes may write a path at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// The caller holds a lock. The next write overwrites the temporary file of a killed process.
    One,
    /// Several processes. Temporary files of killed processes remain until [`remove_leftovers`].
    Many,
}

/// How [`replace`] writes a file.
#[derive(Debug, Clone, Copy)]
pub struct Replacement {
    /// The umask does not apply.
    pub mode: u32,
    pub durability: Durability,
    pub writers: Writers,
}

impl Replacement {
    /// State of this boot, written while a lock is held.
    pub const STATE: Self = Self { mode: PRIVATE, durability: Durability::Boot, writers: Writers::One };
    /// State that outlives a boot, written by one process.
    pub const DURABLE: Self = Self { durability: Durability::Disk, ..Self::STATE };
}

/// Creates or replaces the file at `path`. Writes a temporary file in the same directory, closes and renames it. It is closed
/// first because a program that is open for writing cannot be executed. After an error the old file is unchanged, unless only
/// the flush of the directory failed.
pub fn replace(path: &Path, bytes: &[u8], how: Replacement) -> io::Result<()> {
    replace_with(path, bytes, how, drop)
}

/// As [`replace`]. Returns the open file.
pub fn replace_open(path: &Path, bytes: &[u8], how: Replacement) -> io::Result<File> {
    replace_with(path, bytes, how, |file| file)
}

fn replace_with<T>(
    path: &Path,
    bytes: &[u8],
    how: Replacement,
    map_file: impl FnOnce(File) -> T,
) -> io::Result<T> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let temp = dir.join(temp_name(path.file_name().unwrap_or_default(), how.writers)?);
    let written = write_temp(&temp, bytes, how).map(map_file);
    let replaced = written.and_then(|mapped| fs::rename(&temp, path).map(|()| mapped));
    if replaced.is_err() {
        // The first error is reported. If this fails too, `remove_leftovers` removes the file.
        let _ = fs::remove_file(&temp);
    }
    let mapped = replaced?;
    match how.durability {
        Durability::Boot => {}
        Durability::Disk => sync_dir(dir)?,
    }
    Ok(mapped)
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

/// Container runtimes ignore the leading dot and the unknown suffix, so they do not load a temporary file as a config. The
/// name is random because agents in containers can have the same process id.
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

/// Removes temporary files of killed processes in a directory, and returns their paths. `of` limits this to temporary files
/// of one file name. Files younger than `age` are skipped, because their writer may still run.
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
        // A modification time in the future does not belong to a running writer.
        let is_young = written.elapsed().is_ok_and(|elapsed| elapsed < age);
        if !is_young && remove(&entry.path())? {
            removed.push(entry.path());
        }
    }
    Ok(removed)
}

/// Creates a new file with mode 0600. An existing file, symlink or special file is removed first, so no other process may use
/// this name.
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

/// `Ok(None)` if the path does not exist, or if a component of it is not a directory.
pub fn optional<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Removes a file. Returns false if it does not exist.
pub fn remove(path: &Path) -> io::Result<bool> {
    Ok(optional(fs::remove_file(path))?.is_some())
}

#[cfg(test)]
#[path = "tests/write.rs"]
mod tests;
