//! State that dies with a boot, also where /run is a disk: it carries the boot id, and another id means empty.

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

/// Read once: it does not change while a process lives.
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
    // A path that leads through a file never had a state: a DEL finds nothing to remove.
    files::optional(files::read(&path)).map_err(io("read", &path))
}

pub(super) fn is_current(dir: &Path) -> Result<bool, StateError> {
    match recorded(dir)? {
        Some(id) => Ok(id == this_boot()?),
        None => Ok(false),
    }
}

/// The lock around what makes or empties whole directories; given back when the file is dropped.
pub(super) fn lock(dir: &Path) -> Result<File, StateError> {
    let path = dir.join(LOCK);
    let lock = files::open(&path, File::options().create(true).append(true).mode(0o600));
    let lock = lock.map_err(io("open", &path))?;
    file::lock(&lock, &path, file::LOCK_TIMEOUT)?;
    Ok(lock)
}

/// The first file that we make in a state directory: it says that the directory is ours.
const LOCK: &str = "podwire.lock";
/// What is removed when the directory is of another boot. Tombstones stay: an agent that finds nothing to delete removes them.
const EMPTIED: [&str; 2] = ["networks", "sysctls"];
/// Everything in the state of a network.
const NETWORK: [&str; 4] = ["attachments", "addresses", "index", "lock"];
/// Everything that Podwire makes in a run directory. Earlier versions made temporary files whose names end with `.new`.
const OURS: [&str; 9] = [
    LOCK,
    "networks",
    "sysctls",
    "sysctls.new",
    "sysctls.lock",
    "tombstones",
    "agent.lock",
    "boot.new",
    "boot",
];

/// A directory of an earlier boot is emptied, so it must be Podwire's: files of other programs are never touched. `rm -rf`
/// beside a running agent can remove the mark and leave directories that the agent just made, so they count by content.
fn refuse_foreign(dir: &Path) -> Result<(), StateError> {
    if [LOCK, "boot"].iter().any(|name| dir.join(name).symlink_metadata().is_ok()) {
        return Ok(());
    }
    let foreign = |found: &str| StateError::Foreign { dir: dir.to_owned(), found: found.to_owned() };
    let networks = dir.join("networks");
    let found = optional(fs::symlink_metadata(&networks)).map_err(io("inspect", &networks))?;
    if found.is_some_and(|meta| !meta.is_dir()) || !holds_networks(&networks)? {
        return Err(foreign("networks"));
    }
    match SysctlLog::new(dir.join("sysctls")).read() {
        Ok(changes) if changes.refused.is_empty() => Ok(()),
        Ok(_) | Err(_) => Err(foreign("sysctls")),
    }
}

/// Whether everything in a directory is the state of a network.
fn holds_networks(dir: &Path) -> Result<bool, StateError> {
    for network in file::list(dir)? {
        let network = dir.join(network);
        let is_dir = network.symlink_metadata().is_ok_and(|meta| meta.is_dir());
        if !is_dir || !file::list(&network)?.iter().all(|name| NETWORK.iter().any(|own| name == own)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes what is ours, and the directory if nothing else is in it. The lock goes last: until then the directory is ours.
pub(super) fn remove(dir: &Path) -> Result<(), StateError> {
    files::remove_leftovers(dir, None, Duration::ZERO).map_err(io("remove temporary files in", dir))?;
    for name in OURS.iter().rev() {
        file::remove_any(&dir.join(name))?;
    }
    match fs::remove_dir(dir) {
        // In a container the directory may be a mount: empty is all it can be.
        Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::ResourceBusy) => Ok(()),
        other => other.map_err(io("remove", dir)),
    }
}

/// Whether the directory is of this boot, or may be emptied.
pub(super) fn check(dir: &Path) -> Result<(), StateError> {
    if is_current(dir)? { Ok(()) } else { refuse_foreign(dir) }
}

pub(super) fn ensure_current(dir: &Path) -> Result<(), StateError> {
    if is_current(dir)? {
        return Ok(());
    }
    files::create_dir(dir).map_err(io("make the state directory", dir))?;
    refuse_foreign(dir)?;
    let _lock = lock(dir)?;
    // Somebody else may have done it while we waited.
    if is_current(dir)? {
        return Ok(());
    }
    // The boot id is written last: a kill before that leaves the old id, and the next process starts over.
    for stale in EMPTIED {
        file::remove_any(&dir.join(stale))?;
    }
    let networks = dir.join("networks");
    files::create_dir(&networks).map_err(io("make", &networks))?;
    let boot = dir.join("boot");
    files::replace(&boot, this_boot()?, Replacement::STATE).map_err(io("write", &boot))
}
