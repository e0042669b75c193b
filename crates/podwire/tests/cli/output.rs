//! Where the output goes: a reader that has left is no failure, a disk that is full is one.

use std::fs::File;
use std::process::{Command, Output, Stdio};

use crate::common::{Host, has};

/// Each says something on stdout, and all is well.
const QUESTIONS: [&[&str]; 9] = [
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
fn a_reader_that_left_is_no_failure_and_a_full_disk_is() {
    let host = Host::new("pipe");
    let _agent = host.agent(&["--no-install"]);
    for args in QUESTIONS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let left = ask(&host, args, writer);
        let told = String::from_utf8_lossy(&left.stderr);
        assert_eq!((left.status.code(), &*told), (Some(0), ""), "{args:?}");

        let full = ask(&host, args, File::options().write(true).open("/dev/full").unwrap());
        let told = String::from_utf8_lossy(&full.stderr);
        assert_eq!(full.status.code(), Some(1), "{args:?}: {told}");
        has(&told, &["podwire: cannot write to stdout: No space left on device"]);
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}
