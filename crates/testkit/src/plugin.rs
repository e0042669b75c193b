use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::call::{with_prev_result, with_valid_attachments};
use crate::{Call, DEADLINE, Ns, Outcome, Pod, Running, Verb};

/// Where Debian's containernetworking-plugins puts the reference plugins.
pub const REFERENCE_DIR: &str = "/usr/lib/cni";
const BINARY: &str = "podwire-cni";
const OVERRIDE: &str = "PODWIRE_CNI";
const DEFAULT_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The first process of a pid namespace: runs a program, and ends with it, or when there are too many processes. The kernel
/// then kills the others.
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
        echo "it started more than $most processes, and they were killed" >&2
        exit 99
    fi
    sleep 0.01
done
wait $program
"#;

/// A CNI plugin's executable.
#[derive(Debug, Clone)]
pub struct Plugin {
    pub path: PathBuf,
}

/// Copies a program. Another process does it: a child that another thread starts at this moment would inherit a descriptor that
/// is open for writing, and the kernel does not execute such a file (ETXTBSY).
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    command.arg("--").arg(from).arg(to);
    let outcome = Running::start(command, vec![])?.wait(DEADLINE)?;
    ensure!(outcome.success(), "cannot copy {}: {}", from.display(), outcome.story());
    Ok(())
}

impl Plugin {
    /// Our own plugin, as built: `PODWIRE_CNI` if that is set, else what lies in this executable's target folder.
    pub fn podwire() -> Result<Self> {
        if let Some(path) = std::env::var_os(OVERRIDE) {
            let path = PathBuf::from(path);
            ensure!(path.is_file(), "{OVERRIDE} names {}, which is not a file", path.display());
            return Ok(Self { path });
        }
        let exe = std::env::current_exe().context("cannot find out where this program lies")?;
        let Some(path) = built(&exe, BINARY) else {
            bail!(
                "{BINARY} is not built: no such file near {}; run `make build` or set {OVERRIDE}",
                exe.display()
            );
        };
        Ok(Self { path })
    }

    /// One of the reference plugins, such as `bridge`.
    pub fn reference(name: &str) -> Result<Self> {
        let path = Path::new(REFERENCE_DIR).join(name);
        ensure!(
            path.is_file(),
            "{} is missing; install the package containernetworking-plugins",
            path.display()
        );
        Ok(Self { path })
    }

    /// Calls the plugin inside the node's namespace and waits for its end.
    pub fn call(&self, node: &Ns, call: &Call) -> Result<Outcome> {
        self.spawn(node, call)?.wait(DEADLINE).with_context(|| self.title(call))
    }

    /// The same in a pid namespace of its own, for calls that may start processes without end: with more than `most` of
    /// them all are killed, and the call fails.
    pub fn call_contained(&self, node: &Ns, call: &Call, most: usize) -> Result<Outcome> {
        let plain = self.command(call);
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", CONTAIN, "sh"]);
        command.arg(most.to_string()).arg(plain.get_program()).env_clear();
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        node.start(command, call.stdin.clone())?.wait(DEADLINE).with_context(|| self.title(call))
    }

    /// Starts the plugin and leaves it to the caller.
    pub fn spawn(&self, node: &Ns, call: &Call) -> Result<Running> {
        node.start(self.command(call), call.stdin.clone()).with_context(|| self.title(call))
    }

    /// Kills the plugin so long after its start, if it still runs, and waits for what it may have started.
    pub fn call_killed_after(&self, node: &Ns, call: &Call, after: Duration) -> Result<Outcome> {
        self.spawn(node, call)?.kill_at(after).with_context(|| self.title(call))
    }

    pub fn add(&self, pod: &Pod, config: &Value) -> Result<Outcome> {
        self.call(pod.node(), &Call::pod(Verb::Add, pod, config))
    }

    pub fn del(&self, pod: &Pod, config: &Value) -> Result<Outcome> {
        self.call(pod.node(), &Call::pod(Verb::Del, pod, config))
    }

    /// CHECK with the result of the ADD, which the specification asks for.
    pub fn check(&self, pod: &Pod, config: &Value, prev: &Value) -> Result<Outcome> {
        self.call(pod.node(), &Call::pod(Verb::Check, pod, &with_prev_result(config, prev)?))
    }

    /// GC with the attachments that live, each as container id and interface name.
    pub fn gc(&self, node: &Ns, config: &Value, valid: &[(&str, &str)]) -> Result<Outcome> {
        self.call(node, &Call::network(Verb::Gc, &with_valid_attachments(config, valid)?))
    }

    pub fn status(&self, node: &Ns, config: &Value) -> Result<Outcome> {
        self.call(node, &Call::network(Verb::Status, config))
    }

    pub fn version(&self, node: &Ns) -> Result<Outcome> {
        self.call(node, &Call::network(Verb::Version, &json!({"cniVersion": "1.1.0"})))
    }

    /// The environment is what the specification lists and PATH, so that nothing of the test's own leaks in.
    pub(crate) fn command(&self, call: &Call) -> Command {
        let own_dir = self.path.parent().unwrap_or(Path::new("/"));
        let mut command = Command::new(&self.path);
        command.env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into()));
        command.env("CNI_PATH", format!("{REFERENCE_DIR}:{}", own_dir.display()));
        command.envs(call.variables());
        command
    }

    pub(crate) fn title(&self, call: &Call) -> String {
        format!("{} of {}", call.verb.as_str(), self.path.display())
    }
}

/// Next to a program of the release profile lies the one to measure. Otherwise the newest one is the one just built.
pub(crate) fn built(exe: &Path, binary: &str) -> Option<PathBuf> {
    let mut profile = exe.parent()?;
    // Tests and examples lie one folder deeper.
    if profile.file_name().is_some_and(|name| name == "deps" || name == "examples") {
        profile = profile.parent()?;
    }
    let beside = profile.join(binary);
    if !profile.ends_with("debug") && beside.is_file() {
        return Some(beside);
    }
    let target = profile.parent()?;
    let built = ["release", "debug"].map(|profile| target.join(profile).join(binary));
    built.into_iter().filter_map(|path| Some((modified(&path)?, path))).max().map(|(_, path)| path)
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{File, create_dir_all};

    use super::*;

    fn build(target: &Path, profile: &str, age: u64) -> PathBuf {
        let path = target.join(profile).join(BINARY);
        create_dir_all(path.parent().unwrap()).unwrap();
        let file = File::create(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        path
    }

    #[test]
    fn the_newest_build_is_found_and_a_release_program_takes_the_release() {
        let target = tempfile::tempdir().unwrap();
        let target = target.path();
        let (test, bench) = (target.join("debug/deps/t-123"), target.join("release/bench"));
        assert_eq!(built(&test, BINARY), None);
        let release = build(target, "release", 100);
        assert_eq!(built(&test, BINARY), Some(release.clone()));
        let debug = build(target, "debug", 10);
        assert_eq!(built(&test, BINARY), Some(debug.clone()));
        assert_eq!(built(&bench, BINARY), Some(release.clone()));
        build(target, "release", 1);
        assert_eq!(built(&test, BINARY), Some(release));
    }

    #[test]
    fn a_missing_plugin_says_what_to_do() {
        let error = Plugin::reference("no-such-plugin").unwrap_err().to_string();
        assert!(error.contains("containernetworking-plugins"), "{error}");
    }
}
