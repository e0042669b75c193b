//! How every command ends. docs/reference/exit-codes.md has the table for operators.

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
    /// The command works, and the node, the cluster or the request does not.
    ProblemFound,
    /// Arguments, variables or the config file are invalid.
    Usage,
    AgentUnreachable,
    PermissionDenied,
    /// Of a program that `podwire lab exec` cannot start, as shells report it.
    Program(u8),
}

/// An argument that is refused after clap has accepted it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// The command needs root. Holds the same command with sudo.
#[derive(Debug, thiserror::Error)]
#[error("this needs root; run: {0}")]
pub(crate) struct NeedsRoot(Fix);

/// This process is root, and may not do what the command needs.
#[derive(Debug, thiserror::Error)]
#[error("{} missing", .0.join(" and ") + if .0.len() == 1 { " is" } else { " are" })]
pub(crate) struct LacksCapabilities(Vec<&'static str>);

impl ExitStatus {
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        error.chain().find_map(of_cause).unwrap_or(Self::ProblemFound)
    }

    /// For commands that report whether all is well.
    pub(crate) fn problem_unless(is_well: bool) -> Self {
        if is_well { Self::Success } else { Self::ProblemFound }
    }

    fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::ProblemFound => 1,
            Self::Usage => 2,
            Self::AgentUnreachable => 3,
            Self::PermissionDenied => 4,
            Self::Program(code) => code,
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.code())
    }
}

fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<ExitStatus> {
    if cause.is::<NeedsRoot>() || cause.is::<LacksCapabilities>() {
        return Some(ExitStatus::PermissionDenied);
    }
    if cause.is::<Usage>() {
        return Some(ExitStatus::Usage);
    }
    if let Some(config) = cause.downcast_ref::<ConfigError>() {
        return Some(if config.is_denied() { ExitStatus::PermissionDenied } else { ExitStatus::Usage });
    }
    if let Some(client) = cause.downcast_ref::<ClientError>() {
        return of_client(client);
    }
    let denied = match (cause.downcast_ref::<io::Error>(), cause.downcast_ref::<Errno>()) {
        (Some(error), _) => error.kind() == ErrorKind::PermissionDenied,
        (None, Some(errno)) => matches!(*errno, Errno::PERM | Errno::ACCESS),
        (None, None) => false,
    };
    denied.then_some(ExitStatus::PermissionDenied)
}

fn of_client(error: &ClientError) -> Option<ExitStatus> {
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

/// State, sockets and the kernel's network are readable by root only. Without this check an unreadable record would
/// count as none.
pub(crate) fn ensure_root() -> Result<(), NeedsRoot> {
    if geteuid().is_root() { Ok(()) } else { Err(NeedsRoot(with_sudo(std::env::args_os()))) }
}

/// Root in a container may lack them. The errors of the kernel do not name the capability.
pub(crate) fn ensure_capabilities(needed: &[Capability]) -> Result<(), LacksCapabilities> {
    let missing = missing_capabilities(needed);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(LacksCapabilities(missing.into_iter().map(Capability::name).collect()))
    }
}

/// Advice for an error that is not about the user alone, such as a missing capability.
pub(crate) fn advice(status: ExitStatus) -> Option<String> {
    match status {
        ExitStatus::PermissionDenied if geteuid().is_root() => Some(
            "this process is root and lacks a capability or access; run it on the node itself, outside of a container"
                .to_owned(),
        ),
        ExitStatus::PermissionDenied => Some(format!("run: {}", with_sudo(std::env::args_os()))),
        ExitStatus::Success
        | ExitStatus::ProblemFound
        | ExitStatus::Usage
        | ExitStatus::AgentUnreachable
        | ExitStatus::Program(_) => None,
    }
}

/// The same command, ready to paste.
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
    fn a7_the_documented_table_has_every_code() {
        use ExitStatus::{AgentUnreachable, PermissionDenied, ProblemFound, Success, Usage};
        let rows: Vec<&str> = DOCS.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        let all = [Success, ProblemFound, Usage, AgentUnreachable, PermissionDenied];
        assert_eq!(rows.len(), all.len(), "{rows:?}");
        for (row, status) in rows.iter().zip(all) {
            assert!(row.starts_with(&format!("| {} |", status.code())), "{row}");
        }
    }

    #[test]
    fn a7_an_error_has_the_code_of_its_cause() {
        let of = |error: anyhow::Error| ExitStatus::of(&error.context("outer").context("outermost"));
        let denied = || io::Error::from(ErrorKind::PermissionDenied);
        let socket = std::path::PathBuf::from("/x");
        let listens = ClientError::NoListener { socket: socket.clone(), source: ErrorKind::NotFound.into() };
        let connect = ClientError::Connect { socket, source: denied() };
        assert_eq!(of(listens.into()), ExitStatus::AgentUnreachable);
        assert_eq!(of(connect.into()), ExitStatus::PermissionDenied);
        assert_eq!(of(denied().into()), ExitStatus::PermissionDenied);
        assert_eq!(
            of(Err::<(), _>(Errno::PERM).context("netlink").unwrap_err()),
            ExitStatus::PermissionDenied
        );
        assert_eq!(of(Usage("x".to_owned()).into()), ExitStatus::Usage);
        assert_eq!(of(anyhow::anyhow!("anything else")), ExitStatus::ProblemFound);
    }

    #[test]
    fn a3_the_command_with_sudo_can_be_pasted() {
        let words = ["podwire", "lab", "exec", "n1", "--", "sh", "-c", "echo it's", ""];
        assert_eq!(
            &*with_sudo(words.iter().map(OsString::from)),
            r"sudo podwire lab exec n1 -- sh -c 'echo it'\''s' ''"
        );
    }
}
