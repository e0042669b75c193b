//! Another IPAM plugin, called as the spec says: found in CNI_PATH, same environment, the whole config on stdin, its
//! stderr forwarded. The only child process there is, and only where a config asks for it.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use cni::{CniResult, Config};
use serde_json::Value;

use crate::Error;

/// A DHCP server may take its time; for ever is too long.
const PATIENCE: Duration = Duration::from_secs(110);
/// No result of an IPAM plugin is larger than a request may be.
const LARGEST_ANSWER: u64 = cni::MAX_STDIN as u64;

pub(crate) struct Delegate<'a> {
    name: String,
    program: PathBuf,
    config: &'a Config,
}

impl<'a> Delegate<'a> {
    pub(crate) fn find(name: &str, path: &[String], config: &'a Config) -> Result<Self, Error> {
        let found = path.iter().map(|dir| PathBuf::from(dir).join(name)).find(|program| program.is_file());
        match found {
            Some(program) => Ok(Self { name: name.to_owned(), program, config }),
            None => Err(Error::Delegate {
                name: name.to_owned(),
                what: format!("not found in CNI_PATH ({})", path.join(":")),
            }),
        }
    }

    pub(crate) fn add(&self) -> Result<CniResult, Error> {
        let answer = self.call("ADD")?;
        let value: Value =
            serde_json::from_slice(&answer).map_err(|e| self.failed(format!("unreadable answer: {e}")))?;
        Ok(CniResult::from_json(self.config.version, &value)?)
    }

    pub(crate) fn del(&self) -> Result<(), Error> {
        self.call("DEL").map(drop)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.call("CHECK").map(drop)
    }

    pub(crate) fn gc(&self) -> Result<(), Error> {
        self.call("GC").map(drop)
    }

    pub(crate) fn status(&self) -> Result<(), Error> {
        self.call("STATUS").map(drop)
    }

    fn call(&self, verb: &str) -> Result<Vec<u8>, Error> {
        let mut child = Command::new(&self.program)
            // Not those of this process: an agent serves many requests.
            .envs(self.config.variables.all())
            .env("CNI_COMMAND", verb)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| self.failed(format!("cannot run {}: {e}", self.program.display())))?;
        let answer = self.converse(&mut child);
        if answer.is_err() {
            // It may have ended by itself already.
            let _ = child.kill();
        }
        let status = child.wait().map_err(|e| self.failed(format!("{verb}: {e}")))?;
        let answer = answer?;
        if status.success() {
            return Ok(answer);
        }
        // Its own error, with its own code, says it best.
        let theirs = serde_json::from_slice(&answer).ok().and_then(|value| cni::Error::from_json(&value));
        Err(match theirs {
            Some(mut error) => {
                error.msg = format!("IPAM plugin {}: {}", self.name, error.msg);
                Error::Cni(error)
            }
            None => self.failed(format!("{verb} ended with {status}")),
        })
    }

    /// Writes the config and reads the answer, with an end to the wait.
    fn converse(&self, child: &mut Child) -> Result<Vec<u8>, Error> {
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(self.failed("no pipe to it".to_owned()));
        };
        let config = self.config.raw.clone();
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            // A plugin that does not read its config (host-local on DEL of nothing) closes the pipe: not our failure.
            let _ = stdin.write_all(&config);
            drop(stdin);
            let mut answer = Vec::new();
            let read = stdout.take(LARGEST_ANSWER).read_to_end(&mut answer).map(|_| answer);
            // Nobody listens any more after the time is up.
            let _ = send.send(read);
        });
        match receive.recv_timeout(PATIENCE) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) => Err(self.failed(format!("cannot read its answer: {e}"))),
            Err(_) => Err(self.failed(format!("no answer within {} s", PATIENCE.as_secs()))),
        }
    }

    fn failed(&self, what: String) -> Error {
        Error::Delegate { name: self.name.clone(), what }
    }
}
