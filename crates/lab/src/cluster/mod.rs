//! Many nodes on one machine: each a namespace with a real agent, on an underlay of one or several routed subnets, with a
//! real etcd; pods through the real plugin; faults, and the question who reaches whom.
//!
//! ```text
//!   etcd1 etcd2 etcd3      n1   n3        n2        hosts: namespaces with one link, eth0
//!     └──── net0 ────┘      └ net1 ┘     net2       bridges in the namespace `underlay`,
//!             └───────────────┴───────────┘         which routes between them
//! ```
//!
//! Nodes of one subnet are on-link for each other, others are not. With `Cluster::up` all of it goes with the `Cluster`,
//! and the processes also with a test that is killed; with `Cluster::up_kept` it stays, for `podwire lab`.

mod faults;
mod plan;
mod pods;
mod reach;
mod removal;
mod saved;
mod settings;
mod settle;
mod underlay;
mod ways;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};

pub use plan::{Extra, Families, LabStore, Plan, Tls, TransportMode};
pub use pods::AttachedPod;
pub use reach::{Cell, Matrix, Reachability, Spot};
pub use removal::{RemovedLab, clear_kept, remove_kept};
pub use saved::{LabState, SavedLab};
pub use ways::PodPath;

use crate::service::{Leash, ProcessLifetime};
use crate::{Agent, EtcdCluster, Lab, Node, Plugin};
use underlay::Port;

/// Told what is done next.
pub type ProgressFn<'a> = &'a dyn Fn(&str);

#[derive(Debug)]
pub struct Cluster {
    plan: Plan,
    machines: Vec<ClusterNode>,
    pub etcd: EtcdCluster,
    pods: Mutex<Vec<Arc<AttachedPod>>>,
    /// Pods that are being made: what a command that is killed meanwhile leaves for the next.
    begun: Mutex<Vec<Begun>>,
    underlay: Node,
    plugin: Plugin,
    /// The program of the agents; none: as built.
    program: Option<PathBuf>,
    life: ProcessLifetime,
    kept: Option<SavedLab>,
    origin: ClusterOrigin,
    /// Last: it takes the namespaces and directories of all of the above with it.
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
    /// Pods that it lost when it lost power.
    lost: Vec<String>,
}

/// A pod that is not attached yet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Begun {
    name: String,
    node: String,
    /// Of its container.
    id: String,
}

/// Who made the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClusterOrigin {
    /// We do. If that is not done to the end, all of it goes.
    Made,
    /// An earlier command.
    Opened,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    On,
    Off,
}

impl Cluster {
    /// Makes it and waits until all agents are ready.
    pub fn up(label: &str, plan: &Plan) -> Result<Self> {
        plan.check()?;
        let life = ProcessLifetime::Leash(Arc::new(Leash::new()?));
        let mut cluster = Self::empty(plan, Lab::new(label)?, life)?;
        cluster.make_hosts(&|_| ())?;
        cluster.start(&|_| ())?;
        Ok(cluster)
    }

    /// The same without any process: for tests that start things in an order of their own.
    pub fn hosts(label: &str, plan: &Plan) -> Result<Self> {
        plan.check()?;
        let life = ProcessLifetime::Leash(Arc::new(Leash::new()?));
        let mut cluster = Self::empty(plan, Lab::new(label)?, life)?;
        cluster.make_hosts(&|_| ())?;
        Ok(cluster)
    }

    /// One that lives on; the directory is there and empty. A failure leaves what was made so far for `remove_kept`.
    pub fn up_kept(kept: &SavedLab, plan: &Plan, progress: ProgressFn<'_>) -> Result<Self> {
        plan.check()?;
        let lab = Lab::kept(&kept.prefix(), &kept.dir, 0)?;
        let mut cluster = Self::empty(plan, lab, ProcessLifetime::Kept)?;
        cluster.program = Some(kept.program.clone());
        cluster.kept = Some(kept.clone());
        cluster.save(LabState::Unfinished)?;
        cluster.make_hosts(progress)?;
        cluster.start(progress)?;
        Ok(cluster)
    }

    fn empty(plan: &Plan, lab: Lab, life: ProcessLifetime) -> Result<Self> {
        Ok(Self {
            plan: plan.clone(),
            machines: vec![],
            etcd: EtcdCluster::default(),
            pods: Mutex::new(vec![]),
            begun: Mutex::new(vec![]),
            underlay: Node::known(&lab.inner, underlay::NAME),
            plugin: Plugin::podwire()?,
            program: None,
            life,
            kept: None,
            origin: ClusterOrigin::Made,
            lab,
        })
    }

    fn make_hosts(&mut self, progress: ProgressFn<'_>) -> Result<()> {
        let subnets = self.plan.subnets;
        progress(&format!("underlay: {subnets} subnet{}", if subnets == 1 { "" } else { "s and a router" }));
        self.underlay = underlay::make(&self.lab, &self.plan)?;
        let mut hosts = Vec::new();
        for index in 0..self.members_planned() {
            let (name, place) = (format!("etcd{}", index + 1), self.plan.etcd_place(index));
            let node = self.lab.node(&name)?;
            underlay::plug_in(&self.underlay, (&node, &name), &place, &self.plan)?;
            hosts.push((node, name, place.addresses[0].addr()));
        }
        self.etcd = EtcdCluster::new(hosts, &self.plan, &self.life);
        let names = self.plan.node_names();
        progress(&format!("nodes: {}", range(&names)));
        for (index, name) in names.iter().enumerate() {
            let node = self.lab.node(name)?;
            underlay::plug_in(&self.underlay, (&node, name), &self.plan.node_place(index), &self.plan)?;
            let machine = self.machine(index, node)?;
            self.machines.push(machine);
        }
        Ok(())
    }

    fn members_planned(&self) -> usize {
        match self.plan.store {
            LabStore::Etcd { members } => members,
            LabStore::Embedded | LabStore::Alone => 0,
        }
    }

    fn machine(&self, index: usize, node: Node) -> Result<ClusterNode> {
        let name = format!("n{}", index + 1);
        let told = settings::of_node(&self.plan, index, &self.etcd.endpoints(), self.lab.dir());
        let mut flags = match self.kept {
            Some(_) => self.write_config(&node, told).map(|()| vec![])?,
            None => settings::as_flags(&told),
        };
        flags.extend(self.plan.more_flags(&name));
        let mut agent = Agent::of_cluster(&node, &flags, (&self.life, self.program.as_deref()))?;
        agent.set_env(&self.plan.agent_env(&name));
        Ok(ClusterNode { name, node, agent, power: Power::On, port: Port::Whole, lost: vec![] })
    }

    /// Once: what a person changed in it stays.
    fn write_config(&self, node: &Node, mut told: Vec<settings::AgentSetting>) -> Result<()> {
        let path = node.dir().join(crate::agent::CONFIG);
        if path.exists() {
            return Ok(());
        }
        told.extend(settings::of_directories(node.dir()));
        std::fs::write(&path, settings::as_file(&told))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn start(&mut self, progress: ProgressFn<'_>) -> Result<()> {
        let members = self.members_planned();
        if members > 0 {
            progress(&format!("etcd: {members} member{}", if members == 1 { "" } else { "s" }));
            self.start_etcd()?;
        }
        progress("agents");
        self.start_agents()
    }

    /// All members that do not run, until they are healthy.
    pub fn start_etcd(&mut self) -> Result<()> {
        for index in 0..self.etcd.members.len() {
            if !self.etcd.members[index].runs() {
                self.etcd.members[index].start()?;
                self.save(LabState::Unfinished)?;
            }
        }
        self.etcd.wait_healthy()
    }

    /// All agents that do not run, until they are ready.
    pub fn start_agents(&mut self) -> Result<()> {
        for index in 0..self.machines.len() {
            if self.machines[index].agent.has_ended()? {
                self.machines[index].agent.launch()?;
                self.save(LabState::Unfinished)?;
            }
        }
        self.wait_ready()
    }

    /// Waits until every agent that runs is ready.
    pub fn wait_ready(&mut self) -> Result<()> {
        for machine in &mut self.machines {
            if machine.power == Power::On {
                machine.agent.wait_ready().with_context(|| format!("node {}", machine.name))?;
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

    /// The namespace between the nodes.
    pub fn underlay(&self) -> &Node {
        &self.underlay
    }

    pub fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    /// Pods that are made from now on use another plugin.
    pub fn set_plugin(&mut self, plugin: Plugin) {
        self.plugin = plugin;
    }

    pub fn node_names(&self) -> Vec<String> {
        self.plan.node_names()
    }

    pub fn node(&self, name: &str) -> Result<&Node> {
        Ok(&self.machines[self.index(name)?].node)
    }

    pub fn agent(&self, name: &str) -> Result<&Agent> {
        Ok(&self.machines[self.index(name)?].agent)
    }

    pub fn agent_mut(&mut self, name: &str) -> Result<&mut Agent> {
        let index = self.index(name)?;
        Ok(&mut self.machines[index].agent)
    }

    /// The node's own addresses.
    pub fn addresses(&self, name: &str) -> Result<Vec<std::net::IpAddr>> {
        let place = self.plan.node_place(self.index(name)?);
        Ok(place.addresses.iter().map(ipnet::IpNet::addr).collect())
    }

    /// The number of the subnet that the node is in, from 1.
    pub fn subnet(&self, name: &str) -> Result<usize> {
        Ok(self.plan.node_place(self.index(name)?).subnet)
    }

    fn index(&self, name: &str) -> Result<usize> {
        self.machines
            .iter()
            .position(|machine| machine.name == name)
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
