//! This test program again, as a process of its own that owns a store.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const DIRECTORY: &str = "PODWIRE_TEST_STORE";

/// Runs one test, which is ignored otherwise.
pub(super) fn start(test: &str, dir: &Path) -> Child {
    command(Command::new(std::env::current_exe().unwrap()), test, dir).spawn().unwrap()
}

pub(super) fn command(mut program: Command, test: &str, dir: &Path) -> Command {
    program.args(["--exact", test, "--ignored", "--nocapture"]).env(DIRECTORY, dir).stdout(Stdio::piped());
    program
}

/// Which directory; none if this process was not started for that.
pub(super) fn task() -> Option<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from)
}

pub(super) fn kill(mut child: Child) {
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "it ended by itself ({status})");
}
