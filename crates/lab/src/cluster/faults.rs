//! Fault injection in a cluster, and the recovery from each fault.

use anyhow::{Context as _, Result, ensure};

use super::underlay::{self, Port};
use super::{Cluster, Power};
use crate::Ns;

impl Cluster {
    /// Drops all traffic to and from the node, including etcd traffic. The node's link stays up.
    pub fn cut(&mut self, name: &str) -> Result<()> {
        self.set_port(name, Port::Cut)
    }

    /// Connects the node again: also sets its link up and restores its addresses and default routes.
    pub fn heal(&mut self, name: &str) -> Result<()> {
        let host = &self.nodes[self.index(name)?];
        if host.power == Power::On {
            // Without a carrier, the state of the bridge port cannot be set.
            underlay::restore(&host.node, &self.plan.node_host(self.index(name)?), &self.plan)?;
        }
        self.set_port(name, Port::Forwarding)
    }

    pub fn is_cut(&self, name: &str) -> Result<bool> {
        Ok(self.nodes[self.index(name)?].port == Port::Cut)
    }

    fn set_port(&mut self, name: &str, port: Port) -> Result<()> {
        let index = self.index(name)?;
        ensure!(self.nodes[index].power == Power::On, "node {name} is powered off");
        underlay::set_port(&self.underlay, name, port)?;
        self.nodes[index].port = port;
        Ok(())
    }

    /// Sends SIGKILL to the agent.
    pub fn kill_agent(&mut self, name: &str) -> Result<()> {
        self.agent_mut(name)?.kill().with_context(|| format!("node {name}"))
    }

    /// Starts the agent and waits until it is ready.
    pub fn start_agent(&mut self, name: &str) -> Result<()> {
        let index = self.index(name)?;
        ensure!(
            self.nodes[index].power == Power::On,
            "node {name} is powered off; start the node, which also starts its agent"
        );
        self.nodes[index].agent.launch().with_context(|| format!("node {name}"))?;
        self.remember()?;
        self.nodes[index].agent.wait_ready().with_context(|| format!("node {name}"))
    }

    /// Kills the agent if it is running, and starts it.
    pub fn restart_agent(&mut self, name: &str) -> Result<()> {
        if !self.agent(name)?.has_ended()? {
            self.kill_agent(name)?;
        }
        self.start_agent(name)
    }

    /// Simulates a power loss. Processes, pods and state in memory are lost; the node's directory (its disk) remains.
    pub fn kill_node(&mut self, name: &str) -> Result<()> {
        let index = self.index(name)?;
        ensure!(self.nodes[index].power == Power::On, "node {name} is already powered off");
        let pods = self
            .pods()
            .into_iter()
            .filter(|attached| attached.node == name)
            .map(|attached| attached.name.clone());
        let pods: Vec<String> = pods.collect();
        let host = &mut self.nodes[index];
        host.power = Power::Off;
        host.lost.extend(pods);
        self.list().retain(|attached| attached.node != name);
        // If this process is killed here, the next command completes the power-off.
        self.remember()?;
        self.power_off(index)
    }

    /// Powered-off nodes, each with the names of the pods it lost.
    pub fn killed_nodes(&self) -> Vec<(String, Vec<String>)> {
        let names = self.node_names().into_iter().zip(&self.nodes);
        let killed = names.filter(|(_, host)| host.power == Power::Off);
        killed.map(|(name, host)| (name, host.lost.clone())).collect()
    }

    /// Powers the node on: the node boots, its agent starts, and its lost pods are created again under their old names.
    pub fn start_node(&mut self, name: &str) -> Result<()> {
        let index = self.index(name)?;
        ensure!(self.nodes[index].power == Power::Off, "node {name} is already running");
        let host = &mut self.nodes[index];
        host.node.boot()?;
        let underlay_host = self.plan.node_host(index);
        underlay::plug_in(&self.underlay, (&host.node, name), &underlay_host, &self.plan)?;
        (host.power, host.port) = (Power::On, Port::Forwarding);
        self.start_agent(name)?;
        for pod in self.nodes[index].lost.clone() {
            self.pod(name, &pod)?;
            self.nodes[index].lost.retain(|lost| *lost != pod);
        }
        Ok(())
    }

    pub fn has_power(&self, name: &str) -> Result<bool> {
        Ok(self.nodes[self.index(name)?].power == Power::On)
    }

    /// Finds a node, an etcd member or the underlay by name.
    pub fn host(&self, name: &str) -> Option<&Ns> {
        let nodes = self.nodes.iter().map(|host| (host.name.as_str(), &*host.node));
        let members = self.etcd.members.iter().map(|member| (member.name(), &**member.node()));
        let underlay = [(underlay::NAME, &*self.underlay)];
        nodes.chain(members).chain(underlay).find(|(host, _)| *host == name).map(|(_, ns)| ns)
    }
}
