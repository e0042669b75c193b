//! A lab for one test. It is removed when the test ends.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub(crate) struct Lab {
    name: String,
}

impl Lab {
    /// The name contains the process ID, because tests run in parallel.
    pub(crate) fn new(label: &str) -> Self {
        Self { name: format!("t{}_{label}", std::process::id()) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_podwire"));
        command.args(["lab", "--name", &self.name]).args(args);
        command
    }

    /// Tables and sentences have at most 80 columns. Commands are not wrapped, because they are pasted.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        let output = self.command(args).output().unwrap();
        let is_limited = !["json", "wide", "exec", "logs"].iter().any(|word| args.contains(word));
        let (out, _) = texts(&output);
        for line in out.lines().filter(|line| is_limited && !line.starts_with("  podwire lab ")) {
            assert!(line.chars().count() <= 80, "podwire lab {args:?}: {line:?} in:\n{out}");
        }
        output
    }

    /// stdout of a command that must succeed.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let (out, err) = texts(&output);
        assert!(output.status.success(), "podwire lab {args:?}: {}\n{out}{err}", output.status);
        out
    }

    /// stderr of a command that must exit with 1.
    pub(crate) fn fails(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "podwire lab {args:?}: {out}{err}");
        err
    }

    /// stderr of a command that must exit with 2.
    pub(crate) fn misused(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "podwire lab {args:?}: {out}{err}");
        err
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let (out, err) = texts(&self.run(&[args, &["-o", "json"]].concat()));
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"))
    }

    /// Nodes and state of this lab in `podwire lab ls`.
    pub(crate) fn listed(&self) -> (Value, Value) {
        let labs = self.json(&["ls"])["labs"].as_array().unwrap().clone();
        let own = labs.into_iter().find(|lab| lab["name"] == self.name());
        own.map_or_else(Default::default, |lab| (lab["nodes"].clone(), lab["state"].clone()))
    }

    /// stdout of a command on a terminal of 60 columns.
    pub(crate) fn on_terminal(&self, args: &str) -> String {
        let program = env!("CARGO_BIN_EXE_podwire");
        let line = format!("stty rows 24 cols 60; {program} lab --name {} {args}", self.name());
        let output = Command::new("script").args(["-qc", &line, "/dev/null"]).stdin(Stdio::null()).output();
        texts(&output.unwrap()).0.replace("\r\n", "\n")
    }

    pub(crate) fn dir(&self) -> PathBuf {
        Path::new("/var/lib/podwire-lab").join(&self.name)
    }

    /// The command line for this lab, as messages and fixes name it.
    pub(crate) fn command_line(&self, args: &str) -> String {
        format!("podwire lab --name {} {args}", self.name)
    }

    /// The number of processes with this variable set to a value of this lab.
    pub(crate) fn traces_of(&self, variable: &str) -> usize {
        let prefix = format!("{variable}=pwlab-{}-", self.name);
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let environments = processes.filter_map(|process| std::fs::read(process.path().join("environ")).ok());
        let has =
            |text: &Vec<u8>| text.split(|byte| *byte == 0).any(|entry| entry.starts_with(prefix.as_bytes()));
        environments.filter(has).count()
    }

    /// Directory, namespaces and processes of the lab.
    pub(crate) fn traces(&self) -> Vec<String> {
        let prefix = format!("pwlab-{}-", self.name);
        let mut found: Vec<String> = self.namespaces().map(|name| format!("namespace {name}")).collect();
        found.extend(self.dir().exists().then(|| self.dir().display().to_string()));
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            // All processes of a lab have its directory or a namespace in their command line.
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let dir = format!("{}/", self.dir().display());
            if line.contains(&dir) || line.contains(&prefix) {
                found.push(format!("process {line}"));
            }
        }
        found
    }

    pub(crate) fn namespaces(&self) -> impl Iterator<Item = String> {
        let prefix = format!("pwlab-{}-", self.name);
        let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
        names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(move |name| name.starts_with(&prefix))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // A successful test has already removed the lab.
        let _ = self.command(&["down"]).output();
    }
}

pub(crate) fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Every phrase is in the text, which may be wrapped anywhere.
pub(crate) fn has(text: &str, words: &[&str]) {
    let unwrapped = |text: &str| text.split_whitespace().collect::<String>();
    for word in words {
        let is_contained = text.contains(word) || unwrapped(text).contains(&unwrapped(word));
        assert!(is_contained, "{word:?} in:\n{text}");
    }
}
