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

pub(super) fn ensure_current(dir: &Path) -> Result<(), StateError> {
    if is_current(dir)? {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io("make the state folder", dir))?;
    let lock_path = dir.join("lock");
    let lock = File::options().create(true).append(true).open(&lock_path).map_err(io("open", &lock_path))?;
    file::lock(&lock, &lock_path, file::LOCK_PATIENCE)?;
    // Somebody else may have done it while we waited.
    if is_current(dir)? {
        return Ok(());
    }
    // The boot id is written last: a kill before that leaves the old id, and the next process starts over.
    for stale in ["networks", "sysctls"] {
        remove_any(&dir.join(stale))?;
    }
    let networks = dir.join("networks");
    DirBuilder::new().mode(0o700).create(&networks).map_err(io("make", &networks))?;
    let (temp, boot) = (dir.join("boot.new"), dir.join("boot"));
    fs::write(&temp, this_boot()?).map_err(io("write", &temp))?;
    fs::rename(&temp, &boot).map_err(io("rename to", &boot))
}

fn remove_any(path: &Path) -> Result<(), StateError> {
    let Some(meta) = optional(fs::symlink_metadata(path)).map_err(io("look at", path))? else { return Ok(()) };
    let removed = if meta.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(io("remove", path))
}
