//! Folders and files that are there after a power cut, too.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::process::geteuid;

use super::fault::{Fault, io_fault};

const FOLDER: u32 = 0o700;
const FILE: u32 = 0o600;

pub(super) fn make_folder(dir: &Path) -> Result<(), Fault> {
    if let Ok(found) = fs::metadata(dir)
        && found.is_dir()
    {
        return private(&found).map_err(io_fault("use the directory", dir));
    }
    DirBuilder::new().recursive(true).mode(FOLDER).create(dir).map_err(io_fault("make the folder", dir))?;
    // Where the folder stands; a relative one may have no name above it.
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent),
        _ => Ok(()),
    }
}

/// A user who can write here can replace the log, or hold the lock.
fn private(found: &Metadata) -> io::Result<()> {
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    if owner != 0 && owner != geteuid().as_raw() {
        return Err(io::Error::other(format!("it belongs to another user ({owner}): chown root")));
    }
    if mode & 0o022 != 0 {
        return Err(io::Error::other(format!("other users can write to it (mode {mode:04o}): chmod 700")));
    }
    Ok(())
}

/// What was renamed or made in a folder stays so.
pub(super) fn sync_folder(dir: &Path) -> Result<(), Fault> {
    let synced = File::open(dir).and_then(|folder| folder.sync_all());
    synced.map_err(io_fault("write the names in", dir))
}

/// For reading and writing; none if there is none.
pub(super) fn open(path: &Path) -> Result<Option<File>, Fault> {
    match files::open(path, File::options().read(true).write(true)) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_fault("open", path)(error)),
    }
}

/// Empty, whatever was there.
pub(super) fn create(path: &Path) -> Result<File, Fault> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true).mode(FILE);
    files::open(path, &mut options).map_err(io_fault("make", path))
}

/// As it is, made if need be.
pub(super) fn open_or_create(path: &Path) -> Result<File, Fault> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(FILE);
    files::open(path, &mut options).map_err(io_fault("open", path))
}
