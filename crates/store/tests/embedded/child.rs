//! Runs this test program as a separate process that owns a store.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const DIRECTORY: &str = "PODWIRE_TEST_STORE";

/// Runs one test that is otherwise ignored.
pub(super) fn start(test: &str, dir: &Path) -> Child {
    command(Command::new(std::env::current_exe().unwrap()), test, dir).spawn().unwrap()
}

pub(super) fn command(mut program: Command, test: &str, dir: &Path) -> Command {
    program.args(["--exact", test, "--ignored", "--nocapture"]).env(DIRECTORY, dir).stdout(Stdio::piped());
    program
}

/// The store's directory. None if this process was not started by `start`.
pub(super) fn directory() -> Option<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from)
}

pub(super) fn kill(mut child: Child) {
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "the process was not killed but ended ({status})");
}
