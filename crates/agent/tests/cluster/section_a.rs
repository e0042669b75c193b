//! Requirements A1 to A9 of a node agent with etcd. Each test has the number of its requirement. Real agents, a real etcd and
//! the real plugin. Results are checked with `etcdctl`, `ip`, `nft` and packets.

mod blocks;
mod bridge;
mod families;
mod files;
mod firewall;
mod growth;
mod peers;
mod routes;
mod variables;

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use model::{BlockClaim, NodeRecord, Object as _};
use serde_json::Value;
use testkit::inspect::{self, Family};
use testkit::{Agent, Call, Cluster, DEADLINE, Ns, Outcome, Plugin, Pod, Verb, wait_until};

/// The protocol number of routes to peers, as `ip` shows it.
const PROTOCOL: &str = "113";

/// The output of `etcdctl` on etcd's node.
fn etcdctl(cluster: &Cluster, args: &[&str]) -> String {
    let member = &cluster.etcd.members[0];
    let argv = [&["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", member.endpoint()], args].concat();
    member.node().sh(&argv).unwrap()
}

/// All keys and values with a prefix.
fn stored(cluster: &Cluster, prefix: &str) -> BTreeMap<String, String> {
    let text = etcdctl(cluster, &["get", "--prefix", prefix]);
    let lines: Vec<&str> = text.lines().collect();
    lines.chunks(2).map(|pair| (pair[0].to_owned(), pair.get(1).unwrap_or(&"").to_string())).collect()
}

/// The contents of a prefix at one revision.
struct Registry {
    /// Node → record.
    records: BTreeMap<String, NodeRecord>,
    /// Block → node.
    claims: BTreeMap<IpNet, String>,
}

impl Registry {
    fn of(cluster: &Cluster, prefix: &str) -> Self {
        let (mut records, mut claims) = (BTreeMap::new(), BTreeMap::new());
        for (key, value) in stored(cluster, &format!("{prefix}/")) {
            let (directory, name) = key[prefix.len() + 1..].split_once('/').unwrap_or_default();
            if directory == "nodes" {
                records.insert(name.to_owned(), NodeRecord::decode(value.as_bytes()).unwrap());
            } else if let Some(name) = name.strip_prefix("default.default-net/blocks/") {
                let claim = BlockClaim::decode(value.as_bytes()).unwrap();
                claims.insert(name.replace('-', "/").parse().unwrap(), claim.node.to_string());
            }
        }
        Self { records, claims }
    }
}

/// Node → record.
fn records(cluster: &Cluster, prefix: &str) -> BTreeMap<String, NodeRecord> {
    Registry::of(cluster, prefix).records
}

/// Every claim matches a record, and every block of a record has a claim of its node. So no block has two owners.
#[track_caller]
fn expect_consistent(cluster: &Cluster, prefix: &str) {
    let Registry { records, claims } = Registry::of(cluster, prefix);
    let blocks: Vec<(IpNet, String)> = records
        .into_iter()
        .flat_map(|(host, record)| record.blocks.to_vec().into_iter().map(move |block| (block, host.clone())))
        .collect();
    let by_block: BTreeMap<IpNet, String> = blocks.iter().cloned().collect();
    assert_eq!(by_block.len(), blocks.len(), "a block has two owners: {blocks:?}");
    assert_eq!(by_block, claims);
}

/// Node → blocks, from an agent's API.
fn node_blocks(agent: &Agent) -> BTreeMap<String, Vec<IpNet>> {
    let nodes = agent.get(api::NODES).unwrap();
    let list = nodes["nodes"].as_array().unwrap();
    let blocks = |node: &Value| serde_json::from_value(node["blocks"].clone()).unwrap();
    list.iter().map(|node| (node["name"].as_str().unwrap().to_owned(), blocks(node))).collect()
}

/// The routes of a node to peers: block, gateway, link.
fn peer_routes(node: &Ns) -> Vec<(IpNet, IpAddr, String)> {
    let both = [Family::V4, Family::V6].into_iter().flat_map(|family| inspect::routes(node, family).unwrap());
    let managed = both.filter(|route| route.protocol.as_deref() == Some(PROTOCOL));
    let mut routes: Vec<_> = managed
        .map(|route| (route.dst.parse().unwrap(), route.gateway.unwrap(), route.dev.unwrap()))
        .collect();
    routes.sort();
    routes
}

/// The agent's conditions.
fn problems(agent: &Agent) -> Vec<Value> {
    agent.get(api::STATUS).unwrap()["conditions"].as_array().unwrap().clone()
}

/// STATUS for the agent's network.
fn status(cluster: &Cluster, node: &str) -> Outcome {
    let config = cluster.agent(node).unwrap().config(&serde_json::json!({}));
    let call = Call::network(Verb::Status, &config);
    cluster.plugin().call(cluster.node(node).unwrap(), &call).unwrap()
}

/// The expected routes if all nodes are on-link: one to each block of every other record.
fn direct_routes(records: &BTreeMap<String, NodeRecord>, local: &str) -> Vec<(IpNet, IpAddr, String)> {
    let peers = records.iter().filter(|(name, _)| *name != local);
    let routes_of = |record: &NodeRecord| -> Vec<_> {
        let route = |block: &IpNet| (*block, record.address_for(block).unwrap(), "eth0".to_owned());
        record.blocks.iter().map(route).collect()
    };
    let mut routes: Vec<_> = peers.flat_map(|(_, record)| routes_of(record)).collect();
    routes.sort();
    routes
}

/// Kills the agent of a node and removes its `alive` key, as the end of its lease would do later.
fn kill_and_expire(cluster: &mut Cluster, node: &str) {
    cluster.kill_agent(node).unwrap();
    etcdctl(cluster, &["del", &format!("/podwire/alive/{node}")]);
}

/// An agent that is configured only by the eleven variables and its directories, on a host with its own name.
struct EnvAgent {
    agent: Agent,
    dir: PathBuf,
    ns: Ns,
}

impl EnvAgent {
    /// An agent with these variables added or replaced. It is not started.
    fn new(cluster: &Cluster, host: &str, more: &[(&str, &str)]) -> Self {
        let node = cluster.node(host).unwrap();
        let mut agent = Agent::new(node, &[]).unwrap();
        let dir = node.dir().to_owned();
        let (config, plugin) = (dir.join("net.d/10-blue.conflist"), dir.join("bin/blue-cni"));
        let etcd = cluster.etcd.members[0].address().to_string();
        let mut env: BTreeMap<&str, &str> = BTreeMap::from([
            ("ETCD_HOST", etcd.as_str()),
            ("CNI_VERSION", "0.4.0"),
            ("CNI_NAME", "blue"),
            ("CNI_TYPE", "blue-cni"),
            ("BRIDGE_NAME", "br-blue"),
            ("IP_SUBNET", "10.2.0.0/16,fd02::/64"),
            ("IP_SUBNET_MARGIN", "8"),
            ("ETCD_PREFIX", "hosts"),
            ("ETCD_COUNTER_KEY", "/counters/hosts"),
            ("CNI_CONFIG_LOCATION", config.to_str().unwrap()),
            ("CNI_PLUGIN_LOCATION", plugin.to_str().unwrap()),
        ]);
        env.extend(more.iter().copied());
        let env: Vec<_> = env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        agent.set_env(&env);
        agent.set_program(&with_host_name(host, node, agent.program()));
        Self { agent, dir, ns: (**node).clone() }
    }

    fn start(&mut self) {
        self.agent.launch().unwrap();
        self.agent.wait_ready().unwrap();
    }

    fn config_file(&self) -> PathBuf {
        self.dir.join("net.d/10-blue.conflist")
    }

    fn plugin_file(&self) -> PathBuf {
        self.dir.join("bin/blue-cni")
    }

    /// Waits for the config, which is installed a moment after the agent is ready.
    fn wait_installed(&self) {
        wait_until("the config", DEADLINE, || Ok(self.config_file().exists())).unwrap();
    }

    /// The config that a runtime passes to the installed plugin.
    fn config(&self) -> Value {
        let list: Value = serde_json::from_slice(&fs::read(self.config_file()).unwrap()).unwrap();
        let mut config = list["plugins"][0].clone();
        for key in ["cniVersion", "name"] {
            config[key] = list[key].clone();
        }
        // The test must not write to the host's log.
        config["logFile"] = self.dir.join("cni.log").to_str().unwrap().into();
        config
    }

    /// Calls the installed plugin with the installed config.
    fn call(&self, verb: Verb, pod: &Pod) -> Outcome {
        let plugin = Plugin { path: self.plugin_file() };
        plugin.call(&self.ns, &Call::pod(verb, pod, &self.config())).unwrap()
    }

    /// ADD, which must succeed. Returns the pod's addresses.
    fn add(&self, pod: &Pod) -> Vec<IpAddr> {
        let result = self.call(Verb::Add, pod).ok().unwrap();
        let ips = result["ips"].as_array().unwrap().iter();
        ips.map(|ip| ip["address"].as_str().unwrap().parse::<IpNet>().unwrap().addr()).collect()
    }
}

/// A script that sets a host name and executes the program, because node names come from the host.
fn with_host_name(name: &str, node: &testkit::Node, program: &Path) -> PathBuf {
    let path = node.dir().join("podwire");
    let inner = r#"echo "$0" >/proc/sys/kernel/hostname && exec "$@""#;
    let script =
        format!("#!/bin/sh\nexec unshare --uts sh -c '{inner}' {name} {} \"$@\"\n", program.display());
    // Not written by this process: a child process of another test could inherit the descriptor, which blocks execution.
    let write = format!("cat >{0} && chmod 755 {0}", path.display());
    let outcome = node.run(&["sh", "-c", &write], script.as_bytes()).unwrap();
    assert!(outcome.success(), "{}", outcome.stderr);
    path
}
