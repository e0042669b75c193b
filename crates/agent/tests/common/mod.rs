//! Shared by the agent's tests: a node with its agent and the plugin, and helpers for calls and results.

#![allow(dead_code, reason = "each test binary uses only a part of this module")]

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use serde_json::{Value, json};
use testkit::{Agent, Call, CniError, Lab, Node, Plugin, Pod, Verb, inspect, ping};

/// Both attach modes, for table tests.
pub(crate) const MODES: [&str; 2] = ["bridge", "routed"];

/// The subdirectory of a lab in which its agent finds IPAM plugins. The plugins that it may run follow.
pub(crate) const DELEGATES: &str = "delegates";
const DELEGATE_PLUGINS: &str = "blocking-ipam,host-local,copy,through";

/// A lab with one node and its agent. The agent is stopped before its node is removed.
pub(crate) struct Host {
    pub(crate) agent: Agent,
    pub(crate) plugin: Plugin,
    pub(crate) node: Node,
    pub(crate) lab: Lab,
}

impl Host {
    /// Starts an agent with default settings (mode `routed`, both families).
    pub(crate) fn new(label: &str) -> Self {
        Self::with_flags(label, &[])
    }

    /// Starts an agent with these additional flags.
    pub(crate) fn with_flags(label: &str, flags: &[&str]) -> Self {
        let lab = Lab::new(label).unwrap();
        let node = lab.node("n1").unwrap();
        let directory = lab.dir().join(DELEGATES).display().to_string();
        let delegates = ["--delegate-directories", &directory, "--delegate-plugins", DELEGATE_PLUGINS];
        let flags: Vec<&str> = ["--no-install"].iter().chain(&delegates).chain(flags).copied().collect();
        let agent = Agent::start(&node, &flags).unwrap();
        Self { agent, plugin: Plugin::podwire().unwrap(), node, lab }
    }

    /// The config of the agent's network, with these keys added or replaced.
    pub(crate) fn config(&self, more: &Value) -> Value {
        self.agent.config(more)
    }

    pub(crate) fn pod(&self, name: &str) -> Pod {
        self.node.pod(name).unwrap()
    }

    /// An attached pod and the result of its ADD.
    pub(crate) fn attached(&self, name: &str) -> (Pod, Value) {
        let pod = self.pod(name);
        let result = self.add(&pod);
        (pod, result)
    }

    /// ADD to the agent's network, which must succeed.
    pub(crate) fn add(&self, pod: &Pod) -> Value {
        self.add_with(pod, &json!({}))
    }

    /// ADD with these additional keys in the config, which must succeed.
    pub(crate) fn add_with(&self, pod: &Pod, more: &Value) -> Value {
        self.plugin.add(pod, &self.config(more)).unwrap().ok().unwrap()
    }

    /// ADD, which must fail.
    pub(crate) fn refused(&self, pod: &Pod) -> CniError {
        self.plugin.add(pod, &self.config(&json!({}))).unwrap().error().unwrap()
    }

    /// DEL, which must succeed and print nothing.
    pub(crate) fn del(&self, pod: &Pod) {
        let deleted = self.plugin.del(pod, &self.config(&json!({}))).unwrap();
        assert_eq!(deleted.ok().unwrap(), Value::Null);
    }

    /// CHECK with the ADD's result, which must succeed.
    #[track_caller]
    pub(crate) fn check(&self, pod: &Pod, result: &Value) {
        let checked = self.plugin.check(pod, &self.config(&json!({})), result).unwrap();
        assert!(checked.success(), "{}: {checked:?}", pod.id());
    }

    /// A call for another interface of a pod.
    pub(crate) fn call_on(&self, verb: Verb, (pod, ifname): (&Pod, &str)) -> testkit::Outcome {
        let call = Call::pod(verb, pod, &self.config(&json!({})));
        self.plugin.call(&self.node, &Call { ifname: Some(ifname.to_owned()), ..call }).unwrap()
    }

    /// Records, claims and tombstones of the run directory.
    pub(crate) fn state_entries(&self) -> BTreeSet<String> {
        state_entries(self.agent.run_dir())
    }

    /// Both pods reach each other in both families.
    #[track_caller]
    pub(crate) fn expect_connectivity(
        &self,
        (pod, result): (&Pod, &Value),
        (other, other_result): (&Pod, &Value),
    ) {
        for (from, to) in [(pod, other_result), (other, result)] {
            for ip in ips(to) {
                assert!(ping(from, ip, 1).unwrap().all(), "{} does not reach {ip}", from.name());
            }
        }
    }
}

/// The records, claims and tombstones in a run directory, each as `network/kind/name`.
pub(crate) fn state_entries(run_dir: &Path) -> BTreeSet<String> {
    let names = |dir: &Path| -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let networks = run_dir.join("networks");
    let mut entries: BTreeSet<String> =
        names(&run_dir.join("tombstones")).iter().map(|name| format!("tombstones/{name}")).collect();
    for network in names(&networks) {
        for kind in ["attachments", "addresses"] {
            let of_kind = names(&networks.join(&network).join(kind));
            entries.extend(of_kind.into_iter().map(|name| format!("{network}/{kind}/{name}")));
        }
    }
    entries
}

/// Removes a directory atomically, because a process that watches it may create files while it is being emptied.
pub(crate) fn remove_dir_atomically(dir: &Path) {
    let renamed = dir.with_extension("removed");
    fs::rename(dir, &renamed).unwrap();
    fs::remove_dir_all(&renamed).unwrap();
}

/// The object with more keys at its top level, which take precedence. Null values remove keys.
pub(crate) fn with(object: &Value, more: &Value) -> Value {
    let mut object = object.as_object().unwrap().clone();
    for (key, value) in more.as_object().unwrap() {
        match value {
            Value::Null => object.remove(key),
            value => object.insert(key.clone(), value.clone()),
        };
    }
    Value::Object(object)
}

/// The addresses of a result, without prefix lengths.
pub(crate) fn ips(result: &Value) -> Vec<IpAddr> {
    let all = result["ips"].as_array().unwrap();
    all.iter().map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap()).collect()
}

pub(crate) fn v4(result: &Value) -> IpAddr {
    ips(result).into_iter().find(IpAddr::is_ipv4).unwrap()
}

pub(crate) fn v6(result: &Value) -> IpAddr {
    ips(result).into_iter().find(IpAddr::is_ipv6).unwrap()
}

/// The name of the host end in a result.
pub(crate) fn host_link(result: &Value) -> &str {
    let all = result["interfaces"].as_array().unwrap();
    all.iter()
        .find_map(|i| i["name"].as_str().filter(|name| name.starts_with("pw") && i["sandbox"].is_null()))
        .unwrap()
}

/// The addresses of the pod's link, without the kernel's link-local ones.
pub(crate) fn addresses_of(pod: &Pod, ifname: &str) -> BTreeSet<IpAddr> {
    let all = inspect::addresses(pod, ifname).unwrap();
    all.iter().filter(|a| a.scope != "link").map(|a| a.net.addr()).collect()
}
