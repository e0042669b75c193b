//! A machine with containerd and an agent that installed the plugin.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use runtime::{Machine, RunningPod, Service, Stop};
use serde_json::Value;
use testkit::{DEADLINE, Lab, Plugin, wait_until};

use crate::common::{Testbed, Traces};

pub(crate) const CONFIG: &str = "/etc/cni/net.d/10-podwire.conflist";
pub(crate) const PLUGIN: &str = "/opt/cni/bin/podwire-cni";
pub(crate) const LOOPBACK: &str = "/opt/cni/bin/loopback";
const NETWORK: &str = "/run/podwire/networks/podwire";
/// Timeout of all waits in these tests.
pub(crate) const TIMEOUT: Duration = DEADLINE;
/// Timeout of one API request.
const REQUEST_TIMEOUT: Duration = DEADLINE;

/// Paths of the agent and the plugin on the machine.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) podwire: PathBuf,
    pub(crate) plugin: PathBuf,
}

impl Programs {
    pub(crate) fn built(lab: &Lab) -> Self {
        // This agent is never started; it only provides the path of the program.
        let podwire = testkit::Agent::new(&lab.node("programs").unwrap(), &[]).unwrap().program().to_owned();
        Self { podwire, plugin: Plugin::podwire().unwrap().path }
    }
}

/// Fields are dropped from top to bottom.
pub(crate) struct Site {
    pub(crate) agent: Service,
    pub(crate) programs: Programs,
    pub(crate) testbed: Testbed,
}

impl Site {
    pub(crate) fn new(label: &str) -> Self {
        let testbed = Testbed::without_network(label);
        let programs = Programs::built(&testbed.lab);
        Self::in_testbed(testbed, programs)
    }

    pub(crate) fn in_testbed(testbed: Testbed, programs: Programs) -> Self {
        let agent = start_agent(&testbed.machine, &programs).unwrap();
        let site = Self { agent, programs, testbed };
        site.wait_until_ready();
        site
    }

    /// Waits until the agent and the runtime are ready.
    pub(crate) fn wait_until_ready(&self) {
        wait_for_agent(&self.testbed.machine).unwrap();
        self.testbed.wait_until_ready();
    }

    pub(crate) fn restart_agent(&mut self, how: Stop) {
        self.agent.stop(how).unwrap();
        self.agent.launch().unwrap();
        wait_for_agent(&self.testbed.machine).unwrap();
    }

    /// Runs a `podwire` command on the machine, which must succeed, and returns stdout.
    pub(crate) fn podwire(&self, args: &[&str]) -> String {
        let program = self.programs.podwire.to_str().unwrap();
        self.testbed.machine.sh(&[&[program], args].concat()).unwrap()
    }

    /// The attachment records according to `podwire pods`.
    pub(crate) fn pods(&self) -> Vec<Value> {
        let pods: Value = serde_json::from_str(&self.podwire(&["pods", "-o", "json"])).unwrap();
        pods["attachments"].as_array().unwrap().iter().map(|pod| pod["record"].clone()).collect()
    }

    /// Path of the pod's network namespace.
    pub(crate) fn netns(&self, pod: &RunningPod) -> String {
        let pods = self.pods();
        let attachment = pods.iter().find(|attachment| attachment["containerId"] == pod.sandbox.as_str());
        attachment.and_then(|attachment| attachment["netns"].as_str()).unwrap().to_owned()
    }

    pub(crate) fn status(&self) -> Value {
        get_json(&self.testbed.machine, api::STATUS).unwrap()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.agent.log_file()).unwrap()
    }

    /// Claimed addresses, from the file names in Podwire's state directory.
    pub(crate) fn claims(&self) -> Vec<String> {
        names(&self.testbed.machine, &format!("{NETWORK}/addresses"))
    }

    pub(crate) fn tombstones(&self) -> Vec<String> {
        names(&self.testbed.machine, "/run/podwire/tombstones")
    }

    /// Compares kernel, machine and Podwire's state with `before`, and checks that the agent has no pending work.
    pub(crate) fn expect_nothing_left(&self, before: &Traces) {
        wait_until("processing of the tombstones", TIMEOUT, || Ok(self.tombstones().is_empty())).unwrap();
        before.expect_same(&self.testbed);
        assert_eq!(self.claims(), Vec::<String>::new());
        let status = self.status();
        for block in status["network"]["blocks"].as_array().unwrap() {
            assert_eq!(block["used"], 0, "{status:#}");
        }
        assert_eq!(status["conditions"], serde_json::json!([]), "{status:#}");
    }
}

/// Starts the agent as systemd does: with a clean environment and default paths.
pub(crate) fn start_agent(machine: &Machine, programs: &Programs) -> Result<Service> {
    start_agent_with(machine, programs, &[])
}

pub(crate) fn start_agent_with(machine: &Machine, programs: &Programs, flags: &[&str]) -> Result<Service> {
    let text = |path: &PathBuf| path.to_str().map(str::to_owned).context("the path is not UTF-8");
    let (podwire, plugin) = (text(&programs.podwire)?, text(&programs.plugin)?);
    let path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
    let argv = ["env", "-i", path, &podwire, "agent", "--install", "--install-plugin", &plugin];
    Service::start(machine, "agent", &[&argv, flags].concat())
}

pub(crate) fn wait_for_agent(machine: &Machine) -> Result<()> {
    wait_until("the agent to be ready", DEADLINE, || get_json(machine, api::READY).map(|_| true))
}

fn get_json(machine: &Machine, what: &str) -> Result<Value> {
    let client = api::Client::new(&machine.path("/run/podwire/agent.sock"));
    let answer = client.get(what, REQUEST_TIMEOUT)?;
    let text = String::from_utf8_lossy(&answer.body);
    ensure!(answer.status == 200, "{what}: {} {text}", answer.status);
    serde_json::from_str(&text).with_context(|| format!("{what} did not return JSON: {text:?}"))
}

/// Sorted names in a directory of the machine; empty if it is missing.
pub(crate) fn names(machine: &Machine, directory: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(machine.path(directory)) else { return vec![] };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
