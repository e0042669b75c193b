//! The mode of a node where no agent answers: with an agent or standalone. `status` and `doctor` report the same mode.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use api::{ClientError, NodeMode};
use cni::NetworkConfig;
use config::{Config, DEFAULT_FILE, FILE_VARIABLE, Flags};
use install::is_standalone;
use types::{Code, Finding, Fix};

use super::{configs, lab};
use crate::directories::AgentDirectories;

/// Where the unit of the agent is installed, by hand or by a package.
const UNITS: [&str; 3] = [
    "/etc/systemd/system/podwire.service",
    "/usr/lib/systemd/system/podwire.service",
    "/lib/systemd/system/podwire.service",
];

/// A node needs an agent if it has the agent's lock or a CNI config that names an agent, or if nothing is installed. It is
/// standalone if the plugin has attached pods, or if a network without an agent is installed.
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

/// Whether there is a sign of an installation: state, a CNI config, the agent's config or its unit.
pub(super) fn is_installed(
    directories: &AgentDirectories,
    has_state: bool,
    configs: &[NetworkConfig],
) -> bool {
    let config_file = std::env::var_os(FILE_VARIABLE).map_or(DEFAULT_FILE.into(), PathBuf::from);
    has_state
        || !configs.is_empty()
        || directories.run_dir.join("agent.lock").exists()
        || directories.state_dir.as_deref().is_some_and(Path::exists)
        || config_file.exists()
        || UNITS.iter().any(|unit| Path::new(unit).exists())
}

/// The condition of a machine where Podwire is not installed. A start of the agent cannot help.
pub(super) fn not_installed(directories: &AgentDirectories) -> Finding {
    let in_lab = lab_hint(&lab::labs_up());
    let message = format!(
        "no agent listens on {}, and Podwire is not installed on this machine: there is no {DEFAULT_FILE}, no CNI config \
         and no pod; to install it, follow docs/install.md, which ends with `systemctl start podwire`; to try it without an \
         installation, run `podwire lab up`{in_lab}",
        directories.socket.display()
    );
    Finding::new(Code::AgentUnreachable, format_args!("socket {}", directories.socket.display()), message)
}

/// The command that shows a node of a lab. A new user may run `podwire status` outside of the lab's nodes.
fn lab_hint(labs: &[String]) -> String {
    labs.first().map_or_else(String::new, |first| {
        let status = lab::status_command(first);
        format!("; running labs: {}; `{status}` shows the status of a node", labs.join(", "))
    })
}

/// Whether no agent answered: it does not run, it hangs, or its socket cannot be used.
pub(super) fn is_unreachable(error: &ClientError) -> bool {
    match error {
        ClientError::NoListener { .. } | ClientError::Broken { .. } | ClientError::TimedOut { .. } => true,
        ClientError::Connect { source, .. } => source.kind() != ErrorKind::PermissionDenied,
        ClientError::Malformed { .. } | ClientError::TooLarge { .. } | ClientError::Request(_) => false,
    }
}

/// Whether a process has the socket and did not answer. It may be an agent that is overloaded or stopped.
pub(super) fn is_hanging(error: &ClientError) -> bool {
    match error {
        ClientError::Broken { .. } | ClientError::TimedOut { .. } => true,
        ClientError::NoListener { .. }
        | ClientError::Connect { .. }
        | ClientError::Malformed { .. }
        | ClientError::TooLarge { .. }
        | ClientError::Request(_) => false,
    }
}

/// Why no agent answers, with a fix. A start does not help if the configuration is invalid or the socket cannot be used.
pub(super) fn agent_missing(directories: &AgentDirectories, error: &ClientError) -> Finding {
    let socket = &directories.socket;
    let unreachable = |cause: &dyn fmt::Display| {
        Finding::new(Code::AgentUnreachable, format_args!("socket {}", socket.display()), cause)
    };
    if let Some(kind) = other_file_type(socket) {
        let path = socket.to_string_lossy();
        let cause = format!("{path} is {kind}, not a socket, and the agent does not replace it");
        let fix = Fix::words(["mv", &path, &format!("{path}.old")]).and("systemctl restart podwire");
        return unreachable(&cause).fix(fix);
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

/// Replaces `podwire doctor --repair` in fixes. The command refuses while an agent may run, because both could change bridges
/// and tables at the same time. A restarted agent repairs them.
pub(super) fn leave_repairs_to_agent(found: &mut [Finding]) {
    let is_repair = |fix: &Fix| fix.starts_with("podwire doctor --repair");
    for finding in found.iter_mut().filter(|finding| finding.fix.as_ref().is_some_and(is_repair)) {
        finding.fix = Some("systemctl restart podwire".into());
    }
}

/// The type of a file at the path of the socket. None if it is a socket or missing.
fn other_file_type(socket: &Path) -> Option<&'static str> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f13_a_machine_with_a_lab_names_the_command_for_its_nodes() {
        assert_eq!(lab_hint(&[]), "");
        assert_eq!(
            lab_hint(&["default".to_owned()]),
            "; running labs: default; `podwire lab exec n1 podwire status` shows the status of a node"
        );
        assert_eq!(
            lab_hint(&["one".to_owned(), "two".to_owned()]),
            "; running labs: one, two; `podwire lab --name one exec n1 podwire status` shows the status of a node"
        );
    }
}
