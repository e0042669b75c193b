//! What the plugin's tests share: a node with the plugin on it, configs that stay inside the node's own directory, and short
//! ways to call and to read results.

#![allow(dead_code, reason = "every test binary uses only a part of what they share")]

use std::net::IpAddr;

use serde_json::{Value, json};
use testkit::{Call, CniError, Lab, Node, Outcome, Plugin, Pod, Verb, with_prev_result};

/// Both attach modes, for tables of cases.
pub(crate) const MODES: [&str; 2] = ["bridge", "routed"];
/// Both families in one network.
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

    /// Network `blue` on bridge `pw0`, with these keys besides or instead. A key that is null is left out.
    pub(crate) fn config(&self, more: &Value) -> Value {
        config_on(&self.node, more)
    }

    pub(crate) fn pod(&self, name: &str) -> Pod {
        self.node.pod(name).unwrap()
    }

    /// A pod that is attached already, and the result.
    pub(crate) fn attached(&self, name: &str, config: &Value) -> (Pod, Value) {
        let pod = self.pod(name);
        let result = self.add(&pod, config);
        (pod, result)
    }

    /// ADD, which must succeed.
    pub(crate) fn add(&self, pod: &Pod, config: &Value) -> Value {
        self.plugin.add(pod, config).unwrap().ok().unwrap()
    }

    /// ADD, which must fail.
    pub(crate) fn refused(&self, pod: &Pod, config: &Value) -> CniError {
        self.plugin.add(pod, config).unwrap().error().unwrap()
    }

    /// DEL, which must succeed and print nothing.
    pub(crate) fn del(&self, pod: &Pod, config: &Value) {
        assert_eq!(self.plugin.del(pod, config).unwrap().ok().unwrap(), Value::Null);
    }

    pub(crate) fn check(&self, pod: &Pod, config: &Value, previous: &Value) -> Result<(), CniError> {
        verdict(&self.plugin.check(pod, config, previous).unwrap())
    }

    /// CHECK of a container of this name in the pod's namespace.
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

    /// A call about another interface of a pod.
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

/// A CHECK's outcome: nothing on stdout, or an error object.
pub(crate) fn verdict(outcome: &Outcome) -> Result<(), CniError> {
    if outcome.success() {
        assert_eq!(outcome.stdout, "", "a CHECK that succeeds prints nothing");
        return Ok(());
    }
    Err(outcome.error().unwrap())
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

pub(crate) fn with_previous(config: &Value, result: &Value) -> Value {
    with_prev_result(config, result).unwrap()
}

/// `args` split at spaces, as one writes them in a shell.
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
