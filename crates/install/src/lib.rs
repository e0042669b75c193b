//! Installs the plugin and the CNI config in the runtime's directories, restores them, and removes them.
//!
//! The plugin is written first and the config last, each by a rename inside its directory. So a runtime never reads an
//! incomplete file or a config without its plugin, and never gets "text file busy". Paths are recorded in the state directory
//! before files are written, so that `podwire cleanup` finds them without the agent's configuration.

pub mod cni_configs;
mod error;
mod files;
mod record;
mod remove;
pub mod runtimes;
mod template;
mod unmanaged;
mod watch;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use api::InstalledFile;
use ipnet::IpNet;
use model::BlockLayout;
use netconf::{Network, NetworkSettings};
use serde::{Deserialize, Serialize};
use types::{Code, Finding};

use config::{Config, InstallConfig, PluginConfig, StoreChoice};

pub use error::InstallError;
pub use remove::{RemovedFiles, remove};
pub use template::VARIABLES;
pub use unmanaged::is_podwire_program;
pub use watch::FileWatch;

use files::{FileContent, FileState};
use record::{InstallRecord, RecordedFile};

/// The default file name of the plugin, which is also its `type` in a CNI config.
pub const PLUGIN: &str = PluginConfig::NAME;
/// Runtimes before containerd 2.0 also call a plugin with this name. Podwire's plugin provides it.
pub const LOOPBACK: &str = "loopback";

pub const PLUGIN_MODE: u32 = 0o700;
/// The message for a file that is not installed before the agent is ready.
const PENDING: &str = "not installed yet: the agent installs it when it is ready";
const CONFIG_MODE: u32 = 0o600;

/// The installer of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InstalledBy {
    /// The agent has a single config, and its name may change.
    Agent,
    /// Standalone networks, of which there may be several.
    Standalone,
}

/// The installation of a standalone network by `podwire install --standalone`.
#[derive(Debug)]
pub struct StandaloneInstall {
    pub network: NetworkSettings,
    pub install: InstallConfig,
    pub run_dir: PathBuf,
    pub state_dir: PathBuf,
}

#[derive(Debug)]
pub struct Installer {
    installed_by: InstalledBy,
    settings: NetworkSettings,
    plugin: PluginConfig,
    install: InstallConfig,
    socket: PathBuf,
    run_dir: PathBuf,
    state_dir: PathBuf,
    /// None if this node owns no block yet.
    network: RwLock<Option<Arc<Network>>>,
    /// The network with the first blocks. A template is checked with it before the node owns a block.
    sample_network: Arc<Network>,
    /// The network changed after files were last written.
    has_changes: AtomicBool,
    /// Kept open: an upgrade of the plugin takes effect when the agent restarts, and a deleted plugin can still be restored.
    source: File,
}

/// A file and its expected state.
struct WantedFile<'a> {
    role: FileRole,
    path: PathBuf,
    mode: u32,
    content: FileContent<'a>,
}

/// A file, and its actual state.
type CheckedFile<'a> = (WantedFile<'a>, Result<FileState, InstallError>);

/// The actions of [`Installer::reconcile`], and the resulting state of the files.
pub struct InstallOutcome {
    pub done: Vec<String>,
    pub files: Vec<InstalledFile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileRole {
    Plugin,
    Loopback,
    Config,
}

impl FileRole {
    fn label(self) -> &'static str {
        match self {
            Self::Plugin => "plugin",
            Self::Loopback => "loopback plugin",
            Self::Config => "config",
        }
    }
}

impl Installer {
    /// None if installation is disabled. An invalid template or plugin is reported here, at the start. In a cluster,
    /// [`Installer::set_network`] follows when the node owns blocks.
    pub fn new(config: &Config) -> Result<Option<Self>, InstallError> {
        let Some(install) = config.install.clone() else { return Ok(None) };
        let is_single_node = config.store == StoreChoice::Embedded && config.cluster.margin == 0;
        let whole = Network::whole(&config.network).map_err(InstallError::Network)?;
        let installer = Self {
            installed_by: InstalledBy::Agent,
            network: RwLock::new(is_single_node.then(|| Arc::new(whole))),
            sample_network: sample_network(&config.network, config.cluster.margin)?,
            has_changes: AtomicBool::new(false),
            settings: config.network.clone(),
            source: open_source(&install, &config.plugin)?,
            plugin: config.plugin.clone(),
            install,
            socket: config.socket.clone(),
            run_dir: config.run_dir.clone(),
            state_dir: config.state_dir.clone(),
        };
        template::check_at_start(&installer)?;
        Ok(Some(installer))
    }

    pub fn standalone(settings: StandaloneInstall) -> Result<Self, InstallError> {
        let whole = Arc::new(Network::whole(&settings.network).map_err(InstallError::Network)?);
        let plugin = PluginConfig::default();
        let installer = Self {
            installed_by: InstalledBy::Standalone,
            network: RwLock::new(Some(Arc::clone(&whole))),
            sample_network: whole,
            has_changes: AtomicBool::new(false),
            settings: settings.network,
            source: open_source(&settings.install, &plugin)?,
            plugin,
            install: settings.install,
            socket: netconf::default_socket(&settings.run_dir),
            run_dir: settings.run_dir,
            state_dir: settings.state_dir,
        };
        template::check_at_start(&installer)?;
        Ok(installer)
    }

    /// Sets the network with the blocks of this node. Returns whether it changed, so that files have to be written again.
    pub fn set_network(&self, network: Arc<Network>) -> bool {
        let mut current = self.network.write().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref() == Some(&network) {
            return false;
        }
        *current = Some(network);
        self.has_changes.store(true, Ordering::Release);
        true
    }

    /// Whether the network changed after files were last written.
    pub fn has_changes(&self) -> bool {
        self.has_changes.load(Ordering::Acquire)
    }

    fn network(&self) -> Option<Arc<Network>> {
        self.network.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Renders the CNI config from the current template.
    pub fn render(&self) -> Result<String, InstallError> {
        template::render(self, self.network().as_ref())
    }

    /// Renders the CNI config for another network.
    pub fn render_for(&self, network: &Arc<Network>) -> Result<String, InstallError> {
        template::render(self, Some(network))
    }

    /// Writes all missing or wrong files, and returns the actions. Call it when the node is ready: the config makes the runtime
    /// start pods.
    pub fn install(&self) -> Result<Vec<String>, InstallError> {
        self.reconcile().map(|outcome| outcome.done)
    }

    /// Like `install`, and also returns the state of the files. Each file is checked once.
    pub fn reconcile(&self) -> Result<InstallOutcome, InstallError> {
        // Before the work: later changes must set the flag again.
        let had_changes = self.has_changes.swap(false, Ordering::AcqRel);
        let outcome = self.reconcile_all();
        if outcome.is_err() {
            self.has_changes.fetch_or(had_changes, Ordering::AcqRel);
        }
        outcome
    }

    fn reconcile_all(&self) -> Result<InstallOutcome, InstallError> {
        let config = self.render()?;
        let (mut record, corruption) = InstallRecord::read(&self.state_dir)?;
        let mut done: Vec<String> = corruption.into_iter().collect();
        let all = self.checked_files(&config, &record)?;
        let paths: Vec<PathBuf> = all.iter().map(|(wanted, _)| wanted.path.clone()).collect();
        let stale = self.stale(&record, &paths);
        let files = paths.into_iter().map(|path| InstalledFile { path, ok: true, message: None }).collect();
        let mut wrong = Vec::new();
        for (wanted, state) in all {
            match state? {
                // A file without a record is recorded again.
                FileState::Correct if record.knows(&wanted.path) => {}
                state => wrong.push((wanted, state)),
            }
        }
        for (wanted, _) in &wrong {
            record.add(RecordedFile {
                role: wanted.role,
                installed_by: self.installed_by,
                path: wanted.path.clone(),
                digests: vec![wanted.content.digest()?],
            });
        }
        if wrong.is_empty() && stale.is_empty() {
            return Ok(InstallOutcome { done, files });
        }
        record.add_missing_directories([
            &self.state_dir,
            &self.install.plugin_dir,
            &self.install.config_dir,
        ])?;
        record.write(&self.state_dir)?;
        for (wanted, state) in wrong {
            if let Some(problem) = state.problem() {
                files::write_atomically(&wanted.path, &wanted.content.bytes()?, wanted.mode)?;
                done.push(format!("{} {} written ({problem})", wanted.role.label(), wanted.path.display()));
            }
        }
        self.remove_stale(&stale, &mut record, &mut done)?;
        Ok(InstallOutcome { done, files })
    }

    /// The files before the installation.
    pub fn planned(&self) -> Vec<InstalledFile> {
        self.reported(PENDING)
    }

    /// The state of the files. An unmanaged loopback plugin is not checked.
    pub fn check(&self) -> Vec<InstalledFile> {
        self.reported("it is missing")
    }

    fn reported(&self, missing: &str) -> Vec<InstalledFile> {
        let wanted = self.render().and_then(|config| {
            let (record, _) = InstallRecord::read(&self.state_dir)?;
            let wanted = self.checked_files(&config, &record)?;
            Ok(wanted.into_iter().map(|(wanted, state)| wanted.report(state, missing)).collect())
        });
        wanted.unwrap_or_else(|error: InstallError| {
            vec![InstalledFile { path: self.config_path(), ok: false, message: Some(error.to_string()) }]
        })
    }

    /// Removes all recorded files that are unchanged.
    pub fn remove(&self) -> Result<RemovedFiles, InstallError> {
        remove(&self.state_dir)
    }

    /// The files in the order of installation: the config is last. An unmanaged loopback plugin is skipped: other packages use
    /// the name, too, so Podwire's is installed only if the name is free or the existing file came from Podwire. Any other
    /// unmanaged file is an error, because Podwire cannot work without its own.
    fn checked_files<'a>(
        &'a self,
        config: &'a str,
        record: &InstallRecord,
    ) -> Result<Vec<CheckedFile<'a>>, InstallError> {
        let mut all = Vec::new();
        for wanted in self.wanted(config) {
            let state = wanted.check();
            let is_different = matches!(state, Ok(FileState::Different(_)));
            if wanted.role == FileRole::Loopback && is_different && !record.is_unchanged(&wanted.path)? {
                continue;
            }
            // A recorded path belongs to Podwire: changes of the file are undone.
            let is_unmanaged =
                is_different && !record.knows(&wanted.path) && unmanaged::is_unmanaged(self, &wanted)?;
            let state = if is_unmanaged { Err(wanted.unmanaged()) } else { state };
            all.push((wanted, state));
        }
        Ok(all)
    }

    fn wanted<'a>(&'a self, config: &'a str) -> [WantedFile<'a>; 3] {
        let plugin = |role: FileRole, name: &str| WantedFile {
            role,
            path: self.install.plugin_dir.join(name),
            mode: PLUGIN_MODE,
            content: FileContent::Copy { file: &self.source, path: &self.install.plugin },
        };
        let config = WantedFile {
            role: FileRole::Config,
            path: self.config_path(),
            mode: CONFIG_MODE,
            content: FileContent::Text(config),
        };
        [plugin(FileRole::Plugin, &self.plugin.name), plugin(FileRole::Loopback, LOOPBACK), config]
    }

    /// The condition of a node with missing plugin or config.
    pub fn incomplete(&self, error: &InstallError) -> Finding {
        let object = match error.path() {
            Some(path) => format!("file {}", path.display()),
            None => format!("file {}", self.config_path().display()),
        };
        let finding = Finding::new(Code::InstallIncomplete, object, error);
        match error.fix() {
            Some(command) => finding.fix(command),
            None => finding,
        }
    }

    fn config_path(&self) -> PathBuf {
        self.install.config_dir.join(&self.install.config_name)
    }

    /// Files that this agent installed under an earlier configuration. Runtimes would continue to use the old config.
    fn stale(&self, record: &InstallRecord, wanted: &[PathBuf]) -> Vec<PathBuf> {
        match self.installed_by {
            InstalledBy::Standalone => Vec::new(),
            InstalledBy::Agent => {
                record.files_of(InstalledBy::Agent).filter(|path| !wanted.contains(path)).collect()
            }
        }
    }

    fn remove_stale(
        &self,
        stale: &[PathBuf],
        record: &mut InstallRecord,
        done: &mut Vec<String>,
    ) -> Result<(), InstallError> {
        if stale.is_empty() {
            return Ok(());
        }
        let mut removal = RemovedFiles::default();
        for path in stale {
            remove::remove_entry(path, record, &mut removal);
        }
        done.append(&mut removal.done);
        done.append(&mut removal.left);
        record.write(&self.state_dir)
    }
}

impl WantedFile<'_> {
    fn check(&self) -> Result<FileState, InstallError> {
        files::check(&self.path, self.mode, &self.content)
    }

    fn unmanaged(&self) -> InstallError {
        let key = match self.role {
            FileRole::Plugin | FileRole::Loopback => "install.type (CNI_TYPE) or install.plugin_dir",
            FileRole::Config => "install.config_name or install.config_dir (CNI_CONFIG_LOCATION)",
        };
        InstallError::Unmanaged { path: self.path.clone(), key }
    }

    fn report(self, state: Result<FileState, InstallError>, missing: &str) -> InstalledFile {
        let message = match state {
            Ok(FileState::Missing) => Some(missing.to_owned()),
            Ok(state) => state.problem(),
            Err(error) => Some(error.to_string()),
        };
        InstalledFile { path: self.path, ok: message.is_none(), message }
    }
}

/// The path of the installed plugin, according to the record in the state directory.
pub fn installed_plugin(state_dir: &Path) -> Option<PathBuf> {
    let (record, _) = InstallRecord::read(state_dir).ok()?;
    let mut plugins = record.files.into_iter().filter(|entry| entry.role == FileRole::Plugin);
    plugins.next_back().map(|entry| entry.path)
}

/// Whether only standalone networks are installed on this node.
pub fn is_standalone(state_dir: &Path) -> bool {
    InstallRecord::read(state_dir).is_ok_and(|(record, _)| {
        record.files_of(InstalledBy::Standalone).next().is_some()
            && record.files_of(InstalledBy::Agent).next().is_none()
    })
}

/// The network with the blocks that the first node of a cluster would claim.
fn sample_network(settings: &NetworkSettings, margin: u8) -> Result<Arc<Network>, InstallError> {
    let first = |subnet: &IpNet| BlockLayout::new(*subnet, margin).map_or(*subnet, |layout| layout.block(0));
    let blocks = settings.subnets.iter().map(first).collect();
    Network::new(settings, blocks, None).map(Arc::new).map_err(InstallError::Network)
}

fn open_source(install: &InstallConfig, plugin: &PluginConfig) -> Result<File, InstallError> {
    let fail = |source| InstallError::Source { path: install.plugin.clone(), source };
    let file = ::files::open_config(&install.plugin).map_err(fail)?;
    let meta = file.metadata().map_err(fail)?;
    if !meta.is_file() || meta.len() == 0 {
        return Err(fail(std::io::Error::other("it is not a program file")));
    }
    // Cleanup would remove the only copy of the plugin.
    let target = install.plugin_dir.join(&plugin.name);
    match std::fs::metadata(&target) {
        Ok(existing) if (existing.dev(), existing.ino()) == (meta.dev(), meta.ino()) => {
            Err(InstallError::SameFile { path: target })
        }
        Ok(_) | Err(_) => Ok(file),
    }
}
