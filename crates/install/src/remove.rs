//! Removes installed files that are unchanged. A failure does not stop the removal of other files.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use ::files::optional;
use serde_json::Value;

use crate::record::{InstallRecord, RecordedFile};
use crate::{FileRole, InstallError, PLUGIN, files, unmanaged};

/// The removed files, and those that an operator has to decide about.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RemovedFiles {
    pub done: Vec<String>,
    pub left: Vec<String>,
}

/// Removes the files in the record of this state directory. The config is removed first: a runtime must not read a config
/// without its plugin.
pub fn remove(state_dir: &Path) -> Result<RemovedFiles, InstallError> {
    let (mut record, corruption) = InstallRecord::read(state_dir)?;
    let mut removal = RemovedFiles::default();
    if corruption.is_some() {
        let path = InstallRecord::path(state_dir);
        let hint = "is corrupt; check for 10-podwire.conflist, podwire-cni and loopback manually";
        removal.left.push(format!("{} {hint}", path.display()));
        return Ok(removal);
    }
    let mut paths: Vec<(FileRole, _)> =
        record.files.iter().map(|entry| (entry.role, entry.path.clone())).collect();
    paths.sort_by_key(|(role, _)| std::cmp::Reverse(*role));
    for (_, path) in &paths {
        remove_entry(path, &mut record, &mut removal);
    }
    // Files that could not be removed stay in the record for the next attempt.
    if record.files.is_empty() {
        remove_record(state_dir, &record, &mut removal);
    } else {
        record.write(state_dir)?;
    }
    Ok(removal)
}

/// Removes one recorded file if it is unchanged. The entry stays only if the removal fails.
pub(super) fn remove_entry(path: &Path, record: &mut InstallRecord, removal: &mut RemovedFiles) {
    let Some(entry) = record.files.iter().find(|entry| entry.path == path).cloned() else { return };
    let file = format!("{} {}", entry.role.label(), path.display());
    let outcome = match ownership(&entry, record) {
        Ok(Ownership::Missing) => Ok(()),
        Ok(Ownership::Podwire) => fs::remove_file(path)
            .map_err(|error| error.to_string())
            .map(|()| removal.done.push(format!("{file} removed"))),
        Ok(Ownership::Changed) => {
            removal.left.push(format!("{file} stays: it was changed after the installation"));
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = files::remove_leftovers(path, Duration::ZERO) {
        removal.left.push(format!("temporary files of {file} stay: {error}"));
    }
    match outcome {
        Ok(()) => record.forget(path),
        Err(error) => removal.left.push(format!("{file} stays: {error}")),
    }
}

enum Ownership {
    Missing,
    Podwire,
    Changed,
}

fn ownership(entry: &RecordedFile, record: &InstallRecord) -> Result<Ownership, InstallError> {
    if let Ok(None) = optional(fs::symlink_metadata(&entry.path)) {
        return Ok(Ownership::Missing);
    }
    let is_podwire = record.is_unchanged(&entry.path)?
        || (entry.role == FileRole::Config && names_podwire(&entry.path, record));
    Ok(if is_podwire { Ownership::Podwire } else { Ownership::Changed })
}

/// An edited config still names the plugin, which is about to be removed.
fn names_podwire(path: &Path, record: &InstallRecord) -> bool {
    let Ok(bytes) = ::files::read_unmanaged(path) else { return false };
    let plugins = unmanaged::plugins(&bytes);
    let mut kinds = plugins.iter().filter_map(|plugin| plugin.get("type").and_then(Value::as_str));
    kinds.any(|kind| kind == PLUGIN || record.has_plugin(kind))
}

/// Removes the record itself, and created directories that are empty.
fn remove_record(state_dir: &Path, record: &InstallRecord, removal: &mut RemovedFiles) {
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
            // Other programs use it.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) => removal.left.push(format!("directory {} stays: {error}", directory.display())),
        }
    }
}
