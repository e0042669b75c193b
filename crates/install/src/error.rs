use std::io;
use std::path::{Path, PathBuf};

use types::{Fix, cause};

/// Why files could not be installed or removed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("cannot read plugin {}: {}; keep podwire-cni in the directory of podwire, or set install.plugin", path.display(), cause(source))]
    Source { path: PathBuf, source: io::Error },
    #[error("install.plugin {} is the installed file itself; keep the plugin in another directory", path.display())]
    SameFile { path: PathBuf },
    #[error("cannot read template {}: {}; correct install.template", path.display(), cause(source))]
    TemplateFile { path: PathBuf, source: io::Error },
    #[error("invalid network of the agent: {0}")]
    Network(cni::Error),
    #[error("{template} produces no valid CNI config: {problem}")]
    Template { template: String, problem: String },
    #[error(
        "{} belongs to another program and is not overwritten: move it away, or change {key}",
        path.display()
    )]
    Unmanaged { path: PathBuf, key: &'static str },
    #[error("cannot create directory {}: {}", path.display(), cause(source))]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot read {}: {}", path.display(), cause(source))]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {}", path.display(), cause(source))]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot watch {} for changes: {}; only the timer checks it", path.display(), cause(source))]
    Watch { path: PathBuf, source: io::Error },
}

impl InstallError {
    /// A command that fixes the cause. Runtimes ignore a config with the new extension.
    pub fn fix(&self) -> Option<Fix> {
        let Self::Unmanaged { path, .. } = self else { return None };
        let path = path.to_string_lossy();
        Some(Fix::words(["mv", &path, &format!("{path}.moved")]))
    }

    /// The affected file or directory. None for the config itself.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Network(_) | Self::Template { .. } => None,
            Self::Source { path, .. }
            | Self::SameFile { path }
            | Self::TemplateFile { path, .. }
            | Self::Unmanaged { path, .. }
            | Self::Directory { path, .. }
            | Self::Read { path, .. }
            | Self::Write { path, .. }
            | Self::Watch { path, .. } => Some(path),
        }
    }
}
