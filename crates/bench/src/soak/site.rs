//! The lab of the run: nodes, networks and permanent pods.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use testkit::{
    Agent, Call, Cluster, Extra, Node, Ns, Plan, Plugin, Pod, Snapshot, Verb, inspect, ping, wait_until,
};
use types::Mac;

use crate::Soak;

/// Timeout for slow operations on a busy host.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// Scope of the cluster's pod network.
pub(crate) const CLUSTER: &str = "cluster";
const STANDALONE: &str = "standalone";
/// Addresses of the external host on the underlay.
pub(crate) const EXTERNAL_HOST: [&str; 2] = ["10.199.1.200", "fd99:1::c8"];
/// The agent of this node is never killed, so that growth of its memory is visible.
pub(crate) const NEVER_KILLED: &str = "n2";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SoakMode {
    Routed,
    Bridge,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServedBy {
    Agent,
    /// The standalone plugin.
    Plugin,
}

/// A network on a node.
pub(crate) struct SoakNetwork {
    pub(crate) name: &'static str,
    pub(crate) node: Node,
    pub(crate) node_name: &'static str,
    pub(crate) mode: SoakMode,
    pub(crate) through: ServedBy,
    /// Networks of one scope share an address pool.
    pub(crate) scope: &'static str,
    pub(crate) config: Value,
    pub(crate) run_dir: PathBuf,
    /// Containers that exist or are being created. Locked during a GC, which uses this list.
    pub(crate) known: Mutex<BTreeSet<String>>,
}

/// Role of a permanent pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodRole {
    /// Sends legal datagrams.
    Honest,
    /// Listens.
    Victim,
    /// Sends hostile frames.
    Mallory,
}

/// A pod that runs during the whole soak.
pub(crate) struct PermanentPod {
    pub(crate) role: PodRole,
    /// Index in `SoakSite::networks`.
    pub(crate) network: usize,
    pub(crate) pod: Pod,
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) mac: [u8; 6],
    /// The host end of its link, or the bridge.
    pub(crate) gateway_mac: [u8; 6],
    pub(crate) host_link: String,
}

/// A node with an agent for hostile configs.
pub(crate) struct Hostile {
    pub(crate) agent: Mutex<Agent>,
    pub(crate) node: Node,
}

/// Addresses of a node on the underlay.
pub(crate) struct SoakNode {
    pub(crate) name: &'static str,
    pub(crate) node: Node,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) mac: [u8; 6],
}

pub(crate) struct SoakSite {
    pub(crate) networks: Vec<SoakNetwork>,
    pub(crate) permanent_pods: Vec<PermanentPod>,
    pub(crate) machines: Vec<SoakNode>,
    pub(crate) hostile: Hostile,
    pub(crate) external_host: Node,
    pub(crate) underlay: Ns,
    pub(crate) endpoints: Vec<String>,
    pub(crate) plugin: Plugin,
    /// Snapshots of the nodes without pods.
    pub(crate) before: Vec<(Node, BTreeSet<String>)>,
    pub(crate) cluster: Mutex<Cluster>,
}

const NODES: [&str; 3] = ["n1", "n2", "n3"];

impl SoakSite {
    pub(crate) fn make(soak: &Soak) -> Result<Self> {
        let plan = Plan {
            nodes: NODES.len(),
            // n1 and n3 are on one link, n2 is behind a router: both transports are in use.
            subnets: 2,
            each: [("n3".to_owned(), Extra { flags: words("--network-mode bridge"), env: vec![] })].into(),
            ..Plan::default()
        };
        let cluster = Cluster::up("soak", &plan).context("cannot start the lab")?;
        let hostile = hostile(&cluster)?;
        let external_host = external_host(&cluster)?;
        let networks = networks(&cluster)?;
        let machines = machines(&cluster)?;
        let mut site = Self {
            networks,
            permanent_pods: vec![],
            machines,
            hostile,
            external_host,
            underlay: (**cluster.underlay()).clone(),
            endpoints: cluster.etcd.endpoints(),
            plugin: cluster.plugin().clone(),
            before: vec![],
            cluster: Mutex::new(cluster),
        };
        site.warm_up()?;
        site.wait_for_routes()?;
        let hosts = site.machines.iter().map(|machine| machine.node.clone());
        site.before = hosts.map(|node| Ok((node.clone(), snapshot_lines(&node)?))).collect::<Result<_>>()?;
        site.add_permanent_pods(soak)?;
        site.expect_reach()?;
        Ok(site)
    }

    /// Permanent objects that the first pod of a network creates are not leaks.
    fn warm_up(&self) -> Result<()> {
        for network in &self.networks {
            let pod = network.node.pod(&format!("warm-{}", network.scope))?;
            self.plugin.add(&pod, &network.config)?.ok().with_context(|| network.name)?;
            self.plugin.del(&pod, &network.config)?.ok()?;
            pod.destroy()?;
            // As at the end, when GC removes unused objects.
            network.collect(&self.plugin)?.ok()?;
        }
        Ok(())
    }

    /// Waits until every node has routes to all others.
    fn wait_for_routes(&self) -> Result<()> {
        for machine in &self.machines {
            wait_until(&format!("the routes of {}", machine.name), LONG, || {
                let cluster = self.cluster();
                let agent = cluster.agent(machine.name)?;
                let socket = agent.socket().display().to_string();
                let count = inspect::routes(&machine.node, inspect::Family::V6)?
                    .iter()
                    .filter(|route| route.protocol.as_deref() == Some("113"))
                    .count();
                Ok(count + 1 >= NODES.len() && agent.podwire(&["routes", "--socket", &socket])?.success())
            })?;
        }
        Ok(())
    }

    fn add_permanent_pods(&mut self, soak: &Soak) -> Result<()> {
        for (index, network) in self.networks.iter().enumerate() {
            for (role, name) in
                [(PodRole::Honest, "honest"), (PodRole::Victim, "victim"), (PodRole::Mallory, "mallory")]
            {
                let pod = network.node.pod(&format!("{name}-{}", network.scope))?;
                network.register(pod.id());
                let result = self.plugin.add(&pod, &network.config)?.ok().with_context(|| network.name)?;
                let ips = ips(&result);
                soak.ledger.enter(network.scope, pod.id(), &ips);
                let host_link = host_link(&result).context("the result has no host link")?;
                let outside = inspect::link(&network.node, &host_link)?;
                let gateway = match &outside.master {
                    Some(bridge) => inspect::link(&network.node, bridge)?,
                    None => outside,
                };
                self.permanent_pods.push(PermanentPod {
                    role,
                    network: index,
                    mac: mac_of(&inspect::link(&pod, "eth0")?)?,
                    gateway_mac: mac_of(&gateway)?,
                    pod,
                    ips,
                    host_link,
                });
            }
        }
        Ok(())
    }

    /// Victims and honest pods of a scope reach each other in both families.
    pub(crate) fn expect_reach(&self) -> Result<()> {
        for from in self.with_role(PodRole::Honest) {
            for to in self.with_role(PodRole::Victim) {
                let scopes = [from, to].map(|permanent| self.networks[permanent.network].scope);
                if scopes[0] != scopes[1] {
                    continue;
                }
                for ip in &to.ips {
                    wait_until(&format!("{} to reach {ip}", from.pod.name()), LONG, || {
                        Ok(ping(&from.pod, *ip, 1)?.all())
                    })?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn with_role(&self, role: PodRole) -> impl Iterator<Item = &PermanentPod> {
        self.permanent_pods.iter().filter(move |permanent| permanent.role == role)
    }

    pub(crate) fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn hostile_agent(&self) -> MutexGuard<'_, Agent> {
        self.hostile.agent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn summary(&self) -> String {
        let names: Vec<&str> = self.networks.iter().map(|network| network.name).collect();
        format!(
            "networks: {}; {} permanent pods; hostile configs on h1",
            names.join(", "),
            self.permanent_pods.len()
        )
    }
}

impl SoakNetwork {
    pub(crate) fn register(&self, container: &str) {
        // Waits for a GC that uses the previous list.
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(container.to_owned());
    }

    pub(crate) fn unregister(&self, container: &str) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(container);
    }

    /// A call for a container in a sandbox.
    pub(crate) fn call(&self, verb: Verb, (pod, container): (&Pod, &str), args: &str) -> Call {
        Call {
            container: Some(container.to_owned()),
            args: Some(args.to_owned()),
            ..Call::pod(verb, pod, &self.config)
        }
    }

    /// GC with the registered containers.
    pub(crate) fn collect(&self, plugin: &Plugin) -> Result<testkit::Outcome> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let valid: Vec<(&str, &str)> = known.iter().map(|container| (container.as_str(), "eth0")).collect();
        plugin.gc(&self.node, &self.config, &valid)
    }
}

fn networks(cluster: &Cluster) -> Result<Vec<SoakNetwork>> {
    let through_agent = |name, node_name: &'static str, mode| -> Result<SoakNetwork> {
        let agent = cluster.agent(node_name)?;
        Ok(SoakNetwork {
            name,
            node: cluster.node(node_name)?.clone(),
            node_name,
            mode,
            through: ServedBy::Agent,
            scope: CLUSTER,
            config: agent.config(&json!({})),
            run_dir: agent.run_dir().to_owned(),
            known: Mutex::default(),
        })
    };
    let node = cluster.node("n1")?.clone();
    let run_dir = node.dir().join("alone");
    let config = json!({
        "cniVersion": "1.1.0", "name": "alone", "type": "podwire-cni", "bridge": "alone0", "mode": "bridge",
        "subnet": "10.77.0.0/24,fd77::/120", "ipMasq": true, "isDefaultGateway": true,
        "runDir": run_dir, "logFile": node.dir().join("alone.log"),
    });
    Ok(vec![
        through_agent("n1, agent, routed", "n1", SoakMode::Routed)?,
        through_agent("n2, agent, routed", "n2", SoakMode::Routed)?,
        through_agent("n3, agent, bridge", "n3", SoakMode::Bridge)?,
        SoakNetwork {
            name: "n1, standalone, bridge",
            node,
            node_name: "n1",
            mode: SoakMode::Bridge,
            through: ServedBy::Plugin,
            scope: STANDALONE,
            config,
            run_dir,
            known: Mutex::default(),
        },
    ])
}

fn machines(cluster: &Cluster) -> Result<Vec<SoakNode>> {
    NODES
        .into_iter()
        .map(|name| {
            let node = cluster.node(name)?.clone();
            let mac = mac_of(&inspect::link(&node, "eth0")?)?;
            Ok(SoakNode { name, node, addresses: cluster.addresses(name)?, mac })
        })
        .collect()
}

fn hostile(cluster: &Cluster) -> Result<Hostile> {
    let node = cluster.lab().node("h1")?;
    let agent = Agent::start(&node, &["--no-install"])?;
    Ok(Hostile { agent: Mutex::new(agent), node })
}

/// An external host on the link of n1 and n3.
fn external_host(cluster: &Cluster) -> Result<Node> {
    let node = cluster.lab().node("external")?;
    let underlay = cluster.underlay();
    let ip = |ns: &Ns, line: &str| {
        let argv: Vec<&str> = ["ip"].into_iter().chain(line.split(' ')).collect();
        ns.sh(&argv).map(drop)
    };
    ip(underlay, &format!("link add external type veth peer name eth0 netns {}", node.name()))?;
    ip(underlay, "link set dev external addrgenmode none")?;
    ip(underlay, "link set dev external master net1 up")?;
    ip(&node, "link set dev eth0 addrgenmode none")?;
    ip(&node, &format!("addr add {}/24 dev eth0", EXTERNAL_HOST[0]))?;
    ip(&node, &format!("addr add {}/64 dev eth0 nodad", EXTERNAL_HOST[1]))?;
    ip(&node, "addr add fe80::c8/64 dev eth0 nodad")?;
    ip(&node, "link set dev eth0 up")?;
    ip(&node, "route add default via 10.199.1.254")?;
    ip(&node, "route add default via fd99:1::fe")?;
    Ok(node)
}

/// A snapshot without interface indexes, because a recreated tunnel gets another one.
pub(crate) fn snapshot_lines(ns: &Ns) -> Result<BTreeSet<String>> {
    let without_number = |line: &str| match line.strip_prefix("link ").and_then(|rest| rest.split_once(' ')) {
        Some((_, rest)) => format!("link {rest}"),
        None => line.to_owned(),
    };
    // The chain and the sets of an unused network may remain. Their elements are separate lines.
    let is_idle_network =
        |line: &&str| !line.starts_with("nft element") && line.starts_with("nft") && line.contains("\"net-");
    Ok(Snapshot::of(ns)?.lines().filter(|line| !is_idle_network(line)).map(without_number).collect())
}

/// The addresses of a result, without prefix lengths.
pub(crate) fn ips(result: &Value) -> Vec<IpAddr> {
    let all = result["ips"].as_array().into_iter().flatten();
    all.filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok()).collect()
}

pub(crate) fn host_link(result: &Value) -> Option<String> {
    let mut links = result["interfaces"].as_array()?.iter().filter(|link| link["sandbox"].is_null());
    links.find_map(|link| link["name"].as_str().filter(|name| name.starts_with("pw"))).map(str::to_owned)
}

pub(crate) fn mac_of(link: &inspect::ListedLink) -> Result<[u8; 6]> {
    let text = link.mac.as_deref().with_context(|| format!("{} has no MAC", link.name))?;
    Ok(text.parse::<Mac>()?.octets())
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}
