//! `installed.json` in the state directory: what was put where. It is written before the files are.

use std::fs;
use std::path::{Path, PathBuf};

use ::files::optional;
use serde::{Deserialize, Serialize};

use crate::{FileRole, InstallError, InstalledBy, files};

const FILE: &str = "installed.json";
const VERSION: u32 = 1;
/// How many earlier contents of a path are remembered as ours.
const REMEMBERED: usize = 8;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InstallRecord {
    version: u32,
    #[serde(default)]
    pub(super) files: Vec<RecordedFile>,
    /// Directories that were not there before, outermost first.
    #[serde(default, alias = "folders")]
    pub(super) directories: Vec<PathBuf>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecordedFile {
    pub(super) role: FileRole,
    pub(super) maker: InstalledBy,
    pub(super) path: PathBuf,
    /// Of what we put there, the latest last. Somebody killed between record and rename leaves an earlier one in place.
    pub(super) digests: Vec<String>,
}

impl InstallRecord {
    fn empty() -> Self {
        Self { version: VERSION, files: Vec::new(), directories: Vec::new() }
    }

    pub(super) fn path(state_dir: &Path) -> PathBuf {
        state_dir.join(FILE)
    }

    /// The record; one that makes no sense counts as none, with a sentence about it: it must not keep a node from being
    /// repaired.
    pub(super) fn read(state_dir: &Path) -> Result<(Self, Option<String>), InstallError> {
        let path = Self::path(state_dir);
        let bytes = match optional(::files::read(&path)) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok((Self::empty(), None)),
            Err(source) => return Err(InstallError::Read { path, source }),
        };
        let damage = match serde_json::from_slice::<Self>(&bytes) {
            Ok(record) if record.version == VERSION => return Ok((record, None)),
            Ok(record) => format!("it has version {}, not {VERSION}", record.version),
            Err(error) => error.to_string(),
        };
        Ok((Self::empty(), Some(format!("{} cannot be used and is made anew: {damage}", path.display()))))
    }

    pub(super) fn write(&self, state_dir: &Path) -> Result<(), InstallError> {
        let path = Self::path(state_dir);
        let fail =
            |error: serde_json::Error| InstallError::Write { path: path.clone(), source: error.into() };
        files::write_whole(&path, &serde_json::to_vec_pretty(self).map_err(fail)?, 0o600)
    }

    pub(super) fn knows(&self, path: &Path) -> bool {
        self.files.iter().any(|entry| entry.path == path)
    }

    pub(super) fn made_by(&self, maker: InstalledBy) -> impl Iterator<Item = PathBuf> {
        self.files.iter().filter(move |entry| entry.maker == maker).map(|entry| entry.path.clone())
    }

    /// Did we install a plugin of this name?
    pub(super) fn has_plugin(&self, name: &str) -> bool {
        let mut plugins = self.files.iter().filter(|entry| entry.role == FileRole::Plugin);
        plugins.any(|entry| entry.path.file_name().is_some_and(|there| there == name))
    }

    /// An entry of the same path gives it its digests.
    pub(super) fn add(&mut self, mut entry: RecordedFile) {
        if let Some(at) = self.files.iter().position(|earlier| earlier.path == entry.path) {
            let mut digests = self.files.remove(at).digests;
            digests.retain(|earlier| !entry.digests.contains(earlier));
            digests.append(&mut entry.digests);
            digests.drain(..digests.len().saturating_sub(REMEMBERED));
            entry.digests = digests;
        }
        self.files.push(entry);
    }

    pub(super) fn forget(&mut self, path: &Path) {
        self.files.retain(|entry| entry.path != path);
    }

    /// Whether what is there is what we put there at some time.
    pub(super) fn is_ours(&self, path: &Path) -> Result<bool, InstallError> {
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
    fn directories_of_an_earlier_record_are_read() {
        let earlier = r#"{"version":1,"files":[],"folders":["/opt/cni"]}"#;
        let record: InstallRecord = serde_json::from_str(earlier).unwrap();
        assert_eq!(record.directories, ["/opt/cni"].map(std::path::PathBuf::from));
        let written = serde_json::to_value(&record).unwrap();
        assert_eq!(written["directories"], serde_json::json!(["/opt/cni"]));
    }
}
