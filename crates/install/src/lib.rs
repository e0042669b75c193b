//! Plugin and CNI config in the runtime's directories: put there, looked after, taken away again.
//!
//! The plugin comes first and the config last, each by a rename inside its directory, so that a runtime never sees half a
//! file, a config without its plugin, or "text file busy". What was put where is recorded in the state directory before it
//! happens, so that `podwire cleanup` finds it without knowing the agent's configuration.

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

/// The plugin's file name where nobody says otherwise, which is also its `type` in a CNI config.
pub const PLUGIN: &str = PluginConfig::NAME;
/// What runtimes before containerd 2.0 call beside the network's plugin; ours does that job under this name.
pub const LOOPBACK: &str = "loopback";

pub const PLUGIN_MODE: u32 = 0o700;
/// Of a file that waits for the agent to be ready, or for the other files.
const PENDING: &str = "not installed yet: the agent installs it when it is ready";
const CONFIG_MODE: u32 = 0o600;

/// Who put a file there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InstalledBy {
    /// It has one config, which may get another name.
    Agent,
    /// Networks without an agent; there may be several.
    Standalone,
}

/// What `podwire install --standalone` puts in place: a network without an agent.
#[derive(Debug)]
pub struct StandaloneInstall {
    pub network: NetworkSettings,
    pub install: InstallConfig,
    pub run_dir: PathBuf,
    pub state_dir: PathBuf,
}

#[derive(Debug)]
pub struct Installer {
    maker: InstalledBy,
    settings: NetworkSettings,
    plugin: PluginConfig,
    install: InstallConfig,
    socket: PathBuf,
    run_dir: PathBuf,
    state_dir: PathBuf,
    /// None: this node owns no block yet.
    network: RwLock<Option<Arc<Network>>>,
    /// The network with the first blocks. A template is checked with it before the node owns a block.
    stand_in: Arc<Network>,
    /// The network changed since files were last put in place.
    has_events: AtomicBool,
    /// Held open: an upgrade that renames a new plugin into place changes nothing for us before we are restarted too,
    /// and what somebody deleted can still be put back.
    source: File,
}

/// A file as it should be.
struct WantedFile<'a> {
    role: FileRole,
    path: PathBuf,
    mode: u32,
    content: FileContent<'a>,
}

/// A file as it should be, and how it is.
type Looked<'a> = (WantedFile<'a>, Result<FileState, InstallError>);

/// What [`Installer::keep`] did, and the files as they are now.
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
    fn word(self) -> &'static str {
        match self {
            Self::Plugin => "plugin",
            Self::Loopback => "loopback plugin",
            Self::Config => "config",
        }
    }
}

impl Installer {
    /// None where the configuration says that nothing is installed. A template or a plugin that cannot be used is found
    /// out here, at the start. Where there may be many nodes, [`Installer::set_network`] follows when the node owns blocks.
    pub fn new(config: &Config) -> Result<Option<Self>, InstallError> {
        let Some(install) = config.install.clone() else { return Ok(None) };
        let is_alone = config.store == StoreChoice::Embedded && config.cluster.margin == 0;
        let whole = Network::whole(&config.network).map_err(InstallError::Network)?;
        let installer = Self {
            maker: InstalledBy::Agent,
            network: RwLock::new(is_alone.then(|| Arc::new(whole))),
            stand_in: stand_in(&config.network, config.cluster.margin)?,
            has_events: AtomicBool::new(false),
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

    pub fn standalone(what: StandaloneInstall) -> Result<Self, InstallError> {
        let whole = Arc::new(Network::whole(&what.network).map_err(InstallError::Network)?);
        let plugin = PluginConfig::default();
        let installer = Self {
            maker: InstalledBy::Standalone,
            network: RwLock::new(Some(Arc::clone(&whole))),
            stand_in: whole,
            has_events: AtomicBool::new(false),
            settings: what.network,
            source: open_source(&what.install, &plugin)?,
            plugin,
            install: what.install,
            socket: netconf::default_socket(&what.run_dir),
            run_dir: what.run_dir,
            state_dir: what.state_dir,
        };
        template::check_at_start(&installer)?;
        Ok(installer)
    }

    /// The network with the blocks that this node owns. Returns whether they changed: then files should be put in place again.
    pub fn set_network(&self, network: Arc<Network>) -> bool {
        let mut current = self.network.write().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref() == Some(&network) {
            return false;
        }
        *current = Some(network);
        self.has_events.store(true, Ordering::Release);
        true
    }

    /// Whether something was told that the files do not show yet.
    pub fn has_events(&self) -> bool {
        self.has_events.load(Ordering::Acquire)
    }

    fn network(&self) -> Option<Arc<Network>> {
        self.network.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The CNI config, from the template as it is now.
    pub fn render(&self) -> Result<String, InstallError> {
        template::render(self, self.network().as_ref())
    }

    /// The same for a network that files do not show yet.
    pub fn render_for(&self, network: &Arc<Network>) -> Result<String, InstallError> {
        template::render(self, Some(network))
    }

    /// Puts in place whatever is not right, and says what it did. Call it when the node is ready: the config is what
    /// makes a runtime start pods.
    pub fn put(&self) -> Result<Vec<String>, InstallError> {
        self.keep().map(|kept| kept.done)
    }

    /// The same, and how the files are afterwards, with one look at each.
    pub fn keep(&self) -> Result<InstallOutcome, InstallError> {
        // First: what is told from here on is news again.
        let had_events = self.has_events.swap(false, Ordering::AcqRel);
        let kept = self.keep_all();
        if kept.is_err() {
            self.has_events.fetch_or(had_events, Ordering::AcqRel);
        }
        kept
    }

    fn keep_all(&self) -> Result<InstallOutcome, InstallError> {
        let config = self.render()?;
        let (mut record, damage) = InstallRecord::read(&self.state_dir)?;
        let mut done: Vec<String> = damage.into_iter().collect();
        let all = self.looked_at(&config, &record)?;
        let paths: Vec<PathBuf> = all.iter().map(|(wanted, _)| wanted.path.clone()).collect();
        let stale = self.stale(&record, &paths);
        let files = paths.into_iter().map(|path| InstalledFile { path, ok: true, message: None }).collect();
        let mut wrong = Vec::new();
        for (wanted, look) in all {
            match look? {
                // A record that was lost is made anew.
                FileState::Right if record.knows(&wanted.path) => {}
                look => wrong.push((wanted, look)),
            }
        }
        for (wanted, _) in &wrong {
            record.add(RecordedFile {
                role: wanted.role,
                maker: self.maker,
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
        for (wanted, look) in wrong {
            if let Some(why) = look.complaint() {
                files::write_whole(&wanted.path, &wanted.content.bytes()?, wanted.mode)?;
                done.push(format!("{} {} written: {why}", wanted.role.word(), wanted.path.display()));
            }
        }
        self.leave(&stale, &mut record, &mut done)?;
        Ok(InstallOutcome { done, files })
    }

    /// The files before the agent has installed them.
    pub fn planned(&self) -> Vec<InstalledFile> {
        self.reported(PENDING)
    }

    /// How the files are now; another's loopback plugin is not ours to judge.
    pub fn check(&self) -> Vec<InstalledFile> {
        self.reported("it is missing")
    }

    fn reported(&self, missing: &str) -> Vec<InstalledFile> {
        let wanted = self.render().and_then(|config| {
            let (record, _) = InstallRecord::read(&self.state_dir)?;
            let wanted = self.looked_at(&config, &record)?;
            Ok(wanted.into_iter().map(|(wanted, look)| wanted.report(look, missing)).collect())
        });
        wanted.unwrap_or_else(|error: InstallError| {
            vec![InstalledFile { path: self.config_path(), ok: false, message: Some(error.to_string()) }]
        })
    }

    /// Takes away what is recorded and still ours.
    pub fn remove(&self) -> Result<RemovedFiles, InstallError> {
        remove(&self.state_dir)
    }

    /// In the order in which they are put: the config is last. Without a loopback plugin that is another's: others use
    /// that name, too, and it is ours only where nobody has it, or where what has it came from us. Any other file of
    /// somebody else is an error: we cannot work without it.
    fn looked_at<'a>(
        &'a self,
        config: &'a str,
        record: &InstallRecord,
    ) -> Result<Vec<Looked<'a>>, InstallError> {
        let mut all = Vec::new();
        for wanted in self.wanted(config) {
            let look = wanted.look();
            let is_other = matches!(look, Ok(FileState::Other(_)));
            if wanted.role == FileRole::Loopback && is_other && !record.is_ours(&wanted.path)? {
                continue;
            }
            // Where the record knows the path it was ours: whoever changed it since is undone.
            let is_unmanaged =
                is_other && !record.knows(&wanted.path) && unmanaged::is_unmanaged(self, &wanted)?;
            let look = if is_unmanaged { Err(wanted.unmanaged()) } else { look };
            all.push((wanted, look));
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

    /// The condition of a node whose runtime lacks plugin or config.
    pub fn incomplete(&self, error: &InstallError) -> Finding {
        let object = match error.path() {
            Some(path) => format!("file {}", path.display()),
            None => format!("file {}", self.config_path().display()),
        };
        let found = Finding::new(Code::InstallIncomplete, object, error);
        match error.fix() {
            Some(command) => found.fix(command),
            None => found,
        }
    }

    fn config_path(&self) -> PathBuf {
        self.install.config_dir.join(&self.install.config_name)
    }

    /// What this agent put elsewhere under an earlier configuration: a runtime would go on using the old config.
    fn stale(&self, record: &InstallRecord, wanted: &[PathBuf]) -> Vec<PathBuf> {
        match self.maker {
            InstalledBy::Standalone => Vec::new(),
            InstalledBy::Agent => {
                record.made_by(InstalledBy::Agent).filter(|path| !wanted.contains(path)).collect()
            }
        }
    }

    fn leave(
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
            remove::entry(path, record, &mut removal);
        }
        done.append(&mut removal.done);
        done.append(&mut removal.left);
        record.write(&self.state_dir)
    }
}

impl WantedFile<'_> {
    fn look(&self) -> Result<FileState, InstallError> {
        files::look(&self.path, self.mode, &self.content)
    }

    fn unmanaged(&self) -> InstallError {
        let key = match self.role {
            FileRole::Plugin | FileRole::Loopback => "install.type (CNI_TYPE) or install.plugin_dir",
            FileRole::Config => "install.config_name or install.config_dir (CNI_CONFIG_LOCATION)",
        };
        InstallError::Foreign { path: self.path.clone(), key }
    }

    fn report(self, look: Result<FileState, InstallError>, missing: &str) -> InstalledFile {
        let message = match look {
            Ok(FileState::Missing) => Some(missing.to_owned()),
            Ok(look) => look.complaint(),
            Err(error) => Some(error.to_string()),
        };
        InstalledFile { path: self.path, ok: message.is_none(), message }
    }
}

/// The plugin that is installed on this node, as the record in the state directory names it.
pub fn installed_plugin(state_dir: &Path) -> Option<PathBuf> {
    let (record, _) = InstallRecord::read(state_dir).ok()?;
    let mut plugins = record.files.into_iter().filter(|entry| entry.role == FileRole::Plugin);
    plugins.next_back().map(|entry| entry.path)
}

/// Whether the files of this node are those of networks without an agent only.
pub fn is_standalone(state_dir: &Path) -> bool {
    InstallRecord::read(state_dir).is_ok_and(|(record, _)| {
        record.made_by(InstalledBy::Standalone).next().is_some()
            && record.made_by(InstalledBy::Agent).next().is_none()
    })
}

/// The blocks that the first node of a cluster would get.
fn stand_in(settings: &NetworkSettings, margin: u8) -> Result<Arc<Network>, InstallError> {
    let first = |subnet: &IpNet| BlockLayout::new(*subnet, margin).map_or(*subnet, |cut| cut.block(0));
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
    // Cleanup would remove the only copy.
    let target = install.plugin_dir.join(&plugin.name);
    match std::fs::metadata(&target) {
        Ok(there) if (there.dev(), there.ino()) == (meta.dev(), meta.ino()) => {
            Err(InstallError::SameFile { path: target })
        }
        Ok(_) | Err(_) => Ok(file),
    }
}
