//! Taking away what was installed: only what is still ours, and everything is tried.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use ::files::optional;
use serde_json::Value;

use crate::record::{InstallRecord, RecordedFile};
use crate::{FileRole, InstallError, PLUGIN, files, unmanaged};

/// What was taken away, and what was left for a person to decide.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RemovedFiles {
    pub done: Vec<String>,
    pub left: Vec<String>,
}

/// Takes away what the record in this state directory names, the config first: a runtime must not find a config whose
/// plugin is gone.
pub fn remove(state_dir: &Path) -> Result<RemovedFiles, InstallError> {
    let (mut record, damage) = InstallRecord::read(state_dir)?;
    let mut removal = RemovedFiles::default();
    if damage.is_some() {
        let path = InstallRecord::path(state_dir);
        let what = "cannot be used; look for 10-podwire.conflist, podwire-cni and loopback yourself";
        removal.left.push(format!("{} {what}", path.display()));
        return Ok(removal);
    }
    let mut paths: Vec<(FileRole, _)> =
        record.files.iter().map(|entry| (entry.role, entry.path.clone())).collect();
    paths.sort_by_key(|(role, _)| std::cmp::Reverse(*role));
    for (_, path) in &paths {
        entry(path, &mut record, &mut removal);
    }
    // What could not be removed is known to the next try.
    if record.files.is_empty() {
        forget(state_dir, &record, &mut removal);
    } else {
        record.write(state_dir)?;
    }
    Ok(removal)
}

/// Removes one file of the record if it is still ours. The entry stays only if the file resists.
pub(super) fn entry(path: &Path, record: &mut InstallRecord, removal: &mut RemovedFiles) {
    let Some(entry) = record.files.iter().find(|entry| entry.path == path).cloned() else { return };
    let what = format!("{} {}", entry.role.word(), path.display());
    let outcome = match is_ours(&entry, record) {
        Ok(Ownership::Gone) => Ok(()),
        Ok(Ownership::Ours) => fs::remove_file(path)
            .map_err(|error| error.to_string())
            .map(|()| removal.done.push(format!("{what} removed"))),
        Ok(Ownership::Theirs) => {
            removal.left.push(format!("{what} stays: somebody changed it since it was installed"));
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = files::remove_leftovers(path, Duration::ZERO) {
        removal.left.push(format!("temporary files of {what} stay: {error}"));
    }
    match outcome {
        Ok(()) => record.forget(path),
        Err(error) => removal.left.push(format!("{what} stays: {error}")),
    }
}

enum Ownership {
    Gone,
    Ours,
    Theirs,
}

fn is_ours(entry: &RecordedFile, record: &InstallRecord) -> Result<Ownership, InstallError> {
    if let Ok(None) = optional(fs::symlink_metadata(&entry.path)) {
        return Ok(Ownership::Gone);
    }
    let ours =
        record.is_ours(&entry.path)? || (entry.role == FileRole::Config && names_us(&entry.path, record));
    Ok(if ours { Ownership::Ours } else { Ownership::Theirs })
}

/// A config that somebody edited still calls a plugin that will be gone.
fn names_us(path: &Path, record: &InstallRecord) -> bool {
    let Ok(bytes) = ::files::read_unmanaged(path) else { return false };
    let plugins = unmanaged::plugins(&bytes);
    let mut kinds = plugins.iter().filter_map(|plugin| plugin.get("type").and_then(Value::as_str));
    kinds.any(|kind| kind == PLUGIN || record.has_plugin(kind))
}

/// The record itself, and the directories that we made and nobody else uses.
fn forget(state_dir: &Path, record: &InstallRecord, removal: &mut RemovedFiles) {
    let path = InstallRecord::path(state_dir);
    if let Err(error) = ::files::remove(&path) {
        removal.left.push(format!("{} stays: {error}", path.display()));
    }
    // Innermost first.
    let mut directories = record.directories.clone();
    directories.sort_by_key(|directory| std::cmp::Reverse(directory.components().count()));
    for directory in directories {
        match optional(fs::remove_dir(&directory)) {
            Ok(Some(())) => removal.done.push(format!("directory {} removed", directory.display())),
            Ok(None) => {}
            // Somebody else's by now.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) => removal.left.push(format!("directory {} stays: {error}", directory.display())),
        }
    }
}
