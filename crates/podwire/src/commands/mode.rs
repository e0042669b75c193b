//! Who serves pods on a node where no agent answers. `status` and `doctor` must not differ about it.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use api::{ClientError, NodeMode};
use cni::NetworkConfig;
use config::{Config, Flags};
use install::is_standalone;
use types::{Code, Finding, Fix};

use super::configs;
use crate::directories::AgentDirectories;

/// An agent is missing where its lock or a CNI config that leads to it is, and where nothing is installed. The plugin works
/// alone where it has attached pods, or where a network without an agent is installed.
pub(super) fn of_node(
    directories: &AgentDirectories,
    has_state: bool,
    configs: &[NetworkConfig],
) -> NodeMode {
    let is_recorded = directories.state_dir.as_deref().is_some_and(is_standalone);
    if directories.run_dir.join("agent.lock").exists() || configs.iter().any(configs::names_agent) {
        NodeMode::Agent
    } else if has_state || is_recorded || !configs.is_empty() {
        NodeMode::Standalone
    } else {
        NodeMode::Agent
    }
}

/// Whether the agent may run and gave no answer: it hangs, it stopped, or its socket cannot be used.
pub(super) fn is_unreachable(error: &ClientError) -> bool {
    match error {
        ClientError::NoListener { .. } | ClientError::Broken { .. } | ClientError::TimedOut { .. } => true,
        ClientError::Connect { source, .. } => source.kind() != ErrorKind::PermissionDenied,
        ClientError::Malformed { .. } | ClientError::TooLarge { .. } | ClientError::Request(_) => false,
    }
}

/// Whether a process has the socket and gave no answer. It may be an agent that works again in a moment.
pub(super) fn is_silent(error: &ClientError) -> bool {
    match error {
        ClientError::Broken { .. } | ClientError::TimedOut { .. } => true,
        ClientError::NoListener { .. }
        | ClientError::Connect { .. }
        | ClientError::Malformed { .. }
        | ClientError::TooLarge { .. }
        | ClientError::Request(_) => false,
    }
}

/// Why no agent answers. One that cannot start with its configuration is not helped by another start, nor is a socket that no
/// process can use.
pub(super) fn agent_missing(directories: &AgentDirectories, error: &ClientError) -> Finding {
    let socket = &directories.socket;
    let unreachable = |why: &dyn fmt::Display| {
        Finding::new(Code::AgentUnreachable, format_args!("socket {}", socket.display()), why)
    };
    if let Some(kind) = occupied_by(socket) {
        let path = socket.to_string_lossy();
        let why = format!("{path} is {kind}, not a socket, and the agent does not replace it");
        let fix = Fix::words(["mv", &path, &format!("{path}.old")]).and("systemctl restart podwire");
        return unreachable(&why).fix(fix);
    }
    match error {
        ClientError::Broken { .. }
        | ClientError::TimedOut { .. }
        | ClientError::Malformed { .. }
        | ClientError::TooLarge { .. }
        | ClientError::Request(_) => return unreachable(error).fix("systemctl restart podwire"),
        ClientError::Connect { .. } => return unreachable(error).fix("podwire agent --check-config"),
        ClientError::NoListener { .. } => {}
    }
    match Config::load(&Flags::default(), std::env::vars_os()) {
        Err(error) => {
            Finding::new(Code::ConfigInvalid, "config agent", error).fix("podwire agent --check-config")
        }
        Ok(_) => unreachable(error).fix("systemctl start podwire"),
    }
}

/// An agent that does not answer repairs bridges and tables itself when it works again. Until then `podwire doctor --repair`
/// refuses, because the agent may change them at the same time.
pub(super) fn leave_repairs_to_agent(found: &mut [Finding]) {
    let is_repair = |fix: &Fix| fix.starts_with("podwire doctor --repair");
    for one in found.iter_mut().filter(|one| one.fix.as_ref().is_some_and(is_repair)) {
        one.fix = Some("systemctl restart podwire".into());
    }
}

/// The kind of file that is in place of the socket.
fn occupied_by(socket: &Path) -> Option<&'static str> {
    let kind = fs::symlink_metadata(socket).ok()?.file_type();
    if kind.is_socket() {
        None
    } else if kind.is_dir() {
        Some("a directory")
    } else if kind.is_symlink() {
        Some("a symbolic link")
    } else {
        Some("a file")
    }
}
