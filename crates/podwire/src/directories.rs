//! Directories and socket of an agent: from arguments, otherwise from the agent's configuration.

use std::path::PathBuf;

use anyhow::{Context, Result};
use config::{Config, ConfiguredPaths, Flags};

use crate::cli::AgentSelector;
use crate::print;

#[derive(Debug)]
pub(crate) struct AgentDirectories {
    pub(crate) run_dir: PathBuf,
    pub(crate) socket: PathBuf,
    /// None if the run directory is not the configured one and no state directory was given.
    pub(crate) state_dir: Option<PathBuf>,
    /// The configuration cannot be read, and these are the default directories.
    pub(crate) is_guess: bool,
}

/// From the agent's configuration. If the configuration is invalid, those of its keys that can be read, or the defaults.
struct ConfiguredDirectories {
    paths: ConfiguredPaths,
    is_guess: bool,
}

impl AgentDirectories {
    pub(crate) fn find(selector: &AgentSelector, state_dir: Option<PathBuf>) -> Self {
        match selector.run_dir.clone() {
            Some(run_dir) => Self {
                socket: selector.socket.clone().unwrap_or_else(|| netconf::default_socket(&run_dir)),
                state_dir: state_dir.or_else(|| {
                    let configured = ConfiguredDirectories::load().paths;
                    (configured.run_dir == run_dir).then_some(configured.state_dir)
                }),
                run_dir,
                is_guess: false,
            },
            None => {
                let ConfiguredDirectories { paths: configured, is_guess } = ConfiguredDirectories::load();
                Self {
                    is_guess,
                    run_dir: configured.run_dir,
                    socket: selector.socket.clone().unwrap_or(configured.socket),
                    state_dir: state_dir.or(Some(configured.state_dir)),
                }
            }
        }
    }

    /// For commands that remove objects. An invalid configuration is refused, because the default directories may belong to
    /// another network. If a run directory is given, the configuration is not needed.
    pub(crate) fn find_strict(selector: &AgentSelector, state_dir: Option<PathBuf>) -> Result<Self> {
        match (Config::load(&Flags::default(), std::env::vars_os()), selector.run_dir.clone()) {
            (Ok(_), _) => Ok(Self::find(selector, state_dir)),
            (Err(error), None) => Err(error).context(
                "the agent's configuration is invalid, and its default directories may belong to another network; \
                 correct it, or give the directories: 'podwire cleanup --run-dir DIR --state-dir DIR'",
            ),
            (Err(error), Some(run_dir)) => {
                print::warn(format_args!(
                    "podwire: the agent's configuration is invalid; using only the given directories: {error}"
                ));
                let socket = selector.socket.clone().unwrap_or_else(|| netconf::default_socket(&run_dir));
                Ok(Self { run_dir, socket, state_dir, is_guess: false })
            }
        }
    }

    /// The directory with the node state.
    pub(crate) fn run_dir(given: Option<PathBuf>) -> PathBuf {
        given.unwrap_or_else(|| ConfiguredDirectories::load().paths.run_dir)
    }
}

impl ConfiguredDirectories {
    /// Queries must work with an invalid configuration, so this does not fail.
    fn load() -> Self {
        match Config::load(&Flags::default(), std::env::vars_os()) {
            Ok(config) => {
                let Config { run_dir, socket, state_dir, .. } = config;
                Self { paths: ConfiguredPaths { run_dir, state_dir, socket }, is_guess: false }
            }
            Err(_) => {
                // The condition `ConfigInvalid` of `status` and `doctor` has the error.
                let paths = Config::paths(&Flags::default(), std::env::vars_os());
                let used = if paths.is_some() { "its" } else { "default" };
                print::warn(format_args!(
                    "podwire: the agent's configuration is invalid; using {used} directories"
                ));
                print::warn("podwire: `podwire agent --check-config` shows the errors");
                let is_guess = paths.is_none();
                let run_dir = PathBuf::from(netconf::DEFAULT_RUN_DIR);
                let socket = netconf::default_socket(&run_dir);
                let default =
                    ConfiguredPaths { run_dir, socket, state_dir: PathBuf::from("/var/lib/podwire") };
                Self { paths: paths.unwrap_or(default), is_guess }
            }
        }
    }
}
