//! What we changed on the machine outside our own links: each sysctl once, with the value it had before (F7).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::file::{self, StateError, io, optional};

/// One sysctl that we changed: cleanup restores `before` if it still reads `ours`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    pub before: String,
    pub ours: String,
}

#[derive(Debug)]
pub struct SysctlLog {
    path: PathBuf,
}

impl SysctlLog {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Path → what it was and what we made of it. An unreadable log is reported, not guessed at.
    pub fn read(&self) -> Result<BTreeMap<String, Changed>, StateError> {
        let Some(bytes) = optional(fs::read(&self.path)).map_err(io("read", &self.path))? else {
            return Ok(BTreeMap::new());
        };
        serde_json::from_slice(&bytes).map_err(|e| io("decode", &self.path)(e.into()))
    }

    /// Notes a change before it is made. The first `before` of a sysctl stays: it is what the machine had without us.
    pub fn note(&self, sysctl: &Path, before: &str, ours: &str) -> Result<(), StateError> {
        let lock_path = self.path.with_extension("lock");
        let lock =
            File::options().create(true).append(true).open(&lock_path).map_err(io("open", &lock_path))?;
        file::lock(&lock, &lock_path, file::LOCK_PATIENCE)?;
        let mut all = self.read()?;
        all.entry(sysctl.display().to_string())
            .and_modify(|changed| ours.clone_into(&mut changed.ours))
            .or_insert_with(|| Changed { before: before.to_owned(), ours: ours.to_owned() });
        let temp = self.path.with_extension("new");
        let text = serde_json::to_vec_pretty(&all).map_err(|e| io("encode", &self.path)(e.into()))?;
        fs::write(&temp, text).map_err(io("write", &temp))?;
        fs::rename(&temp, &self.path).map_err(io("rename to", &self.path))
    }
}
