//! Runs the nft program, which applies the structure of tables. No shell, no arguments from names, bounded time.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, MemfdFlags, access, memfd_create};

use crate::error::Error;

const TIMEOUT: Duration = Duration::from_secs(10);
const RUN: &str = "run the nft program";
/// Runtimes often start plugins with a PATH that has no sbin in it.
const PLACES: [&str; 4] = ["nft", "/usr/sbin/nft", "/sbin/nft", "/usr/local/sbin/nft"];
/// Enough for the message about one error. Further messages of nft repeat it.
const LONGEST_MESSAGE: usize = 4096;

/// Applies a text in one transaction, in the network namespace of the calling thread.
pub(crate) fn apply(text: &str) -> Result<(), Error> {
    let mut child = start(text)?;
    let Some(stderr) = child.stderr.take() else { return Err(Error::Structure { message: String::new() }) };
    let message = read_until(stderr, Instant::now() + TIMEOUT);
    if message.is_err() {
        // It may have exited. The code below waits for it in both cases.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|e| Error::io(RUN, e))?;
    result(status, &message?)
}

/// The command that installs the program.
pub const INSTALL: &str = "apt install nftables";

/// Whether the program is installed and executable.
pub fn check_program() -> Result<(), Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path)
        .map(|dir| dir.join(PLACES[0]))
        .chain(PLACES[1..].iter().map(PathBuf::from));
    first_executable(places)
}

fn first_executable(places: impl Iterator<Item = PathBuf>) -> Result<(), Error> {
    let mut found = Err(Error::NftMissing);
    for path in places.filter(|place| place.is_file()) {
        if access(&path, Access::EXEC_OK).is_ok() {
            return Ok(());
        }
        if matches!(found, Err(Error::NftMissing)) {
            found = Err(Error::NftNotExecutable { path });
        }
    }
    found
}

fn start(text: &str) -> Result<Child, Error> {
    let mut refused = None;
    for place in PLACES {
        // A file in memory instead of a pipe: a child that does not read cannot block this process.
        let input = in_memory(text).map_err(|e| Error::io(RUN, e))?;
        let mut command = Command::new(place);
        command
            .args(["-f", "-"])
            .stdin(input)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .env("LC_ALL", "C");
        match command.spawn() {
            Ok(child) => return Ok(child),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => refused = Some(e),
            Err(e) => return Err(Error::io(RUN, e)),
        }
    }
    check_program()?;
    Err(refused.map_or(Error::NftMissing, |e| Error::io(RUN, e)))
}

fn in_memory(text: &str) -> std::io::Result<File> {
    use std::io::Seek as _;
    let mut file = File::from(memfd_create("podwire-ruleset", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Reads until the child exits, which closes its stderr.
fn read_until(mut stderr: ChildStderr, deadline: Instant) -> Result<String, Error> {
    let (mut message, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // poll(2) reports a child that writes without a pause as ready, regardless of the timeout.
        if left.is_zero() {
            return Err(Error::Timeout { operation: "the nft program" });
        }
        let wait = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&stderr, PollFlags::IN)], Some(&wait)) {
            Ok(0) => return Err(Error::Timeout { operation: "the nft program" }),
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(Error::io(RUN, e)),
            Ok(_) => {}
        }
        match stderr.read(&mut chunk).map_err(|e| Error::io(RUN, e))? {
            0 => return Ok(String::from_utf8_lossy(&message).into_owned()),
            read if message.len() < LONGEST_MESSAGE => message.extend_from_slice(&chunk[..read]),
            _ => {}
        }
    }
}

fn result(status: ExitStatus, stderr: &str) -> Result<(), Error> {
    if status.success() {
        return Ok(());
    }
    // nft reports an error in three lines: position and reason, the text, and carets below it.
    let mut lines = stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    let (what, line) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    if what.contains("Operation not permitted") {
        return Err(Error::Permission { operation: "create the firewall's tables" });
    }
    // The text is valid. If the kernel does not find an expression, a module is missing.
    let lacking = what.contains("not supported") || what.contains("No such file or directory");
    if what.contains("Could not process rule") && lacking {
        let option = option_for(line);
        return Err(Error::Unsupported { what: format!("support for the rule '{line}'"), option });
    }
    let message = if stderr.is_empty() { status.to_string() } else { format!("{what}: {line}") };
    Err(Error::Structure { message })
}

/// The kernel option that a refused line needs.
fn option_for(line: &str) -> &'static str {
    let known = [
        ("table bridge", "CONFIG_NF_TABLES_BRIDGE"),
        ("masquerade", "CONFIG_NFT_MASQ"),
        ("dnat ip", "CONFIG_NFT_NAT"),
        ("type nat", "CONFIG_NFT_NAT"),
        ("fib", "CONFIG_NFT_FIB_INET"),
        ("ct status", "CONFIG_NFT_CT"),
    ];
    known.iter().find(|(part, _)| line.contains(part)).map_or("CONFIG_NF_TABLES_INET", |(_, option)| option)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use types::{Code, Fix};

    use super::*;

    fn of(stderr: &str) -> Error {
        result(ExitStatus::from_raw(256), stderr).unwrap_err()
    }

    #[test]
    fn a_program_that_cannot_be_executed_has_its_own_fix() {
        // Regular files without and with the bit.
        let places = |all: &[&str]| all.iter().map(PathBuf::from).collect::<Vec<_>>().into_iter();
        let fix_of = |all: &[&str]| {
            let found = first_executable(places(all)).unwrap_err().missing_program().unwrap();
            (found.code, found.fix.unwrap())
        };
        assert_eq!(fix_of(&["/nowhere/nft", "/dev/null"]), (Code::NftMissing, INSTALL.into()));
        let chmod = Fix::words(["chmod", "a+x", "/etc/passwd"]);
        assert_eq!(fix_of(&["/nowhere/nft", "/etc/passwd", "/etc/group"]), (Code::NftMissing, chmod));
        assert!(first_executable(places(&["/etc/passwd", "/bin/sh"])).is_ok());
    }

    #[test]
    fn messages_of_nft_become_errors_with_a_fix() {
        let bridge = of(
            "/dev/stdin:9:1-5: Error: Could not process rule: Operation not supported\ntable bridge podwire {\n^^^^^\n",
        );
        assert!(matches!(bridge, Error::Unsupported { option: "CONFIG_NF_TABLES_BRIDGE", .. }), "{bridge}");
        assert_eq!(bridge.module(), None, "a part of nf_tables, which is loaded: modprobe does not help");
        let fib = of(
            "/dev/stdin:9:1-5: Error: Could not process rule: No such file or directory\n\t\tfib daddr type != local return\n",
        );
        assert!(matches!(fib, Error::Unsupported { option: "CONFIG_NFT_FIB_INET", .. }), "{fib}");
        assert_eq!(fib.module().as_deref(), Some("nft_fib_inet"));
        let denied = of("Error: Could not process rule: Operation not permitted\n");
        assert!(matches!(denied, Error::Permission { .. }), "{denied}");
        let syntax = of("/dev/stdin:1:1-3: Error: syntax error, unexpected string\nfoo\n^^^\n");
        assert!(syntax.to_string().ends_with("syntax error, unexpected string: foo"), "{syntax}");
    }
}
