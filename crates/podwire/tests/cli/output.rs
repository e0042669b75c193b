//! Errors of stdout: a closed pipe is ignored, a full disk is reported.

use std::fs::File;
use std::process::{Command, Output, Stdio};

use crate::common::{Host, has};

/// Commands that succeed and print on stdout.
const COMMANDS: [&[&str]; 9] = [
    &["nodes"],
    &["nodes", "-o", "json"],
    &["routes"],
    &["blocks"],
    &["pods"],
    &["pods", "-o", "json"],
    &["status"],
    &["status", "-o", "json"],
    &["agent", "--print-config"],
];

fn ask(host: &Host, args: &[&str], stdout: impl Into<Stdio>) -> Output {
    let mut command = Command::new(&host.tool);
    command.args(args).arg("--run-dir").arg(host.node.run_dir());
    command.env("PODWIRE_STATE_DIR", host.state_dir()).stdin(Stdio::null()).stdout(stdout);
    command.stderr(Stdio::piped()).output().unwrap()
}

#[test]
fn a_closed_pipe_is_ignored_and_a_full_disk_is_an_error() {
    let host = Host::new("pipe");
    let _agent = host.agent(&["--no-install"]);
    for args in COMMANDS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = ask(&host, args, writer);
        let stderr = String::from_utf8_lossy(&closed.stderr);
        assert_eq!((closed.status.code(), &*stderr), (Some(0), ""), "{args:?}");

        let full = ask(&host, args, File::options().write(true).open("/dev/full").unwrap());
        let stderr = String::from_utf8_lossy(&full.stderr);
        assert_eq!(full.status.code(), Some(1), "{args:?}: {stderr}");
        has(&stderr, &["podwire: cannot write to stdout: No space left on device"]);
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}
