//! Runs a program as a runtime runs a plugin, and measures the time from before the start to the exit.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A plugin that takes longer is killed.
const TIMEOUT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

#[derive(Debug)]
pub(crate) struct FinishedCall {
    pub(crate) took: Duration,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
}

/// Runs the program in the namespace of the calling thread until it exits and its stdout is closed.
pub(crate) fn run(command: &mut Command, stdin: &[u8]) -> Result<FinishedCall> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start {}", name(command)))?;
    let exchanged = exchange(&mut child, stdin);
    if exchanged.is_err() {
        // The program may have exited already; it is reaped below.
        let _ = child.kill();
    }
    let status = child.wait().with_context(|| format!("cannot wait for {}", name(command)))?;
    let took = start.elapsed();
    let stdout = exchanged.with_context(|| format!("cannot exchange data with {}", name(command)))?;
    Ok(FinishedCall { took, status, stdout })
}

/// Writes the input, which fits into a pipe, and reads all output.
fn exchange(child: &mut Child, input: &[u8]) -> Result<Vec<u8>> {
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(input) {
            // The program exited without reading its input.
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
            other => other?,
        }
    }
    let mut output = Vec::with_capacity(4096);
    let Some(mut stdout) = child.stdout.take() else { return Ok(output) };
    let mut chunk = [0u8; 4096];
    loop {
        match poll(&mut [PollFd::new(&stdout, PollFlags::IN)], Some(&TIMEOUT)) {
            Ok(0) => bail!("the program did not exit within {} s and was killed", TIMEOUT.tv_sec),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        match stdout.read(&mut chunk)? {
            0 => return Ok(output),
            count => output.extend_from_slice(&chunk[..count]),
        }
    }
}

fn name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_returns_output_status_and_time() {
        let finished =
            run(Command::new("/bin/sh").args(["-c", "cat; sleep 0.05; exit 3"]), b"hello").unwrap();
        assert_eq!((finished.stdout.as_slice(), finished.status.code()), (&b"hello"[..], Some(3)));
        assert!(finished.took >= Duration::from_millis(50), "{:?}", finished.took);
        assert!(run(&mut Command::new("/no/such/program"), b"").is_err());
    }
}
