//! ADD with a host port: through an agent that enforces policies, through one without, and with the chain of the reference plugins.
//! The contenders alternate, pod by pod.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testkit::{Lab, Pod, Verb, reference_plugin, with_prev_result};

use super::flows::{PolicyNode, objects};
use crate::contender::{Plugins, plugin_command};
use crate::firewall::{Timed, note};
use crate::options::PolicyScale;
use crate::runner;
use crate::stats::Sample;

#[derive(Default)]
pub(crate) struct AddTimes {
    pub(crate) policy: Sample,
    pub(crate) none: Sample,
    pub(crate) chain: Sample,
}

pub(super) fn run(plugins: &Plugins, scale: &PolicyScale, times: &mut Timed) -> Result<AddTimes> {
    let with_policy = PolicyNode::start("add-policy", &[])?;
    with_policy.apply(&objects(false))?;
    let without = PolicyNode::start("add-plain", &[])?;
    let chain = PluginChain::create()?;
    let placement = json!({ "tenant": "blue", "group": "db" });
    let mut added = AddTimes::default();
    // The first pod of each creates bridges, tables and directories.
    for number in 0..=scale.added {
        let port = u16::try_from(20_000 + number)?;
        let name = format!("p{number}");
        let mut contenders: [(&mut Sample, TimedAdd<'_>); 3] = [
            (&mut added.policy, Box::new(|| add(plugins, &with_policy, &name, (port, &placement)))),
            (&mut added.none, Box::new(|| add(plugins, &without, &name, (port, &json!({}))))),
            (&mut added.chain, Box::new(|| chain.add(&name, port))),
        ];
        let first = number % contenders.len();
        contenders.rotate_left(first);
        for (sample, add) in contenders {
            let took = add()?;
            if number > 0 {
                sample.note(Ok(took));
            }
        }
    }
    for (what, sample) in [
        ("policies: ADD with host port and policy", &added.policy),
        ("policies: ADD with host port", &added.none),
        ("policies: ADD with host port, bridge, portmap and firewall", &added.chain),
    ] {
        sample.ms().iter().for_each(|ms| note(times, what, Duration::from_secs_f64(ms / 1000.0)));
    }
    Ok(added)
}

type TimedAdd<'a> = Box<dyn Fn() -> Result<Duration> + 'a>;

fn mappings(port: u16) -> Value {
    json!({ "portMappings": [{ "hostPort": port, "containerPort": 80, "protocol": "tcp" }] })
}

/// One ADD of a plugin in the namespace of the node.
fn call(program: &PathBuf, pod: &Pod, config: &Value) -> Result<(Duration, Value)> {
    let mut command = plugin_command(program, Verb::Add);
    command.env("CNI_CONTAINERID", pod.id()).env("CNI_NETNS", pod.netns_path()).env("CNI_IFNAME", "eth0");
    let input = config.to_string();
    let finished = pod.node().enter(|| runner::run(&mut command, input.as_bytes()))??;
    let text = String::from_utf8_lossy(&finished.stdout);
    ensure!(finished.status.success(), "{}: {}: {text}", program.display(), finished.status);
    Ok((finished.took, serde_json::from_str(&text).context("ADD did not print JSON")?))
}

fn add(plugins: &Plugins, node: &PolicyNode, name: &str, (port, more): (u16, &Value)) -> Result<Duration> {
    let pod = node.node.pod(name)?;
    let mut config = node.agent.config(more);
    config["runtimeConfig"] = mappings(port);
    call(&plugins.podwire, &pod, &config).map(|(took, _)| took)
}

/// The plugins `bridge`, `portmap` and `firewall`, as a runtime calls them for a list.
struct PluginChain {
    node: testkit::Node,
    programs: [PathBuf; 3],
    configs: [Value; 3],
    _lab: Lab,
}

impl PluginChain {
    fn create() -> Result<Self> {
        let lab = Lab::new("add-chain")?;
        let node = lab.node("n1")?;
        let programs = ["bridge", "portmap", "firewall"];
        let config = |kind: &str, more: Value| {
            let mut config = json!({ "cniVersion": "1.0.0", "name": "chain", "type": kind });
            if let (Some(config), Value::Object(more)) = (config.as_object_mut(), more) {
                config.extend(more);
            }
            config
        };
        let ranges = json!([[{ "subnet": "10.98.0.0/16" }], [{ "subnet": "fd00:98::/64" }]]);
        let ipam = json!({ "type": "host-local", "dataDir": node.dir().join("ipam"), "ranges": ranges });
        let bridge = json!({ "bridge": "br0", "isGateway": true, "isDefaultGateway": true, "hairpinMode": true,
            "ipMasq": true, "ipam": ipam });
        let configs = [
            config("bridge", bridge),
            config("portmap", json!({ "capabilities": { "portMappings": true } })),
            config("firewall", json!({})),
        ];
        let mut paths = programs.into_iter().map(|name| reference_plugin(name).map(|plugin| plugin.path));
        let mut path = || paths.next().context("a plugin is missing")?;
        let programs = [path()?, path()?, path()?];
        Ok(Self { node, programs, configs, _lab: lab })
    }

    /// The time of all three calls.
    fn add(&self, name: &str, port: u16) -> Result<Duration> {
        let pod = self.node.pod(name)?;
        let (mut took, mut result) = (Duration::ZERO, None::<Value>);
        for (program, config) in self.programs.iter().zip(&self.configs) {
            let mut config = config.clone();
            config["runtimeConfig"] = mappings(port);
            if let Some(result) = &result {
                config = with_prev_result(&config, result)?;
            }
            let (of_plugin, printed) = call(program, &pod, &config)?;
            took += of_plugin;
            result = Some(printed);
        }
        Ok(took)
    }
}
