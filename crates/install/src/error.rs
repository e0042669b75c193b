use std::io;
use std::path::{Path, PathBuf};

use types::Fix;

/// Why something could not be installed or taken away.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("cannot read the plugin {}: {source}; keep podwire-cni beside podwire, or set install.plugin", path.display())]
    Source { path: PathBuf, source: io::Error },
    #[error("install.plugin is {}, the very file that is installed; keep the plugin in another directory", path.display())]
    SameFile { path: PathBuf },
    #[error("cannot read the template {}: {source}; correct install.template", path.display())]
    TemplateFile { path: PathBuf, source: io::Error },
    #[error("the agent's own network: {0}")]
    Network(cni::Error),
    #[error("{template} gives no usable CNI config: {problem}")]
    Template { template: String, problem: String },
    #[error(
        "{} belongs to another program and is not overwritten: move it away, or set another {key}",
        path.display()
    )]
    Foreign { path: PathBuf, key: &'static str },
    #[error("cannot make the directory {}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot watch {} for changes: {source}; it is looked at by the timer only", path.display())]
    Watch { path: PathBuf, source: io::Error },
}

impl InstallError {
    /// The command that helps. Runtimes ignore a config with this ending.
    pub fn fix(&self) -> Option<Fix> {
        let Self::Foreign { path, .. } = self else { return None };
        let path = path.to_string_lossy();
        Some(Fix::words(["mv", &path, &format!("{path}.moved")]))
    }

    /// The file or directory that it is about. None: the config, which the template does not give.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Network(_) | Self::Template { .. } => None,
            Self::Source { path, .. }
            | Self::SameFile { path }
            | Self::TemplateFile { path, .. }
            | Self::Foreign { path, .. }
            | Self::Directory { path, .. }
            | Self::Read { path, .. }
            | Self::Write { path, .. }
            | Self::Watch { path, .. } => Some(path),
        }
    }
}
