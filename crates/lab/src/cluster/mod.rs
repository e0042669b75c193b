//! Several nodes on one host. Each node is a namespace with a real agent, on an underlay of one or more routed subnets, with
//! a real etcd. Pods are attached by the real plugin. The module also injects faults and probes the reachability of pods.
//!
//! ```text
//!   etcd1 etcd2 etcd3      n1   n3        n2        hosts: namespaces with one link, eth0
//!     └──── net0 ────┘      └ net1 ┘     net2       bridges in the namespace `underlay`,
//!             └───────────────┴───────────┘         which routes between them
//! ```
//!
//! Nodes of one subnet are on-link; nodes of different subnets have a router between them. `Cluster::up` removes everything
//! when the `Cluster` is dropped, and its processes exit even if the test is killed. With `Cluster::up_saved` the cluster remains,
//! for `podwire lab`.

mod faults;
mod paths;
mod plan;
mod pods;
mod reach;
mod recovery;
mod removal;
mod saved;
mod settings;
mod underlay;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};

pub use paths::PodPath;
pub use plan::{Extra, Families, LabStore, Plan, Tls, TransportMode};
pub use pods::{AttachedPod, PodPlacement};
pub use reach::{Matrix, MatrixCell, MatrixPod, Reachability};
pub use removal::{RemovedLab, clear_saved, remove_saved};
pub use saved::{LabState, SavedLab};

use crate::service::{Leash, ProcessLifetime};
use crate::{Agent, EtcdCluster, Lab, Node, Plugin};
use underlay::Port;

/// Called with the name of each step before it starts.
pub type ProgressFn<'a> = &'a dyn Fn(&str);

#[derive(Debug)]
pub struct Cluster {
    plan: Plan,
    nodes: Vec<ClusterNode>,
    pub etcd: EtcdCluster,
    pods: Mutex<Vec<Arc<AttachedPod>>>,
    /// Pods that are being created. If the command is killed meanwhile, the next command removes them.
    pending: Mutex<Vec<PendingPod>>,
    /// By the name of the pod. Pods with the default placement are left out.
    placements: Mutex<BTreeMap<String, PodPlacement>>,
    underlay: Node,
    plugin: Plugin,
    /// Executable of the agents; `None` selects the one that cargo built.
    program: Option<PathBuf>,
    life: ProcessLifetime,
    saved_lab: Option<SavedLab>,
    origin: ClusterOrigin,
    /// Last field, because its drop removes the namespaces and directories of all fields above.
    lab: Lab,
}

/// A node with its agent.
#[derive(Debug)]
struct ClusterNode {
    name: String,
    node: Node,
    agent: Agent,
    power: Power,
    port: Port,
    /// Names of the pods that were lost at the last power-off.
    lost: Vec<String>,
}

/// A pod that is not attached yet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PendingPod {
    name: String,
    node: String,
    /// The container ID.
    id: String,
}

/// Which command created the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClusterOrigin {
    /// The current one. If the creation fails, everything is removed.
    Created,
    /// An earlier command.
    Opened,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    On,
    Off,
}

impl Cluster {
    /// Creates the cluster and waits until all agents are ready.
    pub fn up(label: &str, plan: &Plan) -> Result<Self> {
        plan.check()?;
        let life = ProcessLifetime::Leash(Arc::new(Leash::new()?));
        let mut cluster = Self::empty(plan, Lab::new(label)?, life)?;
        cluster.create_hosts(&|_| ())?;
        cluster.start(&|_| ())?;
        Ok(cluster)
    }

    /// Creates the hosts without starting any process, for tests that choose the start order.
    pub fn hosts(label: &str, plan: &Plan) -> Result<Self> {
        plan.check()?;
        let life = ProcessLifetime::Leash(Arc::new(Leash::new()?));
        let mut cluster = Self::empty(plan, Lab::new(label)?, life)?;
        cluster.create_hosts(&|_| ())?;
        Ok(cluster)
    }

    /// Creates a cluster that outlives this process, in an existing empty directory. After a failure the caller removes the
    /// incomplete lab with `remove_saved`.
    pub fn up_saved(saved_lab: &SavedLab, plan: &Plan, progress: ProgressFn<'_>) -> Result<Self> {
        plan.check()?;
        let lab = Lab::saved(&saved_lab.prefix(), &saved_lab.dir, 0)?;
        let mut cluster = Self::empty(plan, lab, ProcessLifetime::Detached)?;
        cluster.program = Some(saved_lab.program.clone());
        cluster.saved_lab = Some(saved_lab.clone());
        cluster.save(LabState::Unfinished)?;
        cluster.create_hosts(progress)?;
        cluster.start(progress)?;
        Ok(cluster)
    }

    fn empty(plan: &Plan, lab: Lab, life: ProcessLifetime) -> Result<Self> {
        Ok(Self {
            plan: plan.clone(),
            nodes: vec![],
            etcd: EtcdCluster::default(),
            pods: Mutex::new(vec![]),
            pending: Mutex::new(vec![]),
            placements: Mutex::default(),
            underlay: Node::known(&lab.inner, underlay::NAME),
            plugin: Plugin::podwire()?,
            program: None,
            life,
            saved_lab: None,
            origin: ClusterOrigin::Created,
            lab,
        })
    }

    fn create_hosts(&mut self, progress: ProgressFn<'_>) -> Result<()> {
        let subnets = self.plan.subnets;
        progress(&format!("underlay: {subnets} subnet{}", if subnets == 1 { "" } else { "s and a router" }));
        self.underlay = underlay::create(&self.lab, &self.plan)?;
        let mut hosts = Vec::new();
        for index in 0..self.planned_members() {
            let (name, underlay_host) = (format!("etcd{}", index + 1), self.plan.etcd_host(index));
            let node = self.lab.node(&name)?;
            underlay::plug_in(&self.underlay, (&node, &name), &underlay_host, &self.plan)?;
            hosts.push((node, name, underlay_host.addresses[0].addr()));
        }
        self.etcd = EtcdCluster::new(hosts, &self.plan, &self.life);
        let names = self.plan.node_names();
        progress(&format!("nodes: {}", range(&names)));
        for (index, name) in names.iter().enumerate() {
            let node = self.lab.node(name)?;
            underlay::plug_in(&self.underlay, (&node, name), &self.plan.node_host(index), &self.plan)?;
            let host = self.new_cluster_node(index, node)?;
            self.nodes.push(host);
        }
        Ok(())
    }

    fn planned_members(&self) -> usize {
        match self.plan.store {
            LabStore::Etcd { members } => members,
            LabStore::Embedded | LabStore::Alone => 0,
        }
    }

    fn new_cluster_node(&self, index: usize, node: Node) -> Result<ClusterNode> {
        let name = format!("n{}", index + 1);
        let agent_settings = settings::of_node(&self.plan, index, &self.etcd.endpoints(), self.lab.dir());
        let mut flags = match self.saved_lab {
            Some(_) => self.write_config(&node, agent_settings).map(|()| vec![])?,
            None => settings::as_flags(&agent_settings),
        };
        flags.extend(self.plan.extra_flags(&name));
        let mut agent = Agent::of_cluster(&node, &flags, (&self.life, self.program.as_deref()))?;
        agent.set_env(&self.plan.agent_env(&name));
        Ok(ClusterNode { name, node, agent, power: Power::On, port: Port::Forwarding, lost: vec![] })
    }

    /// An existing file is not overwritten, so that changes by the user remain.
    fn write_config(&self, node: &Node, mut agent_settings: Vec<settings::AgentSetting>) -> Result<()> {
        let path = node.dir().join(crate::agent::CONFIG);
        if path.exists() {
            return Ok(());
        }
        agent_settings.extend(settings::of_directories(node.dir()));
        std::fs::write(&path, settings::as_file(&agent_settings))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn start(&mut self, progress: ProgressFn<'_>) -> Result<()> {
        let members = self.planned_members();
        if members > 0 {
            progress(&format!("etcd: {members} member{}", if members == 1 { "" } else { "s" }));
            self.start_etcd()?;
        }
        progress("agents");
        self.start_agents()
    }

    /// Starts all stopped members and waits until they are healthy.
    pub fn start_etcd(&mut self) -> Result<()> {
        for index in 0..self.etcd.members.len() {
            if !self.etcd.members[index].runs() {
                self.etcd.members[index].start()?;
                self.save(LabState::Unfinished)?;
            }
        }
        self.etcd.wait_healthy()
    }

    /// Starts all stopped agents and waits until they are ready.
    pub fn start_agents(&mut self) -> Result<()> {
        for index in 0..self.nodes.len() {
            if self.nodes[index].agent.has_ended()? {
                self.nodes[index].agent.launch()?;
                self.save(LabState::Unfinished)?;
            }
        }
        self.wait_ready()
    }

    /// Waits until the agents of all powered-on nodes are ready.
    pub fn wait_ready(&mut self) -> Result<()> {
        for host in &mut self.nodes {
            if host.power == Power::On {
                host.agent.wait_ready().with_context(|| format!("node {}", host.name))?;
            }
        }
        Ok(())
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The namespace that connects the nodes.
    pub fn underlay(&self) -> &Node {
        &self.underlay
    }

    pub fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    /// Sets the plugin for pods that are created from now on.
    pub fn set_plugin(&mut self, plugin: Plugin) {
        self.plugin = plugin;
    }

    pub fn node_names(&self) -> Vec<String> {
        self.plan.node_names()
    }

    pub fn node(&self, name: &str) -> Result<&Node> {
        Ok(&self.nodes[self.index(name)?].node)
    }

    pub fn agent(&self, name: &str) -> Result<&Agent> {
        Ok(&self.nodes[self.index(name)?].agent)
    }

    pub fn agent_mut(&mut self, name: &str) -> Result<&mut Agent> {
        let index = self.index(name)?;
        Ok(&mut self.nodes[index].agent)
    }

    /// The node's underlay addresses.
    pub fn addresses(&self, name: &str) -> Result<Vec<std::net::IpAddr>> {
        let underlay_host = self.plan.node_host(self.index(name)?);
        Ok(underlay_host.addresses.iter().map(ipnet::IpNet::addr).collect())
    }

    /// The number of the node's subnet, counted from 1.
    pub fn subnet(&self, name: &str) -> Result<usize> {
        Ok(self.plan.node_host(self.index(name)?).subnet)
    }

    fn index(&self, name: &str) -> Result<usize> {
        self.nodes
            .iter()
            .position(|host| host.name == name)
            .with_context(|| format!("there is no node {name}: this lab has {}", range(&self.node_names())))
    }
}

/// `n1 to n3`, or `n1`.
fn range(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        [only] => only.clone(),
        [first, .., last] => format!("{first} to {last}"),
    }
}
