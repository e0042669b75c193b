//! Whose file is it that lies where ours should, and of which no record tells? The record may be lost, so what shows that
//! it is ours counts, too; everything else stays as it is.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::{FileRole, InstallError, Installer, PLUGIN, WantedFile};

/// How programs begin on Linux.
const ELF: &[u8] = b"\x7fELF";

pub(super) fn is_unmanaged(installer: &Installer, wanted: &WantedFile<'_>) -> Result<bool, InstallError> {
    let is_ours = match wanted.role {
        FileRole::Plugin | FileRole::Loopback => {
            let bytes = content(&wanted.path)?;
            // As a power failure leaves a file that was just written.
            is_our_program(&bytes) || (bytes.is_empty() && wanted.path.is_file())
        }
        FileRole::Config => is_our_config(&content(&wanted.path)?, &installer.plugin.name),
    };
    Ok(!is_ours)
}

/// Of a regular file, also where a link leads to it; anything else has nothing of Podwire in it.
fn content(path: &Path) -> Result<Vec<u8>, InstallError> {
    let real = match fs::canonicalize(path) {
        Ok(real) if real.is_file() => real,
        Ok(_) | Err(_) => return Ok(Vec::new()),
    };
    let read = ::files::optional(::files::read_unmanaged(&real));
    Ok(read.map_err(|source| InstallError::Read { path: path.to_owned(), source })?.unwrap_or_default())
}

/// Whether this regular file is a Podwire plugin of any version. One that cannot be read is not.
pub fn is_podwire_program(path: &Path) -> bool {
    content(path).is_ok_and(|bytes| is_our_program(&bytes))
}

/// A plugin of any version: each contains the path of its state directory. An unknown file is never executed to find out.
fn is_our_program(bytes: &[u8]) -> bool {
    let directory = netconf::DEFAULT_RUN_DIR.as_bytes();
    bytes.starts_with(ELF) && bytes.windows(directory.len()).any(|part| part == directory)
}

/// It calls our plugin. Under a name that others may have, too, it must say where our records are.
fn is_our_config(bytes: &[u8], name: &str) -> bool {
    plugins(bytes).iter().any(|plugin| match plugin.get("type").and_then(Value::as_str) {
        Some(PLUGIN) => true,
        Some(kind) => kind == name && plugin.get("runDir").is_some(),
        None => false,
    })
}

/// Those of a CNI config, be it a list or the only one itself.
pub(super) fn plugins(bytes: &[u8]) -> Vec<Value> {
    match serde_json::from_slice::<Value>(bytes) {
        Ok(mut config) => {
            let listed = config.get_mut("plugins").and_then(Value::as_array_mut).map(std::mem::take);
            listed.into_iter().flatten().chain([config]).collect()
        }
        Err(_) => Vec::new(),
    }
}
