use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::call::{with_prev_result, with_valid_attachments};
use crate::{Call, DEADLINE, Ns, Outcome, Pod, RunningProgram, Verb, program, search_path};

/// Directory of the reference plugins in Debian's package containernetworking-plugins.
pub const REFERENCE_DIR: &str = "/usr/lib/cni";
const BINARY: &str = "podwire-cni";
const OVERRIDE: &str = "PODWIRE_CNI";

/// A CNI plugin's executable.
#[derive(Debug, Clone)]
pub struct Plugin {
    pub path: PathBuf,
}

impl Plugin {
    /// Podwire's plugin: the value of PODWIRE_CNI, or the file next to this program.
    pub fn podwire() -> Result<Self> {
        Ok(Self { path: program::find(BINARY, OVERRIDE)? })
    }

    /// Calls the plugin inside the node's namespace and waits for its exit.
    pub fn call(&self, node: &Ns, call: &Call) -> Result<Outcome> {
        self.spawn(node, call)?.wait(DEADLINE).with_context(|| self.title(call))
    }

    /// Starts the plugin without waiting for it.
    pub fn spawn(&self, node: &Ns, call: &Call) -> Result<RunningProgram> {
        node.start(self.command(call), call.stdin.clone()).with_context(|| self.title(call))
    }

    pub fn add(&self, pod: &Pod, config: &Value) -> Result<Outcome> {
        self.call(pod.node(), &Call::pod(Verb::Add, pod, config))
    }

    pub fn del(&self, pod: &Pod, config: &Value) -> Result<Outcome> {
        self.call(pod.node(), &Call::pod(Verb::Del, pod, config))
    }

    /// CHECK with the result of the ADD, as the specification requires.
    pub fn check(&self, pod: &Pod, config: &Value, prev: &Value) -> Result<Outcome> {
        self.call(pod.node(), &Call::pod(Verb::Check, pod, &with_prev_result(config, prev)?))
    }

    /// GC with the valid attachments, each as container ID and interface name.
    pub fn gc(&self, node: &Ns, config: &Value, valid: &[(&str, &str)]) -> Result<Outcome> {
        self.call(node, &Call::network(Verb::Gc, &with_valid_attachments(config, valid)?))
    }

    pub fn status(&self, node: &Ns, config: &Value) -> Result<Outcome> {
        self.call(node, &Call::network(Verb::Status, config))
    }

    pub fn version(&self, node: &Ns) -> Result<Outcome> {
        self.call(node, &Call::network(Verb::Version, &json!({"cniVersion": "1.1.0"})))
    }

    /// The environment contains only the specified variables and PATH, so that the test's own variables do not leak in.
    pub fn command(&self, call: &Call) -> Command {
        let own_dir = self.path.parent().unwrap_or(Path::new("/"));
        let mut command = Command::new(&self.path);
        command.env_clear();
        command.env("PATH", search_path());
        command.env("CNI_PATH", format!("{REFERENCE_DIR}:{}", own_dir.display()));
        command.envs(call.variables());
        command
    }

    pub fn title(&self, call: &Call) -> String {
        format!("{} of {}", call.verb.as_str(), self.path.display())
    }
}
