//! State is valid for one boot, also if /run is on a disk. It contains the boot ID, and with another ID it is discarded.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use files::Replacement;

use super::file::{self, StateError, io, optional};
use super::sysctls::SysctlLog;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Read once, because it does not change while a process runs.
fn this_boot() -> Result<&'static [u8], StateError> {
    static ID: OnceLock<Vec<u8>> = OnceLock::new();
    match ID.get() {
        Some(id) => Ok(id),
        None => {
            let id = fs::read(BOOT_ID).map_err(io("read", Path::new(BOOT_ID)))?;
            Ok(ID.get_or_init(|| id))
        }
    }
}

fn recorded(dir: &Path) -> Result<Option<Vec<u8>>, StateError> {
    let path = dir.join("boot");
    // If a path component is a file, there never was a state: a DEL has nothing to remove.
    files::optional(files::read(&path)).map_err(io("read", &path))
}

pub(super) fn is_current(dir: &Path) -> Result<bool, StateError> {
    match recorded(dir)? {
        Some(id) => Ok(id == this_boot()?),
        None => Ok(false),
    }
}

/// The lock for creating or emptying directories. It is released when the file is dropped.
pub(super) fn lock(dir: &Path) -> Result<File, StateError> {
    let path = dir.join(LOCK);
    let lock = files::open(&path, File::options().create(true).append(true).mode(0o600));
    let lock = lock.map_err(io("open", &path))?;
    file::lock(&lock, &path, file::LOCK_TIMEOUT)?;
    Ok(lock)
}

/// The first file in a state directory. It marks the directory as Podwire's.
const LOCK: &str = "podwire.lock";
/// Removed if the directory is of another boot. Tombstones stay: the agent removes those without an attachment.
const REMOVED_AFTER_BOOT: [&str; 3] = ["networks", "sysctls", "policies-enforced"];
/// All files and directories in the state of a network.
const NETWORK_FILES: [&str; 4] = ["attachments", "addresses", "index", "lock"];
/// All files and directories that Podwire creates in a run directory. Earlier versions created temporary files with the suffix
/// `.new`.
const MANAGED_FILES: [&str; 10] = [
    LOCK,
    "networks",
    "sysctls",
    "sysctls.new",
    "sysctls.lock",
    "tombstones",
    "agent.lock",
    "policies-enforced",
    "boot.new",
    "boot",
];

/// A directory of an earlier boot is emptied, so it must be Podwire's: files of other programs are never changed. `rm -rf` beside
/// a running agent can remove the mark and leave directories that the agent just created, so these are recognized by content.
fn refuse_unmanaged(dir: &Path) -> Result<(), StateError> {
    if [LOCK, "boot"].iter().any(|name| dir.join(name).symlink_metadata().is_ok()) {
        return Ok(());
    }
    let unmanaged = |entry: &str| StateError::Unmanaged { dir: dir.to_owned(), entry: entry.to_owned() };
    let networks = dir.join("networks");
    let meta = optional(fs::symlink_metadata(&networks)).map_err(io("inspect", &networks))?;
    if meta.is_some_and(|meta| !meta.is_dir()) || !contains_only_networks(&networks)? {
        return Err(unmanaged("networks"));
    }
    match SysctlLog::new(dir.join("sysctls")).read() {
        Ok(changes) if changes.refused.is_empty() => Ok(()),
        Ok(_) | Err(_) => Err(unmanaged("sysctls")),
    }
}

/// Whether every entry of a directory is the state of a network.
fn contains_only_networks(dir: &Path) -> Result<bool, StateError> {
    for network in file::list(dir)? {
        let network = dir.join(network);
        let is_dir = network.symlink_metadata().is_ok_and(|meta| meta.is_dir());
        let is_expected = |name: &OsString| NETWORK_FILES.iter().any(|expected| name == expected);
        if !is_dir || !file::list(&network)?.iter().all(is_expected) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes Podwire's files, and the directory if it is then empty. The lock file is removed last, because it is the mark.
pub(super) fn remove(dir: &Path) -> Result<(), StateError> {
    files::remove_leftovers(dir, None, Duration::ZERO).map_err(io("remove temporary files in", dir))?;
    for name in MANAGED_FILES.iter().rev() {
        file::remove_any(&dir.join(name))?;
    }
    match fs::remove_dir(dir) {
        // In a container the directory may be a mount point, which cannot be removed.
        Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::ResourceBusy) => Ok(()),
        other => other.map_err(io("remove", dir)),
    }
}

/// Whether the directory is of this boot, or is Podwire's and may be emptied.
pub(super) fn check(dir: &Path) -> Result<(), StateError> {
    if is_current(dir)? { Ok(()) } else { refuse_unmanaged(dir) }
}

pub(super) fn ensure_current(dir: &Path) -> Result<(), StateError> {
    if is_current(dir)? {
        return Ok(());
    }
    files::create_dir(dir).map_err(io("create the state directory", dir))?;
    refuse_unmanaged(dir)?;
    let _lock = lock(dir)?;
    // Another process may have done it while this one waited.
    if is_current(dir)? {
        return Ok(());
    }
    // The boot ID is written last. If the process is killed before, the old ID stays, and the next process starts over.
    for stale in REMOVED_AFTER_BOOT {
        file::remove_any(&dir.join(stale))?;
    }
    let networks = dir.join("networks");
    files::create_dir(&networks).map_err(io("create", &networks))?;
    let boot = dir.join("boot");
    files::replace(&boot, this_boot()?, Replacement::STATE).map_err(io("write", &boot))
}
