//! Standard input and output. The config on stdin has a size limit, and stdout contains only JSON.

use std::io::{Read, Write, stderr, stdin, stdout};

use cni::{Error, ErrorCode, Failure, MAX_STDIN, Version};
use rustix::fd::AsFd as _;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::Value;

/// Reads at most one byte more than the limit, so that `cni` detects a config that is too large.
pub(crate) fn read_config() -> Result<Vec<u8>, Error> {
    let mut config = Vec::with_capacity(4096);
    let mut stdin = stdin().lock().take(MAX_STDIN as u64 + 1);
    match stdin.read_to_end(&mut config) {
        Ok(_) => Ok(config),
        Err(e) => Err(Error::new(ErrorCode::Io, format!("cannot read the network config from stdin: {e}"))),
    }
}

/// Writes the value with one system call, so that a reader never gets a part of it.
pub(crate) fn print(value: &Value) -> std::io::Result<()> {
    let mut text = value.to_string();
    text.push('\n');
    let mut stdout = stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Opens /dev/null for each closed standard descriptor. Otherwise the next opened file would get that descriptor, and output
/// would be written to it.
#[cfg_attr(test, expect(dead_code, reason = "the test harness has its own main function"))]
pub(crate) fn open_missing_descriptors() -> Result<(), Errno> {
    for descriptor in [stdin().as_fd(), stdout().as_fd(), stderr().as_fd()] {
        if rustix::io::fcntl_getfd(descriptor) == Err(Errno::BADF) {
            // open(2) returns the lowest free descriptor, which is this one.
            std::mem::forget(rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())?);
        }
    }
    Ok(())
}

/// Answers a panic with an error object on stdout and the location on stderr.
pub(crate) fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let panic = panic.to_string();
        eprintln!("podwire-cni: {}", types::printable(&panic));
        let error = Error::new(ErrorCode::Internal, "internal error: please report it").with_details(panic);
        // The panic is already on stderr.
        let _ = print(&Failure { error, version: Version::LATEST }.to_json());
        std::process::exit(1);
    }));
}
