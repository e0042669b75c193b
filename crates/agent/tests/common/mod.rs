//! What the agent's tests share: a node with its agent and the plugin, and short ways to call and to read results.

#![allow(dead_code, reason = "every test binary uses only a part of what they share")]

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use serde_json::{Value, json};
use testkit::{Agent, Call, CniError, Lab, Node, Plugin, Pod, Verb, inspect, ping};

/// Both attach modes, for tables of cases.
pub(crate) const MODES: [&str; 2] = ["bridge", "routed"];

/// The directory in a lab's where its agent looks for IPAM plugins, and those that it may run.
pub(crate) const DELEGATES: &str = "delegates";
const DELEGATE_PLUGINS: &str = "gate-ipam,host-local,copy,through";

/// A lab with one node and its agent. The agent ends before its node does.
pub(crate) struct Host {
    pub(crate) agent: Agent,
    pub(crate) plugin: Plugin,
    pub(crate) node: Node,
    pub(crate) lab: Lab,
}

impl Host {
    /// With an agent on its defaults (mode `routed`, both families).
    pub(crate) fn new(label: &str) -> Self {
        Self::with_flags(label, &[])
    }

    /// With an agent that was given these flags besides.
    pub(crate) fn with_flags(label: &str, flags: &[&str]) -> Self {
        let lab = Lab::new(label).unwrap();
        let node = lab.node("n1").unwrap();
        let directory = lab.dir().join(DELEGATES).display().to_string();
        let delegates = ["--delegate-directories", &directory, "--delegate-plugins", DELEGATE_PLUGINS];
        let flags: Vec<&str> = ["--no-install"].iter().chain(&delegates).chain(flags).copied().collect();
        let agent = Agent::start(&node, &flags).unwrap();
        Self { agent, plugin: Plugin::podwire().unwrap(), node, lab }
    }

    /// The agent's own network, with these keys besides or instead.
    pub(crate) fn config(&self, more: &Value) -> Value {
        self.agent.config(more)
    }

    pub(crate) fn pod(&self, name: &str) -> Pod {
        self.node.pod(name).unwrap()
    }

    /// A pod that is attached already, and the result.
    pub(crate) fn attached(&self, name: &str) -> (Pod, Value) {
        let pod = self.pod(name);
        let result = self.add(&pod);
        (pod, result)
    }

    /// ADD to the agent's own network, which must succeed.
    pub(crate) fn add(&self, pod: &Pod) -> Value {
        self.add_with(pod, &json!({}))
    }

    /// The same with these keys in the config.
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

    /// A call about another interface of a pod.
    pub(crate) fn call_on(&self, verb: Verb, (pod, ifname): (&Pod, &str)) -> testkit::Outcome {
        let call = Call::pod(verb, pod, &self.config(&json!({})));
        self.plugin.call(&self.node, &Call { ifname: Some(ifname.to_owned()), ..call }).unwrap()
    }

    /// Records, claims and tombstones of the run directory.
    pub(crate) fn held(&self) -> BTreeSet<String> {
        held(self.agent.run_dir())
    }

    /// Both ends answer each other, in both families.
    #[track_caller]
    pub(crate) fn expect_talk(&self, (pod, result): (&Pod, &Value), (other, others): (&Pod, &Value)) {
        for (from, to) in [(pod, others), (other, result)] {
            for ip in ips(to) {
                assert!(ping(from, ip, 1).unwrap().all(), "{} does not reach {ip}", from.name());
            }
        }
    }
}

/// The records, claims and tombstones under a run directory, each as `network/kind/name`.
pub(crate) fn held(run_dir: &Path) -> BTreeSet<String> {
    let names = |dir: &Path| -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let networks = run_dir.join("networks");
    let mut held: BTreeSet<String> =
        names(&run_dir.join("tombstones")).iter().map(|name| format!("tombstones/{name}")).collect();
    for network in names(&networks) {
        for kind in ["attachments", "addresses"] {
            let of_kind = names(&networks.join(&network).join(kind));
            held.extend(of_kind.into_iter().map(|name| format!("{network}/{kind}/{name}")));
        }
    }
    held
}

/// Takes a directory away in one step: whoever watches it may put things back while it is being emptied.
pub(crate) fn take_away(dir: &Path) {
    let aside = dir.with_extension("taken-away");
    fs::rename(dir, &aside).unwrap();
    fs::remove_dir_all(&aside).unwrap();
}

/// The object with more keys at its top level, which win. Those that are null are removed.
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

/// The addresses that the pod's link really has, without the kernel's own link-local ones.
pub(crate) fn addresses_of(pod: &Pod, ifname: &str) -> BTreeSet<IpAddr> {
    let all = inspect::addresses(pod, ifname).unwrap();
    all.iter().filter(|a| a.scope != "link").map(|a| a.net.addr()).collect()
}
