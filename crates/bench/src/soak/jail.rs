//! Namespaces for the whole run: its own pids, with a limit, its own names of network namespaces, its own temporary
//! directory. A config that makes plugins start plugins without end fills this limit and not the machine. All processes end
//! with the first one.

use std::process::{Command, ExitCode};

/// Processes and threads of the run at one time. A run without attacks has some 200.
const MOST_PIDS: u32 = 1500;
/// Since this version a pid namespace has a limit of its own.
const LIMITED_SINCE: (u32, u32) = (6, 14);
/// Tells the program inside that it has no limit.
pub(crate) const UNLIMITED: &str = "PODWIRE_SOAK_UNLIMITED";

/// `sh` is the first process of the namespace and reaps the orphans of the others.
const SCRIPT: &str = r#"set -e
mount -t tmpfs -o mode=755 podwire-soak /run
mkdir /run/netns /run/podwire-soak
export TMPDIR=/run/podwire-soak
# Hostile configs name paths: nothing of the machine can be written from here.
cut -d ' ' -f 5 /proc/self/mountinfo | while read -r at; do
  case "$at" in
    /proc*|/sys*|/dev*|/run|/run/*) ;;
    *) mount -o remount,bind,ro "$at" 2>/dev/null || echo "$at stays writable" >&2 ;;
  esac
done
if [ -n "$MOST_PIDS" ]; then echo "$MOST_PIDS" >/proc/sys/kernel/pid_max; fi
"$@" --inside && exit 0 || exit $?
"#;

/// Runs this program again, inside.
pub(crate) fn enter() -> ExitCode {
    let Ok(exe) = std::env::current_exe() else {
        eprintln!("cannot find out where this program lies");
        return ExitCode::from(2);
    };
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["sh", "-c", SCRIPT, "sh"]).arg(exe).args(std::env::args_os().skip(1));
    if is_limited() {
        command.env("MOST_PIDS", MOST_PIDS.to_string());
    } else {
        println!("self-delegation is left out: before Linux 6.14 a pid namespace has no limit of its own");
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

/// Before that version, the limit inside a namespace is the one of the machine.
fn is_limited() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= LIMITED_SINCE
}
