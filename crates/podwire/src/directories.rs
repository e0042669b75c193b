//! Where the agent that is meant keeps its things: what was given, else what the agent's configuration says.

use std::path::PathBuf;

use anyhow::{Context, Result};
use config::{Config, Flags};

use crate::cli::Which;
use crate::print;

#[derive(Debug)]
pub(crate) struct AgentDirectories {
    pub(crate) run_dir: PathBuf,
    pub(crate) socket: PathBuf,
    /// None: another agent is meant than the configured one, and nobody said where it keeps what it installed.
    pub(crate) state_dir: Option<PathBuf>,
}

/// What the agent's configuration says, or would say if it were right.
struct Configured {
    run_dir: PathBuf,
    socket: PathBuf,
    state_dir: PathBuf,
}

impl AgentDirectories {
    pub(crate) fn find(which: &Which, state_dir: Option<PathBuf>) -> Self {
        match which.run_dir.clone() {
            Some(run_dir) => Self {
                socket: which.socket.clone().unwrap_or_else(|| netconf::default_socket(&run_dir)),
                state_dir: state_dir.or_else(|| {
                    let configured = Configured::load();
                    (configured.run_dir == run_dir).then_some(configured.state_dir)
                }),
                run_dir,
            },
            None => {
                let configured = Configured::load();
                Self {
                    run_dir: configured.run_dir,
                    socket: which.socket.clone().unwrap_or(configured.socket),
                    state_dir: state_dir.or(Some(configured.state_dir)),
                }
            }
        }
    }

    /// For commands that remove: an invalid configuration is refused, because its default directories may be those of
    /// another network. A run directory that is given needs no configuration.
    pub(crate) fn find_exact(which: &Which, state_dir: Option<PathBuf>) -> Result<Self> {
        match (Config::load(&Flags::default(), std::env::vars_os()), which.run_dir.clone()) {
            (Ok(_), _) => Ok(Self::find(which, state_dir)),
            (Err(error), None) => Err(error).context(
                "the agent's configuration is invalid, and its default directories may belong to another network; \
                 correct it, or name the directories (podwire cleanup --run-dir DIR --state-dir DIR)",
            ),
            (Err(error), Some(run_dir)) => {
                print::warn(format_args!(
                    "podwire: the agent's configuration is invalid, and only the given directories are used: {error}"
                ));
                let socket = which.socket.clone().unwrap_or_else(|| netconf::default_socket(&run_dir));
                Ok(Self { run_dir, socket, state_dir })
            }
        }
    }

    /// Only the directory of node-local state is asked for.
    pub(crate) fn run_dir(given: Option<PathBuf>) -> PathBuf {
        given.unwrap_or_else(|| Configured::load().run_dir)
    }
}

impl Configured {
    /// A configuration that is wrong must not keep a person from looking.
    fn load() -> Self {
        match Config::load(&Flags::default(), std::env::vars_os()) {
            Ok(config) => {
                Self { run_dir: config.run_dir, socket: config.socket, state_dir: config.state_dir }
            }
            Err(_) => {
                // `status` and `doctor` have the mistake in their condition.
                print::warn("podwire: the agent's configuration is invalid; default directories are used");
                print::warn("podwire: `podwire agent --check-config` shows what is wrong");
                let run_dir = PathBuf::from(netconf::DEFAULT_RUN_DIR);
                let socket = netconf::default_socket(&run_dir);
                Self { run_dir, socket, state_dir: PathBuf::from("/var/lib/podwire") }
            }
        }
    }
}
