//! A node with the tool and the plugin, and an agent for tests that need one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::{Agent, Lab, Node, Outcome, Plugin, copy_program};

pub(crate) struct Host {
    pub(crate) node: Node,
    pub(crate) tool: PathBuf,
    pub(crate) plugin: Plugin,
    /// Last, because its destructor removes the node.
    _lab: Lab,
}

impl Host {
    /// The plugin is beside the tool, as after `make build`.
    pub(crate) fn new(label: &str) -> Self {
        let lab = Lab::new(label).unwrap();
        let node = lab.node("n").unwrap();
        let directory = lab.dir().join("bin");
        fs::create_dir_all(&directory).unwrap();
        let tool = directory.join("podwire");
        copy_program(Path::new(env!("CARGO_BIN_EXE_podwire")), &tool).unwrap();
        let plugin = Plugin::podwire().unwrap();
        copy_program(&plugin.path, &directory.join("podwire-cni")).unwrap();
        Self { node, tool, plugin, _lab: lab }
    }

    /// The tool uses the directories of the node and never those of the host, also if a test does not name them.
    pub(crate) fn run(&self, args: &[&str]) -> Outcome {
        let argv = self.argv(args);
        let outcome = self.node.run(&argv.iter().map(String::as_str).collect::<Vec<_>>(), b"").unwrap();
        expect_width(args, &outcome.stdout, 80);
        outcome
    }

    fn argv(&self, args: &[&str]) -> Vec<String> {
        let runtime = self.runtime();
        let run_dir = self.node.run_dir();
        let directories = [
            ("RUN_DIR", &run_dir),
            ("STATE_DIR", &runtime.state),
            ("INSTALL_PLUGIN_DIR", &runtime.bin),
            ("INSTALL_CONFIG_DIR", &runtime.conf),
        ]
        .map(|(name, path)| format!("PODWIRE_{name}={}", path.display()));
        let mut argv = vec!["env".to_owned()];
        argv.extend(directories);
        argv.push(self.tool.to_str().unwrap().to_owned());
        argv.extend(args.iter().map(|word| (*word).to_owned()));
        argv
    }

    /// The same on a terminal of this width that does not report its height.
    pub(crate) fn on_terminal(&self, columns: usize, variable: &str, args: &[&str]) -> String {
        let run_dir = self.node.run_dir();
        let argv = self.argv(&[args, &["--run-dir", run_dir.to_str().unwrap()]].concat());
        let command = format!("stty rows 0 cols {columns}; {variable} {}", argv.join(" "));
        let outcome = self.node.run(&["script", "-qc", &command, "/dev/null"], b"").unwrap();
        let shown = outcome.stdout.replace("\r\n", "\n");
        expect_width(args, &without_colours(&shown), columns);
        shown
    }

    /// `podwire install` into the directories of the node.
    pub(crate) fn install(&self, args: &[&str]) -> Outcome {
        let runtime = self.runtime();
        self.ask(&[&["install"], args, &runtime.install_flags()[..]].concat())
    }

    /// Writes objects to the store of the agent.
    pub(crate) fn apply(&self, documents: &[Value]) {
        let file = self.node.dir().join("objects.json");
        let text: Vec<String> = documents.iter().map(ToString::to_string).collect();
        fs::write(&file, text.join("\n---\n")).unwrap();
        let applied = self.ask(&["apply", "-f", file.to_str().unwrap()]);
        assert!(applied.success(), "{}", applied.stderr);
    }

    /// `args` with the run directory of the node.
    pub(crate) fn ask(&self, args: &[&str]) -> Outcome {
        let run_dir = self.node.run_dir();
        self.run(&[args, &["--run-dir", run_dir.to_str().unwrap()]].concat())
    }

    /// An agent that is not started yet. Its program is the tested tool.
    pub(crate) fn idle_agent(&self, flags: &[&str]) -> Agent {
        let mut agent = Agent::new(&self.node, flags).unwrap();
        agent.set_program(&self.tool);
        agent
    }

    pub(crate) fn agent(&self, flags: &[&str]) -> Agent {
        let mut agent = self.idle_agent(flags);
        agent.launch().unwrap();
        agent.wait_ready().unwrap();
        agent
    }

    /// A network without an agent.
    pub(crate) fn standalone(&self) -> Value {
        json!({
            "cniVersion": "1.1.0", "name": "pods", "type": "podwire-cni", "bridge": "pw-test0",
            "subnet": "10.50.0.0/24,fd00:50::/64", "ipMasq": true,
            "runDir": self.node.run_dir(), "logFile": self.node.log_file(),
        })
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.node.dir().join("lib")
    }

    /// The directories of a runtime on this node.
    pub(crate) fn runtime(&self) -> Runtime {
        let dir = self.node.dir();
        Runtime { bin: dir.join("opt/cni/bin"), conf: dir.join("etc/cni/net.d"), state: self.state_dir() }
    }
}

/// A runtime's directories.
pub(crate) struct Runtime {
    pub(crate) bin: PathBuf,
    pub(crate) conf: PathBuf,
    pub(crate) state: PathBuf,
}

impl Runtime {
    /// The flags of `podwire install`.
    pub(crate) fn install_flags(&self) -> Vec<&str> {
        self.flags(["--plugin-dir", "--config-dir"], &["--state-dir", self.state.to_str().unwrap()])
    }

    /// The flags of `podwire agent`. Its state directory is set in `Agent::new`.
    pub(crate) fn agent_flags(&self) -> Vec<&str> {
        self.flags(["--install-plugin-dir", "--install-config-dir"], &["--install"])
    }

    fn flags<'a>(&'a self, names: [&'a str; 2], more: &[&'a str]) -> Vec<&'a str> {
        let [bin, conf] = [&self.bin, &self.conf].map(|path| path.to_str().unwrap());
        [&[names[0], bin, names[1], conf], more].concat()
    }

    pub(crate) fn config(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.conf.join(name)).unwrap()).unwrap()
    }
}

/// The config that a runtime passes to the only plugin of a list.
pub(crate) fn plugin_config(list: &Value, node: &Node) -> Value {
    let mut config = list["plugins"][0].clone();
    for key in ["cniVersion", "name"] {
        config[key] = list[key].clone();
    }
    config["logFile"] = json!(node.log_file());
    config
}

pub(crate) fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Without the escape sequences of colours.
pub(crate) fn without_colours(text: &str) -> String {
    text.split("\x1b[").enumerate().fold(String::new(), |plain, (index, part)| match part.split_once('m') {
        Some((_, rest)) if index > 0 => plain + rest,
        Some(_) | None => plain + part,
    })
}

/// Tables and sentences fit the width. Commands and paths are not wrapped, because they are pasted.
#[track_caller]
pub(crate) fn expect_width(args: &[&str], stdout: &str, columns: usize) {
    const PROGRAMS: [&str; 14] = [
        "nft", "ip", "nsenter", "sysctl", "ping", "df", "install", "findmnt", "podwire", "rm", "chmod",
        "chown", "ss", "mv",
    ];
    let is_limited = !["json", "wide", "agent"].iter().any(|word| args.contains(word));
    let is_command = |line: &str| {
        line.starts_with("  ") && PROGRAMS.contains(&line.split_whitespace().next().unwrap_or_default())
    };
    // A line may be too long only because of a path at its end.
    let without_path = |line: &'_ str| match line.rsplit_once(' ') {
        Some((before, last)) if last.trim_start_matches(['`', '\'', '"', '(']).starts_with('/') => {
            before.trim_end().to_owned()
        }
        None if line.starts_with('/') => String::new(),
        Some(_) | None => line.to_owned(),
    };
    let all = stdout.lines().filter(|line| is_limited && !is_command(line));
    for line in all.map(without_path) {
        assert!(line.chars().count() <= columns, "podwire {}: {line:?} in:\n{stdout}", args.join(" "));
    }
}

/// Every phrase is in the text, which may be wrapped anywhere.
#[track_caller]
pub(crate) fn has(text: &str, words: &[&str]) {
    let unwrapped = |text: &str| text.split_whitespace().collect::<String>();
    for word in words {
        let is_contained = text.contains(word) || unwrapped(text).contains(&unwrapped(word));
        assert!(is_contained, "{word:?} in:\n{text}");
    }
}

/// A document of an object of tenant `default`, or of a tenant itself.
pub(crate) fn document(kind: &str, (tenant, name): (&str, &str), spec: &Value) -> Value {
    let metadata = match kind {
        "Tenant" => json!({ "name": name }),
        _ => json!({ "name": name, "tenant": tenant }),
    };
    json!({ "apiVersion": "podwire.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec })
}

/// Group `web` in `default-net` of tenant `default`.
pub(crate) fn group_web() -> Value {
    document("Group", ("default", "web"), &json!({ "network": "default-net" }))
}

/// Tenant `blue` with network `front` and group `web`.
pub(crate) fn tenant_blue() -> [Value; 3] {
    [
        document("Tenant", ("", "blue"), &json!({})),
        document("Network", ("blue", "front"), &json!({ "subnets": ["10.91.0.0/16", "fd00:91::/64"] })),
        document("Group", ("blue", "web"), &json!({ "network": "front" })),
    ]
}
