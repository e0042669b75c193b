//! Standard input and output: the config is read with a bound, and stdout carries JSON and nothing else.

use std::io::{Read, Write, stderr, stdin, stdout};

use cni::{Error, ErrorCode, Failure, MAX_STDIN, Version};
use rustix::fd::AsFd as _;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::Value;

/// Reads at most one byte more than is allowed, so that the protocol can say that it was too much.
pub(crate) fn read_config() -> Result<Vec<u8>, Error> {
    let mut config = Vec::with_capacity(4096);
    let mut stdin = stdin().lock().take(MAX_STDIN as u64 + 1);
    match stdin.read_to_end(&mut config) {
        Ok(_) => Ok(config),
        Err(e) => Err(Error::new(ErrorCode::Io, format!("cannot read the network config from stdin: {e}"))),
    }
}

/// One write, so that a reader never sees half a value.
pub(crate) fn print(value: &Value) -> std::io::Result<()> {
    let mut text = value.to_string();
    text.push('\n');
    let mut stdout = stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// A caller may leave 0, 1 or 2 closed. The next file that is opened would get that number, and what is printed.
#[cfg_attr(test, expect(dead_code, reason = "the tests have a start of their own"))]
pub(crate) fn hold_places() -> Result<(), Errno> {
    for place in [stdin().as_fd(), stdout().as_fd(), stderr().as_fd()] {
        if rustix::io::fcntl_getfd(place) == Err(Errno::BADF) {
            // The lowest number that is free is this one. It stays open.
            std::mem::forget(rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())?);
        }
    }
    Ok(())
}

/// A bug must still be an answer: the error object on stdout, where and what on stderr.
pub(crate) fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let panic = panic.to_string();
        eprintln!("podwire-cni: {}", types::printable(&panic));
        let error = Error::new(ErrorCode::Internal, "internal error: please report it").with_details(panic);
        // Stderr has it already, and nobody else is left to tell.
        let _ = print(&Failure { error, version: Version::LATEST }.to_json());
        std::process::exit(1);
    }));
}
