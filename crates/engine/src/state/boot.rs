//! State that dies with a boot, also where /run is a disk: it carries the boot id, and another id means empty.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::file::{self, StateError, io, optional};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

fn this_boot() -> Result<Vec<u8>, StateError> {
    fs::read(BOOT_ID).map_err(io("read", Path::new(BOOT_ID)))
}

fn recorded(dir: &Path) -> Result<Option<Vec<u8>>, StateError> {
    let path = dir.join("boot");
    optional(fs::read(&path)).map_err(io("read", &path))
}

pub(super) fn is_current(dir: &Path) -> Result<bool, StateError> {
    match recorded(dir)? {
        Some(id) => Ok(id == this_boot()?),
        None => Ok(false),
    }
}

/// The lock around what makes or empties whole folders; given back when the file is dropped.
pub(super) fn lock(dir: &Path) -> Result<File, StateError> {
    let path = dir.join("lock");
    let lock = File::options().create(true).append(true).open(&path).map_err(io("open", &path))?;
    file::lock(&lock, &path, file::LOCK_PATIENCE)?;
    Ok(lock)
}

pub(super) fn ensure_current(dir: &Path) -> Result<(), StateError> {
    if is_current(dir)? {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io("make the state folder", dir))?;
    let _lock = lock(dir)?;
    // Somebody else may have done it while we waited.
    if is_current(dir)? {
        return Ok(());
    }
    // The boot id is written last: a kill before that leaves the old id, and the next process starts over.
    for stale in ["networks", "sysctls"] {
        file::remove_any(&dir.join(stale))?;
    }
    let networks = dir.join("networks");
    DirBuilder::new().mode(0o700).create(&networks).map_err(io("make", &networks))?;
    let (temp, boot) = (dir.join("boot.new"), dir.join("boot"));
    fs::write(&temp, this_boot()?).map_err(io("write", &temp))?;
    fs::rename(&temp, &boot).map_err(io("rename to", &boot))
}
