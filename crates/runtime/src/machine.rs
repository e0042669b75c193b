//! A node with its own mount and pid namespaces in addition to its network namespace.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testkit::{DEADLINE, Node, Ns, Outcome, wait_until};

use crate::cgroups;

/// Directories that the machine does not share with the host. They are empty except for a few files in /etc.
const PRIVATE_DIRS: [&str; 5] = ["run", "var/lib", "var/log", "opt", "etc"];
/// Files of /etc that most programs read.
const COPIED: [&str; 6] = ["passwd", "group", "nsswitch.conf", "protocols", "services", "ld.so.cache"];
const WRITTEN: [(&str, &str); 3] =
    [("hosts", "127.0.0.1 localhost\n::1 localhost\n"), ("hostname", "machine\n"), ("resolv.conf", "")];
/// The init process. It first unmounts /run/netns, because copied mounts would keep other namespaces alive. It exits when its
/// stdin closes, also after a kill of the test, and reaps orphans while it waits for `cat`.
const INIT: &str = r#"set -eu
while mountpoint -q /run/netns; do umount -l /run/netns; done
for at in run var/lib var/log opt etc; do mount --bind "$0/root/$at" "/$at"; done
: > "$0/up"
cat > /dev/null
exit 0"#;
/// Number of log lines that a failing test prints.
const TAIL_LINES: usize = 60;
const STOP_TIMEOUT: Duration = DEADLINE;

/// Mount and pid namespaces on a node. All its processes are killed on drop. Drop it before its lab.
#[derive(Debug, Clone)]
pub struct Machine {
    inner: Arc<MachineInner>,
}

#[derive(Debug)]
struct MachineInner {
    node: Ns,
    dir: PathBuf,
    /// `unshare`, the parent of the init process. It is in the same namespaces except for the pid namespace.
    parent: Mutex<Child>,
    pid: u32,
}

impl Machine {
    pub fn new(node: &Node) -> Result<Self> {
        if let Err(error) = cgroups::remove_of_dead_runs() {
            eprintln!("cannot remove all cgroups of earlier runs: {error:#}");
        }
        let dir = node.dir().join("machine");
        create_root(&dir)?;
        let parent = start_init(node, &dir)?;
        let pid = parent.id();
        let inner = MachineInner { node: Ns::clone(node), dir, parent: Mutex::new(parent), pid };
        let machine = Self { inner: Arc::new(inner) };
        wait_until("the machine's mounts", DEADLINE, || Ok(machine.inner.is_up() || machine.inner.ended()?))?;
        ensure!(machine.inner.is_up(), "the machine did not start: {}", machine.inner.log());
        Ok(machine)
    }

    /// Host path of a path inside the machine. Only for paths below /run, /var/lib, /var/log, /opt and /etc.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.inner.dir.join("root").join(inside.trim_start_matches('/'))
    }

    /// The machine's directory, with the logs of its services. It has the same path inside and outside.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Name of the parent cgroup of its pods.
    pub fn cgroup(&self) -> &str {
        self.inner.node.name()
    }

    /// Runs a program inside the machine. The caller checks the exit code.
    pub fn run(&self, argv: &[&str]) -> Result<Outcome> {
        let words = self.nsenter_args();
        let mut all: Vec<&str> = words.iter().map(String::as_str).collect();
        all.extend(argv);
        self.inner.node.run(&all, b"")
    }

    /// Like `run`, and returns stdout. A nonzero exit code is an error.
    pub fn sh(&self, argv: &[&str]) -> Result<String> {
        let outcome = self.run(argv)?;
        ensure!(
            outcome.success(),
            "`{}` on the machine failed: {}, {}",
            argv.join(" "),
            outcome.status,
            outcome.stderr.trim()
        );
        Ok(outcome.stdout)
    }

    /// Lists mounts, processes, cgroups and namespaces that pods and their runtime may leave behind, for comparison.
    pub fn remains(&self) -> Result<Vec<String>> {
        let mounts = self.sh(&["cat", "/proc/self/mounts"])?;
        let mut all: Vec<String> = mounts.lines().map(|line| format!("mount {line}")).collect();
        // Processes may exit while the list is read.
        let shims = self.sh(&["sh", "-c", "cat /proc/[0-9]*/comm 2>/dev/null || true"])?;
        all.extend(
            shims
                .lines()
                .filter(|name| name.starts_with("containerd-shim") || *name == "conmon")
                .map(|name| format!("process {name}")),
        );
        all.extend(cgroups::below(self.cgroup())?.iter().map(|path| format!("cgroup {}", path.display())));
        all.extend(names_in(&self.path("/run/netns"))?.into_iter().map(|name| format!("netns {name}")));
        all.sort();
        Ok(all)
    }

    /// A command that runs inside the machine as a child of `nsenter`, which does not forward signals.
    pub(crate) fn command(&self) -> Command {
        let words = self.nsenter_args();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }

    fn nsenter_args(&self) -> Vec<String> {
        let pid = self.inner.pid;
        let pids = format!("--pid=/proc/{pid}/ns/pid_for_children");
        ["nsenter", "--target", &pid.to_string(), "--mount", "--net", &pids, "--"].map(str::to_owned).into()
    }
}

impl MachineInner {
    fn is_up(&self) -> bool {
        self.dir.join("up").exists()
    }

    fn ended(&self) -> Result<bool> {
        let mut parent = self.parent.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(parent.try_wait().context("cannot watch the machine's init process")?.is_some())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("machine.log")).unwrap_or_default()
    }

    fn end(&self) -> Result<()> {
        drop(self.parent.lock().unwrap_or_else(PoisonError::into_inner).stdin.take());
        if wait_until("the exit of the machine", STOP_TIMEOUT, || self.ended()).is_err() {
            let mut parent = self.parent.lock().unwrap_or_else(PoisonError::into_inner);
            // `--kill-child`: killing the parent kills the init process and with it all others.
            parent.kill().context("cannot kill the machine")?;
            parent.wait().context("cannot reap the machine")?;
        }
        // The kernel empties a cgroup shortly after the exit of its last process.
        wait_until("the machine's cgroups to be empty", STOP_TIMEOUT, || {
            cgroups::remove(self.node.name()).map(|()| true)
        })
    }

    /// Prints the ends of the logs in /var/log.
    fn print_logs(&self) -> Result<()> {
        let directory = self.dir.join("root/var/log");
        for name in names_in(&directory)?.iter().filter(|name| name.ends_with(".log")) {
            eprintln!("--- end of /var/log/{name}:\n{}", tail(&directory.join(name)));
        }
        Ok(())
    }
}

impl Drop for MachineInner {
    fn drop(&mut self) {
        let printed = if std::thread::panicking() { self.print_logs() } else { Ok(()) };
        for error in [printed, self.end()].into_iter().filter_map(Result::err) {
            eprintln!("machine on {}: {error:#}", self.node.name());
        }
    }
}

/// The last lines of a log; empty if the file is missing.
pub(crate) fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

fn create_root(dir: &Path) -> Result<()> {
    let root = dir.join("root");
    for directory in PRIVATE_DIRS {
        fs::create_dir_all(root.join(directory))
            .with_context(|| format!("cannot create {}/{directory}", root.display()))?;
    }
    let etc = root.join("etc");
    for name in COPIED {
        let from = Path::new("/etc").join(name);
        if from.exists() {
            fs::copy(&from, etc.join(name)).with_context(|| format!("cannot copy {}", from.display()))?;
        }
    }
    for (name, text) in WRITTEN {
        fs::write(etc.join(name), text).with_context(|| format!("cannot write {}/{name}", etc.display()))?;
    }
    Ok(())
}

fn start_init(node: &Node, dir: &Path) -> Result<Child> {
    let log = File::create(dir.join("machine.log")).context("cannot create the machine's log")?;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c", INIT])
        .arg(dir);
    command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
    node.enter(|| command.spawn())?.context("cannot start unshare")
}

pub(crate) fn names_in(directory: &Path) -> Result<Vec<String>> {
    match fs::read_dir(directory) {
        Ok(entries) => Ok(entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(vec![]),
        Err(e) => Err(e).with_context(|| format!("cannot list {}", directory.display())),
    }
}
