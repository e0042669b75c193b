//! Runs the commands of a page, in order, on one machine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use runtime::Machine;
use testkit::docs::{self, Fence, Page};
use testkit::{DEADLINE, Lab, Plugin, copy_program, wait_until};

use crate::compare;

pub(crate) const HOW_TO_RECORD: &str =
    "if the new output is right, run `PODWIRE_RECORD=1 cargo test -p runtime recorded`";
/// A checkout of the project after `make build`, as the machine sees it.
const CHECKOUT: &str = "/var/lib/checkout";
/// While recording, output counts as final if it did not change for so long. A lease lasts 15 s.
const SETTLED: Duration = Duration::from_secs(18);
/// Recording continues after this time, whether the output settled or not.
const LONGEST: Duration = Duration::from_secs(60);
/// Commands that only show the state. Their output follows events, so it is awaited.
const OBSERVING: [&str; 8] =
    ["status", "pods", "nodes", "routes", "blocks", "doctor", "lab test", "lab status"];
/// A replacement of `systemctl` with the commands that the pages use. It starts and stops the agent without systemd.
const SYSTEMCTL: &str = r#"#!/bin/sh
set -eu
case "$*" in
  daemon-reload) ;;
  "enable --now podwire")
    test -e /etc/systemd/system/podwire.service
    setsid podwire agent >/var/log/agent.log 2>&1 </dev/null &
    echo $! >/run/agent.pid
    until podwire status >/dev/null 2>&1; do kill -0 "$(cat /run/agent.pid)"; sleep 0.1; done ;;
  "disable --now podwire")
    kill "$(cat /run/agent.pid)"
    while kill -0 "$(cat /run/agent.pid)" 2>/dev/null; do sleep 0.1; done ;;
  *) echo "systemctl $*: not part of the pages" >&2; exit 1 ;;
esac
"#;

/// Which programs a machine has at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Programs {
    /// Only in the checkout, in target/release.
    Built,
    /// Also in /usr/local/bin.
    Installed,
}

/// Dropped from top to bottom.
pub(crate) struct Session {
    machine: Machine,
    _lab: Lab,
}

/// A command of a page with the output that the page shows.
struct Shown<'a> {
    place: String,
    node: Option<&'a str>,
    command: &'a str,
    output: &'a [String],
}

/// What the page should show of a command or a block.
struct CheckedText {
    lines: Vec<String>,
    /// Whether the page shows something else.
    has_changed: bool,
}

/// A part of a page that runs.
enum Step {
    Setup(String),
    Block(Fence),
}

pub(crate) fn is_recording() -> bool {
    std::env::var_os("PODWIRE_RECORD").is_some()
}

impl Session {
    pub(crate) fn new(label: &str, programs: Programs) -> Self {
        let lab = Lab::new(label).unwrap();
        let node = lab.node("n").unwrap();
        let podwire = testkit::Agent::new(&lab.node("programs").unwrap(), &[]).unwrap().program().to_owned();
        let machine = Machine::new(&node).unwrap();
        let checkout = machine.path(CHECKOUT);
        let installed = machine.path("/var/lib/usr-local-bin");
        let built = checkout.join("target/release");
        for dir in [&built, &installed, &checkout.join("shims"), &machine.path("/etc/systemd/system")] {
            fs::create_dir_all(dir).unwrap();
        }
        for (program, name) in [(podwire, "podwire"), (Plugin::podwire().unwrap().path, "podwire-cni")] {
            copy_program(&program, &built.join(name)).unwrap();
            if programs == Programs::Installed {
                copy_program(&program, &installed.join(name)).unwrap();
            }
        }
        let shim = checkout.join("shims/systemctl");
        fs::write(&shim, SYSTEMCTL).unwrap();
        fs::set_permissions(&shim, fs::Permissions::from_mode(0o755)).unwrap();
        machine.sh(&["cp", "-r", docs::root().join("deploy").to_str().unwrap(), CHECKOUT]).unwrap();
        machine.sh(&["mount", "--bind", "/var/lib/usr-local-bin", "/usr/local/bin"]).unwrap();
        machine.sh(&["ip", "link", "set", "lo", "up"]).unwrap();
        Self { machine, _lab: lab }
    }

    /// Runs all commands of the page and compares. Gives the page, with new output where it was recorded.
    pub(crate) fn check(&mut self, page: Page) -> Page {
        let setups = page.setup_commands().into_iter().map(|(line, command)| (line, Step::Setup(command)));
        let is_session = |fence: &Fence| fence.language() == "console";
        let blocks =
            page.fences().into_iter().filter(is_session).map(|fence| (fence.start, Step::Block(fence)));
        let mut steps: Vec<(usize, Step)> = setups.chain(blocks).collect();
        steps.sort_by_key(|(line, _)| *line);
        let mut lines: Vec<String> = page.text.lines().map(str::to_owned).collect();
        // Blocks become longer or shorter.
        let mut recorded: Vec<(Fence, Vec<String>)> = Vec::new();
        let mut has_changed = false;
        for (line, step) in steps {
            match step {
                Step::Setup(command) => {
                    let (output, success) = self.run(None, &command);
                    assert!(success, "{}:{}: {command}: {output}", page.path.display(), line + 1);
                }
                Step::Block(fence) => {
                    let block = self.block(&page, &fence);
                    has_changed |= block.has_changed;
                    recorded.push((fence, block.lines));
                }
            }
        }
        // Addresses and times differ between runs, so the outputs of a page are all from one run.
        if has_changed {
            for (fence, text) in recorded.into_iter().rev() {
                lines.splice(fence.start..fence.start + fence.lines.len(), text);
            }
        }
        let text: String = lines.into_iter().map(|line| line + "\n").collect();
        if is_recording() {
            fs::write(docs::root().join(&page.path), &text).unwrap();
        }
        Page { text, ..page }
    }

    fn block(&self, page: &Page, fence: &Fence) -> CheckedText {
        let node = fence.info.split_whitespace().nth(1);
        let mut block = CheckedText { lines: Vec::new(), has_changed: false };
        let mut rest = fence.lines.as_slice();
        while let Some((first, after)) = rest.split_first() {
            let command = first.strip_prefix("$ ").unwrap_or_else(|| panic!("{first:?} is no command"));
            let length = after.iter().position(|line| line.starts_with("$ ")).unwrap_or(after.len());
            let (shown, next) = after.split_at(length);
            rest = next;
            block.lines.push(first.clone());
            let place = format!("{}:{}: {command}", page.path.display(), fence.start);
            let outcome = self.command(&Shown { place, node, command, output: shown });
            block.lines.extend(outcome.lines);
            block.has_changed |= outcome.has_changed;
        }
        block
    }

    fn command(&self, shown: &Shown<'_>) -> CheckedText {
        let Shown { ref place, node, command, output: shown } = *shown;
        let may_wait = OBSERVING.iter().any(|words| {
            command.starts_with(&format!("podwire {words}")) || command.contains(&format!(" podwire {words}"))
        });
        let expected = shown.join("\n");
        let mut output = self.run(node, command).0;
        if is_recording() {
            let begin = Instant::now();
            let mut since = begin;
            while may_wait && since.elapsed() < SETTLED && begin.elapsed() < LONGEST {
                std::thread::sleep(Duration::from_secs(1));
                let next = self.run(node, command).0;
                if !compare::is_same(&output, &next) {
                    since = Instant::now();
                }
                output = next;
            }
            let has_changed = !compare::is_same(&expected, &output);
            return CheckedText { lines: record(&output, shown), has_changed };
        }
        if may_wait {
            // A failure is reported below, with both texts.
            let _ = wait_until("the output that the page shows", DEADLINE, || {
                let is_same = compare::is_same(&expected, &output);
                if !is_same {
                    output = self.run(node, command).0;
                }
                Ok(is_same)
            });
        }
        assert!(
            compare::is_same(&expected, &output),
            "{place}\n--- the page shows:\n{expected}\n--- the command prints:\n{output}\n--- {HOW_TO_RECORD}"
        );
        CheckedText { lines: shown.to_vec(), has_changed: false }
    }

    /// Output of both streams, and whether it succeeded.
    fn run(&self, node: Option<&str>, command: &str) -> (String, bool) {
        let path = format!("PATH={CHECKOUT}/shims:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        let script = format!("exec 2>&1 </dev/null; cd {CHECKOUT}; {command}");
        let mut argv = vec!["env", &path, "HOME=/root"];
        if let Some(node) = node {
            argv.extend(["podwire", "lab", "exec", node, "--"]);
        }
        argv.extend(["bash", "-c", &script]);
        let outcome = self.machine.run(&argv).unwrap();
        let output = outcome.stdout.clone() + &outcome.stderr;
        (compare::with_fixed_names(output.trim_end()), outcome.success())
    }
}

/// The new output. If the page showed only the first lines, so many are shown again.
fn record(output: &str, shown: &[String]) -> Vec<String> {
    let lines = output.lines().map(str::to_owned);
    match shown.split_last() {
        Some((last, first)) if last == compare::ANY => {
            lines.take(first.len()).chain([last.clone()]).collect()
        }
        Some(_) | None => lines.collect(),
    }
}
