//! `installed.json` in the state directory: the installed files. It is written before the files.

use std::fs;
use std::path::{Path, PathBuf};

use ::files::optional;
use serde::{Deserialize, Serialize};

use crate::{FileRole, InstallError, InstalledBy, files};

const FILE: &str = "installed.json";
const VERSION: u32 = 1;
/// The number of earlier contents of a path that are recorded.
const MAX_DIGESTS: usize = 8;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InstallRecord {
    version: u32,
    #[serde(default)]
    pub(super) files: Vec<RecordedFile>,
    /// Directories that were created, outermost first.
    #[serde(default, alias = "folders")]
    pub(super) directories: Vec<PathBuf>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecordedFile {
    pub(super) role: FileRole,
    #[serde(rename = "maker")]
    pub(super) installed_by: InstalledBy,
    pub(super) path: PathBuf,
    /// Digests of the installed contents, the latest last. After a kill between record and rename the file has an earlier one.
    pub(super) digests: Vec<String>,
}

impl InstallRecord {
    fn empty() -> Self {
        Self { version: VERSION, files: Vec::new(), directories: Vec::new() }
    }

    pub(super) fn path(state_dir: &Path) -> PathBuf {
        state_dir.join(FILE)
    }

    /// Reads the record. A corrupt record is treated as empty and reported, because it must not prevent repairs.
    pub(super) fn read(state_dir: &Path) -> Result<(Self, Option<String>), InstallError> {
        let path = Self::path(state_dir);
        let bytes = match optional(::files::read(&path)) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok((Self::empty(), None)),
            Err(source) => return Err(InstallError::Read { path, source }),
        };
        let problem = match serde_json::from_slice::<Self>(&bytes) {
            Ok(record) if record.version == VERSION => return Ok((record, None)),
            Ok(record) => format!("it has version {}, not {VERSION}", record.version),
            Err(error) => error.to_string(),
        };
        Ok((Self::empty(), Some(format!("{} is corrupt and is created again: {problem}", path.display()))))
    }

    pub(super) fn write(&self, state_dir: &Path) -> Result<(), InstallError> {
        let path = Self::path(state_dir);
        let fail =
            |error: serde_json::Error| InstallError::Write { path: path.clone(), source: error.into() };
        files::write_atomically(&path, &serde_json::to_vec_pretty(self).map_err(fail)?, 0o600)
    }

    pub(super) fn knows(&self, path: &Path) -> bool {
        self.files.iter().any(|entry| entry.path == path)
    }

    pub(super) fn files_of(&self, installed_by: InstalledBy) -> impl Iterator<Item = PathBuf> {
        let is_match = move |entry: &&RecordedFile| entry.installed_by == installed_by;
        self.files.iter().filter(is_match).map(|entry| entry.path.clone())
    }

    /// Whether a plugin with this name was installed.
    pub(super) fn has_plugin(&self, name: &str) -> bool {
        let mut plugins = self.files.iter().filter(|entry| entry.role == FileRole::Plugin);
        plugins.any(|entry| entry.path.file_name().is_some_and(|file| file == name))
    }

    /// Adds an entry, and keeps the digests of an earlier entry with the same path.
    pub(super) fn add(&mut self, mut entry: RecordedFile) {
        if let Some(at) = self.files.iter().position(|earlier| earlier.path == entry.path) {
            let mut digests = self.files.remove(at).digests;
            digests.retain(|earlier| !entry.digests.contains(earlier));
            digests.append(&mut entry.digests);
            digests.drain(..digests.len().saturating_sub(MAX_DIGESTS));
            entry.digests = digests;
        }
        self.files.push(entry);
    }

    pub(super) fn forget(&mut self, path: &Path) {
        self.files.retain(|entry| entry.path != path);
    }

    /// Whether the file has a content that was installed.
    pub(super) fn is_unchanged(&self, path: &Path) -> Result<bool, InstallError> {
        let Some(entry) = self.files.iter().find(|entry| entry.path == path) else { return Ok(false) };
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.is_file() => return Ok(false),
            Ok(_) | Err(_) => {}
        }
        let bytes = optional(::files::read_unmanaged(path))
            .map_err(|source| InstallError::Read { path: path.to_owned(), source })?;
        Ok(bytes.is_some_and(|bytes| entry.digests.contains(&files::digest(&bytes))))
    }

    pub(super) fn add_missing_directories<const N: usize>(
        &mut self,
        directories: [&PathBuf; N],
    ) -> Result<(), InstallError> {
        for directory in directories {
            let mut missing = Vec::new();
            for ancestor in directory.ancestors() {
                let fail = |source| InstallError::Directory { path: directory.clone(), source };
                if ancestor.try_exists().map_err(fail)? {
                    break;
                }
                missing.push(ancestor.to_owned());
            }
            missing.retain(|directory| !self.directories.contains(directory));
            self.directories.extend(missing.into_iter().rev());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::InstallRecord;

    #[test]
    fn directories_of_an_older_format_are_read() {
        let earlier = r#"{"version":1,"files":[],"folders":["/opt/cni"]}"#;
        let record: InstallRecord = serde_json::from_str(earlier).unwrap();
        assert_eq!(record.directories, ["/opt/cni"].map(std::path::PathBuf::from));
        let written = serde_json::to_value(&record).unwrap();
        assert_eq!(written["directories"], serde_json::json!(["/opt/cni"]));
    }
}
