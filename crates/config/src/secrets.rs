//! Files that may contain a password, with a check of their owner and mode.

use std::fmt;
use std::fs::Metadata;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::geteuid;
use types::Fix;

/// The content of a file, with checks of the same open file. The path may refer to another file by now.
pub(super) struct SecretFile {
    pub(super) text: String,
    /// Why a secret in the file is exposed, with a fix.
    pub(super) exposure: Option<Exposure>,
    /// Why another user can change the file, with a fix.
    pub(super) tampering: Option<String>,
}

/// Reads at most `max` bytes of a regular file.
pub(super) fn read(path: &Path, max: u64) -> io::Result<SecretFile> {
    let file = files::open_config(path)?;
    let metadata = file.metadata()?;
    let mut text = String::new();
    file.take(max).read_to_string(&mut text)?;
    // /dev/null is writable for all users, but writing has no effect.
    let tampering = metadata.is_file().then(|| tampering(path, &metadata)).flatten();
    Ok(SecretFile { text, exposure: exposure(path, &metadata), tampering })
}

/// Only root and the user of this process may own the file and have access to it.
pub(super) fn exposure(path: &Path, metadata: &Metadata) -> Option<Exposure> {
    let mode = metadata.mode() & 0o7777;
    let name = path.to_string_lossy();
    let restrict = Fix::words(["chmod", "600", &name]);
    if has_other_owner(metadata) {
        let reason = format!("belongs to another user ({})", metadata.uid());
        return Some(Exposure { reason, fix: Fix::words(["chown", "root", &name]).and(restrict) });
    }
    let reason = || format!("other users have access to it (mode {mode:04o})");
    (mode & 0o077 != 0).then(|| Exposure { reason: reason(), fix: restrict })
}

/// Why other users can read a secret, and the command that prevents it.
#[derive(Debug)]
pub(super) struct Exposure {
    pub(super) reason: String,
    pub(super) fix: Fix,
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.fix)
    }
}

/// The agent runs as root, so only root may be able to change its configuration.
fn tampering(path: &Path, metadata: &Metadata) -> Option<String> {
    let mode = metadata.mode() & 0o7777;
    let name = path.to_string_lossy();
    let writable = || {
        let fix = Fix::words(["chmod", "go-w", &name]);
        format!("can be changed by other users (mode {mode:04o}): {fix}")
    };
    let by_group = mode & 0o020 != 0 && metadata.gid() != 0;
    other_owner(path, metadata).or_else(|| (mode & 0o002 != 0 || by_group).then(writable))
}

fn other_owner(path: &Path, metadata: &Metadata) -> Option<String> {
    let (owner, path) = (metadata.uid(), path.to_string_lossy());
    let fix = || Fix::words(["chown", "root", &path]);
    has_other_owner(metadata).then(|| format!("belongs to another user ({owner}): {}", fix()))
}

pub(super) fn has_other_owner(metadata: &Metadata) -> bool {
    let owner = metadata.uid();
    owner != 0 && owner != geteuid().as_raw()
}
