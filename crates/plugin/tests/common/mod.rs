//! Shared helpers: a node with the plugin, configs with paths inside the node's directory, and functions for calls and results.

#![allow(dead_code, reason = "each test binary uses only a part of the shared helpers")]

use std::net::IpAddr;

use serde_json::{Value, json};
use testkit::{Call, CniError, Lab, Node, Outcome, Plugin, Pod, Verb, with_prev_result};

/// Both attach modes.
pub(crate) const MODES: [&str; 2] = ["bridge", "routed"];
/// A subnet of each family.
pub(crate) const DUAL: &str = "10.88.0.0/24,fd00:88::/64";

/// A lab with one node.
pub(crate) struct Host {
    pub(crate) plugin: Plugin,
    pub(crate) node: Node,
    pub(crate) lab: Lab,
}

impl Host {
    pub(crate) fn new(label: &str) -> Self {
        let lab = Lab::new(label).unwrap();
        let node = lab.node("n1").unwrap();
        Self { plugin: Plugin::podwire().unwrap(), node, lab }
    }

    /// Network `blue` on bridge `pw0`. Keys of `more` are added or replaced, keys with the value null are removed.
    pub(crate) fn config(&self, more: &Value) -> Value {
        config_on(&self.node, more)
    }

    pub(crate) fn pod(&self, name: &str) -> Pod {
        self.node.pod(name).unwrap()
    }

    /// A new attached pod and the result of the ADD.
    pub(crate) fn attached(&self, name: &str, config: &Value) -> (Pod, Value) {
        let pod = self.pod(name);
        let result = self.add(&pod, config);
        (pod, result)
    }

    /// Expects the ADD to succeed.
    pub(crate) fn add(&self, pod: &Pod, config: &Value) -> Value {
        self.plugin.add(pod, config).unwrap().ok().unwrap()
    }

    /// Expects the ADD to fail.
    pub(crate) fn refused(&self, pod: &Pod, config: &Value) -> CniError {
        self.plugin.add(pod, config).unwrap().error().unwrap()
    }

    /// Expects the DEL to succeed and to print nothing.
    pub(crate) fn del(&self, pod: &Pod, config: &Value) {
        assert_eq!(self.plugin.del(pod, config).unwrap().ok().unwrap(), Value::Null);
    }

    pub(crate) fn check(&self, pod: &Pod, config: &Value, previous: &Value) -> Result<(), CniError> {
        verdict(&self.plugin.check(pod, config, previous).unwrap())
    }

    /// CHECK with this container id in the pod's namespace.
    pub(crate) fn check_as(
        &self,
        (pod, container): (&Pod, &str),
        config: &Value,
        previous: &Value,
    ) -> Result<(), CniError> {
        let call = Call::pod(Verb::Check, pod, &with_previous(config, previous));
        verdict(
            &self.plugin.call(&self.node, &Call { container: Some(container.to_owned()), ..call }).unwrap(),
        )
    }

    /// A call for an interface of a pod.
    pub(crate) fn call_on(&self, verb: Verb, (pod, ifname): (&Pod, &str), config: &Value) -> Outcome {
        let call = Call { ifname: Some(ifname.to_owned()), ..Call::pod(verb, pod, config) };
        self.plugin.call(&self.node, &call).unwrap()
    }
}

pub(crate) fn config_on(node: &Node, more: &Value) -> Value {
    let base = json!({
        "cniVersion": "1.1.0", "name": "blue", "type": "podwire-cni", "bridge": "pw0",
        "runDir": node.run_dir(), "logFile": node.log_file(),
    });
    with(&base, more)
}

/// The outcome of a CHECK: no output, or an error object.
pub(crate) fn verdict(outcome: &Outcome) -> Result<(), CniError> {
    if outcome.success() {
        assert_eq!(outcome.stdout, "", "a successful CHECK printed something");
        return Ok(());
    }
    Err(outcome.error().unwrap())
}

/// Adds or replaces the keys of `more`. Keys with the value null are removed.
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

pub(crate) fn with_previous(config: &Value, result: &Value) -> Value {
    with_prev_result(config, result).unwrap()
}

/// The words of a command line without quoting.
pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
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

/// The addresses of a result with prefix lengths, as text.
pub(crate) fn nets(result: &Value) -> Vec<&str> {
    result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap()).collect()
}

/// The name of the host end in a result.
pub(crate) fn host_link(result: &Value) -> &str {
    result["interfaces"][1]["name"].as_str().unwrap()
}
