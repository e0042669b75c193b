//! Exit codes of all commands. docs/reference/exit-codes.md has the table for operators.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

use agent::{Capability, missing_capabilities};
use api::ClientError;
use config::ConfigError;
use rustix::io::Errno;
use rustix::process::geteuid;
use types::Fix;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    Success,
    /// The node, the cluster or the request has a problem.
    ProblemFound,
    /// Arguments, variables or the config file are invalid.
    Usage,
    AgentUnreachable,
    PermissionDenied,
    /// `podwire lab exec` cannot start a program. The exit codes are those of shells: 126 or 127.
    CannotStart(u8),
}

/// An argument that clap accepted and a later check refused.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// No agent answers, because Podwire is not installed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotInstalled(pub(crate) String);

/// The command needs root. Holds the same command with sudo.
#[derive(Debug, thiserror::Error)]
#[error("this needs root; run: {0}")]
pub(crate) struct NeedsRoot(Fix);

/// The process is root and lacks capabilities that the command needs.
#[derive(Debug, thiserror::Error)]
#[error("{} missing", .0.join(" and ") + if .0.len() == 1 { " is" } else { " are" })]
pub(crate) struct MissingCapabilities(Vec<&'static str>);

impl ExitStatus {
    pub(crate) fn from_error(error: &anyhow::Error) -> Self {
        error.chain().find_map(status_of_cause).unwrap_or(Self::ProblemFound)
    }

    /// For commands that report whether there are problems.
    pub(crate) fn problem_unless(is_ok: bool) -> Self {
        if is_ok { Self::Success } else { Self::ProblemFound }
    }

    fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::ProblemFound => 1,
            Self::Usage => 2,
            Self::AgentUnreachable => 3,
            Self::PermissionDenied => 4,
            Self::CannotStart(code) => code,
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.code())
    }
}

fn status_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<ExitStatus> {
    if cause.is::<NeedsRoot>() || cause.is::<MissingCapabilities>() {
        return Some(ExitStatus::PermissionDenied);
    }
    if cause.is::<NotInstalled>() {
        return Some(ExitStatus::AgentUnreachable);
    }
    if cause.is::<Usage>() {
        return Some(ExitStatus::Usage);
    }
    if let Some(config) = cause.downcast_ref::<ConfigError>() {
        return Some(if config.is_denied() { ExitStatus::PermissionDenied } else { ExitStatus::Usage });
    }
    if let Some(client) = cause.downcast_ref::<ClientError>() {
        return status_of_client(client);
    }
    let denied = match (cause.downcast_ref::<io::Error>(), cause.downcast_ref::<Errno>()) {
        (Some(error), _) => error.kind() == ErrorKind::PermissionDenied,
        (None, Some(errno)) => matches!(*errno, Errno::PERM | Errno::ACCESS),
        (None, None) => false,
    };
    denied.then_some(ExitStatus::PermissionDenied)
}

fn status_of_client(error: &ClientError) -> Option<ExitStatus> {
    match error {
        ClientError::NoListener { .. } | ClientError::Broken { .. } | ClientError::TimedOut { .. } => {
            Some(ExitStatus::AgentUnreachable)
        }
        ClientError::Connect { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            Some(ExitStatus::PermissionDenied)
        }
        ClientError::Connect { .. } => Some(ExitStatus::AgentUnreachable),
        ClientError::Malformed { .. } | ClientError::TooLarge { .. } | ClientError::Request(_) => None,
    }
}

/// Only root can read node state, sockets and the kernel's network state. Without this check an unreadable record would
/// count as no record.
pub(crate) fn ensure_root() -> Result<(), NeedsRoot> {
    if geteuid().is_root() { Ok(()) } else { Err(NeedsRoot(with_sudo(std::env::args_os()))) }
}

/// Root in a container may lack capabilities, and errors of the kernel do not name them.
pub(crate) fn ensure_capabilities(needed: &[Capability]) -> Result<(), MissingCapabilities> {
    let missing = missing_capabilities(needed);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(MissingCapabilities(missing.into_iter().map(Capability::name).collect()))
    }
}

/// Advice for errors that another user or more capabilities can solve.
pub(crate) fn advice(status: ExitStatus) -> Option<String> {
    match status {
        ExitStatus::PermissionDenied if geteuid().is_root() => Some(
            "the process is root and lacks a capability or access; run the command on the node itself, outside of a container"
                .to_owned(),
        ),
        ExitStatus::PermissionDenied => Some(format!("run: {}", with_sudo(std::env::args_os()))),
        ExitStatus::Success
        | ExitStatus::ProblemFound
        | ExitStatus::Usage
        | ExitStatus::AgentUnreachable
        | ExitStatus::CannotStart(_) => None,
    }
}

/// The command line with sudo, quoted for a shell.
fn with_sudo(args: impl Iterator<Item = OsString>) -> Fix {
    let words = args.map(|word| word.to_string_lossy().into_owned());
    Fix::words(std::iter::once("sudo".to_owned()).chain(words))
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    const DOCS: &str = include_str!("../../../docs/reference/exit-codes.md");

    #[test]
    fn a7_the_documentation_lists_every_exit_code() {
        use ExitStatus::{AgentUnreachable, PermissionDenied, ProblemFound, Success, Usage};
        let rows: Vec<&str> = DOCS.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        let all = [Success, ProblemFound, Usage, AgentUnreachable, PermissionDenied];
        assert_eq!(rows.len(), all.len(), "{rows:?}");
        for (row, status) in rows.iter().zip(all) {
            assert!(row.starts_with(&format!("| {} |", status.code())), "{row}");
        }
    }

    #[test]
    fn a7_the_cause_of_an_error_decides_the_exit_code() {
        let of = |error: anyhow::Error| ExitStatus::from_error(&error.context("outer").context("outermost"));
        let denied = || io::Error::from(ErrorKind::PermissionDenied);
        let socket = std::path::PathBuf::from("/x");
        let no_listener =
            ClientError::NoListener { socket: socket.clone(), source: ErrorKind::NotFound.into() };
        let connect = ClientError::Connect { socket, source: denied() };
        assert_eq!(of(no_listener.into()), ExitStatus::AgentUnreachable);
        assert_eq!(of(connect.into()), ExitStatus::PermissionDenied);
        assert_eq!(of(denied().into()), ExitStatus::PermissionDenied);
        assert_eq!(
            of(Err::<(), _>(Errno::PERM).context("netlink").unwrap_err()),
            ExitStatus::PermissionDenied
        );
        assert_eq!(of(Usage("x".to_owned()).into()), ExitStatus::Usage);
        assert_eq!(of(anyhow::anyhow!("another error")), ExitStatus::ProblemFound);
    }

    #[test]
    fn a3_the_command_with_sudo_is_quoted_for_a_shell() {
        let words = ["podwire", "lab", "exec", "n1", "--", "sh", "-c", "echo it's", ""];
        assert_eq!(
            &*with_sudo(words.iter().map(OsString::from)),
            r"sudo podwire lab exec n1 -- sh -c 'echo it'\''s' ''"
        );
    }
}
