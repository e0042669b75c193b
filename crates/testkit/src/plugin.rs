//! Reference plugins, and plugin calls that only tests need: with a process limit, or killed after a delay.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::{Call, DEADLINE, Ns, Outcome, Plugin, REFERENCE_DIR, RunningProgram};

/// The init process of a pid namespace. It runs a program and exits with it, or when there are too many processes. The kernel
/// then kills all other processes of the namespace.
const CONTAIN: &str = r#"
most=$1
shift
exec 3<&0
"$@" <&3 3<&- &
program=$!
exec 3<&-
while kill -0 $program 2>/dev/null; do
    set -- /proc/[0-9]*
    if [ $# -gt "$most" ]; then
        echo "the program started more than $most processes, which were killed" >&2
        exit 99
    fi
    sleep 0.01
done
wait $program
"#;

/// One of the reference plugins, such as `bridge`.
pub fn reference_plugin(name: &str) -> Result<Plugin> {
    let path = Path::new(REFERENCE_DIR).join(name);
    ensure!(path.is_file(), "{} is missing; install the package containernetworking-plugins", path.display());
    Ok(Plugin { path })
}

/// Copies a program with `cp`. If this process wrote the file, a child that another thread starts at that moment would inherit
/// a descriptor open for writing, and executing the file would fail with ETXTBSY.
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    command.arg("--").arg(from).arg(to);
    let outcome = RunningProgram::start(command, vec![])?.wait(DEADLINE)?;
    ensure!(outcome.success(), "cannot copy {}: {}", from.display(), outcome.describe());
    Ok(())
}

/// Calls the plugin in a new pid namespace, for calls that may start an unlimited number of processes. With more than `most`
/// processes all are killed and the call fails.
pub fn call_contained(plugin: &Plugin, node: &Ns, call: &Call, most: usize) -> Result<Outcome> {
    let plain = plugin.command(call);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", CONTAIN, "sh"]);
    command.arg(most.to_string()).arg(plain.get_program()).env_clear();
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    node.start(command, call.stdin.clone())?.wait(DEADLINE).with_context(|| plugin.title(call))
}

/// Kills the plugin `after` its start if it is still running, and waits for its child processes.
pub fn call_killed_after(plugin: &Plugin, node: &Ns, call: &Call, after: Duration) -> Result<Outcome> {
    plugin.spawn(node, call)?.kill_at(after).with_context(|| plugin.title(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_missing_plugin_names_the_package() {
        let error = reference_plugin("no-such-plugin").unwrap_err().to_string();
        assert!(error.contains("containernetworking-plugins"), "{error}");
    }
}
