//! Who serves pods on a node where no agent listens. `status` and `doctor` must not differ about it.

use std::fmt;

use agent::config::{Config as AgentConfig, Flags};
use agent::install::is_standalone;
use api::NodeMode;
use cni::Config;
use types::{Code, Finding};

use super::configs;
use crate::folders::Folders;

/// An agent is missing where its lock or a CNI config that leads to it is, and where nothing is installed. The plugin works
/// alone where it has attached pods, or where a network without an agent is installed.
pub(super) fn of_node(folders: &Folders, has_state: bool, configs: &[Config]) -> NodeMode {
    let is_recorded = folders.state_dir.as_deref().is_some_and(is_standalone);
    if folders.run_dir.join("agent.lock").exists() || configs.iter().any(configs::names_agent) {
        NodeMode::Agent
    } else if has_state || is_recorded || !configs.is_empty() {
        NodeMode::Standalone
    } else {
        NodeMode::Agent
    }
}

/// Why no agent answers. One that cannot start with its configuration is not helped by another start.
pub(super) fn agent_missing(folders: &Folders, why: impl fmt::Display) -> Finding {
    match AgentConfig::load(&Flags::default(), std::env::vars_os()) {
        Err(error) => {
            Finding::new(Code::ConfigInvalid, "config agent", error).fix("podwire agent --check-config")
        }
        Ok(_) => {
            let object = format_args!("socket {}", folders.socket.display());
            Finding::new(Code::AgentUnreachable, object, why).fix("systemctl start podwire")
        }
    }
}
