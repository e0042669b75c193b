//! Decides whether an unrecorded file at an installation path belongs to Podwire. The record may be lost, so the content is
//! checked as well. All other files stay unchanged.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::{FileRole, InstallError, Installer, PLUGIN, WantedFile};

/// The magic number of ELF programs.
const ELF: &[u8] = b"\x7fELF";

pub(super) fn is_unmanaged(installer: &Installer, wanted: &WantedFile<'_>) -> Result<bool, InstallError> {
    let is_podwire = match wanted.role {
        FileRole::Plugin | FileRole::Loopback => {
            let bytes = content(&wanted.path)?;
            // A power failure can leave an empty file.
            has_podwire_marker(&bytes) || (bytes.is_empty() && wanted.path.is_file())
        }
        FileRole::Config => is_podwire_config(&content(&wanted.path)?, &installer.plugin.name),
    };
    Ok(!is_podwire)
}

/// The content of a regular file, also through a symlink. Empty for anything else.
fn content(path: &Path) -> Result<Vec<u8>, InstallError> {
    let real = match fs::canonicalize(path) {
        Ok(real) if real.is_file() => real,
        Ok(_) | Err(_) => return Ok(Vec::new()),
    };
    let read = ::files::optional(::files::read_unmanaged(&real));
    Ok(read.map_err(|source| InstallError::Read { path: path.to_owned(), source })?.unwrap_or_default())
}

/// Whether this regular file is a Podwire plugin of any version. False if it cannot be read.
pub fn is_podwire_program(path: &Path) -> bool {
    content(path).is_ok_and(|bytes| has_podwire_marker(&bytes))
}

/// Plugins of all versions contain the path of the run directory. An unknown file is never executed to find out.
fn has_podwire_marker(bytes: &[u8]) -> bool {
    let directory = netconf::DEFAULT_RUN_DIR.as_bytes();
    bytes.starts_with(ELF) && bytes.windows(directory.len()).any(|part| part == directory)
}

/// The config names Podwire's plugin. Under a custom name, which other plugins may have, it must contain `runDir`.
fn is_podwire_config(bytes: &[u8], name: &str) -> bool {
    plugins(bytes).iter().any(|plugin| match plugin.get("type").and_then(Value::as_str) {
        Some(PLUGIN) => true,
        Some(kind) => kind == name && plugin.get("runDir").is_some(),
        None => false,
    })
}

/// The plugins of a CNI config, which is a list or a single plugin.
pub(super) fn plugins(bytes: &[u8]) -> Vec<Value> {
    match serde_json::from_slice::<Value>(bytes) {
        Ok(mut config) => {
            let listed = config.get_mut("plugins").and_then(Value::as_array_mut).map(std::mem::take);
            listed.into_iter().flatten().chain([config]).collect()
        }
        Err(_) => Vec::new(),
    }
}
