//! This test program again, as a process of its own that works on a folder.

use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(super) const FOLDER: &str = "PODWIRE_TEST_STORE";
pub(super) const NAME: &str = "PODWIRE_TEST_NAME";

/// Runs one test, which is ignored otherwise.
pub(super) fn start(test: &str, dir: &Path, name: &str) -> Child {
    command(Command::new(std::env::current_exe().unwrap()), test, dir).env(NAME, name).spawn().unwrap()
}

pub(super) fn command(mut program: Command, test: &str, dir: &Path) -> Command {
    program.args(["--exact", test, "--ignored", "--nocapture"]).env(FOLDER, dir).stdout(Stdio::piped());
    program
}

/// Which folder and under which name; none if nobody started us for that.
pub(super) fn task() -> Option<(std::path::PathBuf, String)> {
    Some((std::env::var_os(FOLDER)?.into(), std::env::var(NAME).unwrap_or_default()))
}

/// Kills it, and gives what it said.
pub(super) fn kill(mut child: Child) -> String {
    child.kill().unwrap();
    let said = read(&mut child);
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "it ended by itself ({status}): {said}");
    said
}

/// Waits for its good end, and gives what it said.
pub(super) fn finish(mut child: Child) -> String {
    let said = read(&mut child);
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}: {said}");
    said
}

fn read(child: &mut Child) -> String {
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    said
}
