//! Private namespaces for the whole run: pids with a limit, names of network namespaces, and the temporary directory. The limit
//! protects the host from configs that make plugins start plugins recursively. All processes exit with the init process.

use std::process::{Command, ExitCode};

/// Maximum number of processes and threads. A run without attacks has about 200.
const MOST_PIDS: u32 = 1500;
/// First Linux version with a separate limit per pid namespace.
const LIMITED_SINCE: (u32, u32) = (6, 14);
/// Environment variable that is set if there is no limit.
pub(crate) const UNLIMITED: &str = "PODWIRE_SOAK_UNLIMITED";

/// `sh` is the init process of the namespace and reaps orphans.
const SCRIPT: &str = r#"set -e
mount -t tmpfs -o mode=755 podwire-soak /run
mkdir /run/netns /run/podwire-soak
export TMPDIR=/run/podwire-soak
# Hostile configs name paths: nothing of the machine can be written from here.
cut -d ' ' -f 5 /proc/self/mountinfo | while read -r at; do
  case "$at" in
    /proc*|/sys*|/dev*|/run|/run/*) ;;
    *) mount -o remount,bind,ro "$at" 2>/dev/null || echo "$at remains writable" >&2 ;;
  esac
done
if [ -n "$MOST_PIDS" ]; then echo "$MOST_PIDS" >/proc/sys/kernel/pid_max; fi
"$@" --inside && exit 0 || exit $?
"#;

/// Runs this program inside the namespaces.
pub(crate) fn enter() -> ExitCode {
    let Ok(exe) = std::env::current_exe() else {
        eprintln!("cannot find the path of this program");
        return ExitCode::from(2);
    };
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["sh", "-c", SCRIPT, "sh"]).arg(exe).args(std::env::args_os().skip(1));
    if is_limited() {
        command.env("MOST_PIDS", MOST_PIDS.to_string());
    } else {
        println!("self-delegation is skipped: before Linux 6.14 a pid namespace has no separate limit");
        command.env(UNLIMITED, "1");
    }
    match command.status() {
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(2)),
        Err(error) => {
            eprintln!("cannot start unshare (package util-linux): {error}");
            ExitCode::from(2)
        }
    }
}

/// Before that version, the limit inside a namespace is that of the host.
fn is_limited() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= LIMITED_SINCE
}
