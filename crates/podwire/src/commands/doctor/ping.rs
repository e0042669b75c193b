//! The `ping` program.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::process::{Command, Stdio};

/// One echo request.
#[derive(Clone, Copy)]
pub(super) struct Ping {
    pub(super) target: IpAddr,
    pub(super) source: Option<IpAddr>,
    /// Bytes of data in a packet that must not be fragmented.
    pub(super) size: Option<u32>,
}

pub(super) enum Echo {
    Answered,
    Silence,
    /// The program is missing, or is not permitted to send.
    NotAsked(io::Error),
}

impl Ping {
    /// Ready to paste.
    pub(super) fn command(&self) -> String {
        let source = self.source.map(|source| format!(" -I {source}")).unwrap_or_default();
        let size = self.size.map(|size| format!(" -M do -s {size}")).unwrap_or_default();
        format!("ping -c 1 -W 1{source}{size} {}", self.target)
    }

    /// In the network namespace of this thread. It takes a second at most.
    pub(super) fn echo(&self) -> Echo {
        let command = self.command();
        let mut words = command.split(' ');
        let program = words.next().unwrap_or_default();
        let asked = Command::new(program).args(words).env("LC_ALL", "C").stdin(Stdio::null()).output();
        match asked {
            Ok(output) if output.status.success() => Echo::Answered,
            // It runs, and gets no socket.
            Ok(output)
                if String::from_utf8_lossy(&output.stderr).contains("socket: Operation not permitted") =>
            {
                Echo::NotAsked(ErrorKind::PermissionDenied.into())
            }
            Ok(_) => Echo::Silence,
            Err(error) => Echo::NotAsked(error),
        }
    }
}
