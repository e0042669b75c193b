//! The `ping` program.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use types::Fix;

/// What the program exits with if no reply came. Other codes are its own problems.
const NO_REPLY: i32 = 1;

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
    pub(super) fn command(&self) -> Fix {
        Fix::words(self.words())
    }

    fn words(&self) -> Vec<String> {
        let mut words = ["ping", "-c", "1", "-W", "1"].map(str::to_owned).to_vec();
        words.extend(self.source.into_iter().flat_map(|source| ["-I".to_owned(), source.to_string()]));
        words.extend(
            self.size.into_iter().flat_map(|size| ["-M", "do", "-s", &size.to_string()].map(str::to_owned)),
        );
        words.push(self.target.to_string());
        words
    }

    /// In the network namespace of this thread. It takes a second at most.
    pub(super) fn echo(&self) -> Echo {
        let words = self.words();
        let asked =
            Command::new(&words[0]).args(&words[1..]).env("LC_ALL", "C").stdin(Stdio::null()).output();
        match asked {
            Ok(output) if output.status.success() => Echo::Answered,
            // It runs, and gets no socket.
            Ok(output)
                if String::from_utf8_lossy(&output.stderr).contains("socket: Operation not permitted") =>
            {
                Echo::NotAsked(ErrorKind::PermissionDenied.into())
            }
            Ok(output) if output.status.code() == Some(NO_REPLY) => Echo::Silence,
            // As an address that it cannot use as its source.
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr);
                Echo::NotAsked(io::Error::other(why.lines().next().unwrap_or("ping failed").to_owned()))
            }
            Err(error) => Echo::NotAsked(error),
        }
    }
}
