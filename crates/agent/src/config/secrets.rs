//! Files that may hold a password: who else can read them.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::process::geteuid;

/// Reads at most so many bytes of a regular file. The second part says why a secret in it is not safe, and what helps.
///
/// Owner and mode are those of the file that was read: it may be replaced in the meantime. A FIFO must not block the start.
pub(super) fn read(path: &Path, most: u64) -> io::Result<(String, Option<String>)> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    file.take(most).read_to_string(&mut text)?;
    Ok((text, exposure(path, &metadata)))
}

/// Root and the user of this process may own it, and have access to it.
pub(super) fn exposure(path: &Path, metadata: &Metadata) -> Option<String> {
    let (owner, mode, path) = (metadata.uid(), metadata.mode() & 0o7777, path.display());
    if owner != 0 && owner != geteuid().as_raw() {
        return Some(format!("belongs to another user ({owner}): chown root {path}"));
    }
    (mode & 0o077 != 0).then(|| format!("other users have access to it (mode {mode:04o}): chmod 600 {path}"))
}
