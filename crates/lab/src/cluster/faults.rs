//! What can go wrong with a cluster, and the ways back.

use anyhow::{Context as _, Result, ensure};

use super::underlay::{self, Port};
use super::{Cluster, Power};
use crate::Ns;

impl Cluster {
    /// Nothing passes to or from the node any more, also not to etcd. Its link stays up: nobody tells it.
    pub fn cut(&mut self, name: &str) -> Result<()> {
        self.set_port(name, Port::Cut)
    }

    pub fn heal(&mut self, name: &str) -> Result<()> {
        self.set_port(name, Port::Whole)
    }

    pub fn is_cut(&self, name: &str) -> Result<bool> {
        Ok(self.machines[self.index(name)?].port == Port::Cut)
    }

    fn set_port(&mut self, name: &str, port: Port) -> Result<()> {
        let index = self.index(name)?;
        ensure!(self.machines[index].power == Power::On, "node {name} has no power");
        underlay::set_port(&self.underlay, name, port)?;
        self.machines[index].port = port;
        Ok(())
    }

    /// SIGKILL.
    pub fn kill_agent(&mut self, name: &str) -> Result<()> {
        self.agent_mut(name)?.kill().with_context(|| format!("node {name}"))
    }

    /// Started again, until it is ready.
    pub fn start_agent(&mut self, name: &str) -> Result<()> {
        let index = self.index(name)?;
        ensure!(
            self.machines[index].power == Power::On,
            "node {name} has no power; its agent starts with it"
        );
        self.machines[index].agent.launch().with_context(|| format!("node {name}"))?;
        self.remember()?;
        self.machines[index].agent.wait_ready().with_context(|| format!("node {name}"))
    }

    /// Killed if it runs, also if it hangs, and started again.
    pub fn restart_agent(&mut self, name: &str) -> Result<()> {
        if !self.agent(name)?.has_ended()? {
            self.kill_agent(name)?;
        }
        self.start_agent(name)
    }

    /// The node loses power: its processes, its pods and what it kept in memory are gone, its disk is not.
    pub fn kill_node(&mut self, name: &str) -> Result<()> {
        let index = self.index(name)?;
        ensure!(self.machines[index].power == Power::On, "node {name} has no power: it is killed already");
        let pods = self.pods().into_iter().filter(|wired| wired.node == name).map(|wired| wired.name.clone());
        let pods: Vec<String> = pods.collect();
        let machine = &mut self.machines[index];
        machine.power = Power::Off;
        machine.lost.extend(pods);
        self.list().retain(|wired| wired.node != name);
        // Whoever comes after us, if we are killed here, does the rest.
        self.remember()?;
        self.switch_off(index)
    }

    /// Killed nodes, each with the pods that it had.
    pub fn killed_nodes(&self) -> Vec<(String, Vec<String>)> {
        let names = self.node_names().into_iter().zip(&self.machines);
        let killed = names.filter(|(_, machine)| machine.power == Power::Off);
        killed.map(|(name, machine)| (name, machine.lost.clone())).collect()
    }

    /// Power is back: the node boots, its agent starts, and its pods are made anew under their old names, as Kubernetes
    /// would.
    pub fn start_node(&mut self, name: &str) -> Result<()> {
        let index = self.index(name)?;
        ensure!(self.machines[index].power == Power::Off, "node {name} runs already");
        let machine = &mut self.machines[index];
        machine.node.boot()?;
        let place = self.plan.node_place(index);
        underlay::plug_in(&self.underlay, (&machine.node, name), &place, &self.plan)?;
        (machine.power, machine.port) = (Power::On, Port::Whole);
        self.start_agent(name)?;
        for pod in self.machines[index].lost.clone() {
            self.pod(name, &pod)?;
            self.machines[index].lost.retain(|lost| *lost != pod);
        }
        Ok(())
    }

    pub fn has_power(&self, name: &str) -> Result<bool> {
        Ok(self.machines[self.index(name)?].power == Power::On)
    }

    /// A node, a member of etcd, or the underlay, by name.
    pub fn host(&self, name: &str) -> Option<&Ns> {
        let nodes = self.machines.iter().map(|machine| (machine.name.as_str(), &*machine.node));
        let members = self.etcd.members.iter().map(|member| (member.name(), &**member.node()));
        let underlay = [(underlay::NAME, &*self.underlay)];
        nodes.chain(members).chain(underlay).find(|(known, _)| *known == name).map(|(_, ns)| ns)
    }
}
