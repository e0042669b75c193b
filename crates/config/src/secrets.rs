//! Files that may hold a password: who else can read them.

use std::fmt;
use std::fs::Metadata;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::geteuid;
use types::Fix;

/// A file that was read. The path may lead to another one in the meantime.
pub(super) struct SecretFile {
    pub(super) text: String,
    /// Why a secret in it is not safe, and what helps.
    pub(super) exposure: Option<Exposure>,
    /// Why its text may be another user's, and what helps.
    pub(super) tampering: Option<String>,
}

/// Reads at most so many bytes of a regular file.
pub(super) fn read(path: &Path, most: u64) -> io::Result<SecretFile> {
    let file = files::open_config(path)?;
    let metadata = file.metadata()?;
    let mut text = String::new();
    file.take(most).read_to_string(&mut text)?;
    // Every user can write to /dev/null, which changes nothing.
    let tampering = metadata.is_file().then(|| tampering(path, &metadata)).flatten();
    Ok(SecretFile { text, exposure: exposure(path, &metadata), tampering })
}

/// Root and the user of this process may own it, and have access to it.
pub(super) fn exposure(path: &Path, metadata: &Metadata) -> Option<Exposure> {
    let mode = metadata.mode() & 0o7777;
    let name = path.to_string_lossy();
    let close = Fix::words(["chmod", "600", &name]);
    if has_other_owner(metadata) {
        let what = format!("belongs to another user ({})", metadata.uid());
        return Some(Exposure { what, fix: Fix::words(["chown", "root", &name]).and(close) });
    }
    let what = || format!("other users have access to it (mode {mode:04o})");
    (mode & 0o077 != 0).then(|| Exposure { what: what(), fix: close })
}

/// Why a secret is none, and the command that makes it one.
#[derive(Debug)]
pub(super) struct Exposure {
    pub(super) what: String,
    pub(super) fix: Fix,
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.fix)
    }
}

/// The agent is root: a user who can change its configuration must be as well.
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
