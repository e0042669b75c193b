//! What can go wrong with a cluster, and the ways back.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};

use super::underlay::{self, Port};
use super::{Cluster, Power, Wired, removal};
use crate::{Ns, sweep};

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
        let agent = &mut self.machines[index].agent;
        agent.launch().and_then(|()| agent.wait_ready()).with_context(|| format!("node {name}"))
    }

    /// The node loses power: its processes, its pods and what it kept in memory are gone, its disk is not.
    pub fn kill_node(&mut self, name: &str) -> Result<()> {
        let index = self.index(name)?;
        ensure!(self.machines[index].power == Power::On, "node {name} has no power: it is killed already");
        let pods: Vec<Arc<Wired>> = self.pods().into_iter().filter(|wired| wired.node == name).collect();
        let machine = &mut self.machines[index];
        if machine.agent.identity().is_some() {
            machine.agent.kill()?;
        }
        let namespaces = pods.iter().map(|wired| wired.pod.name()).chain([machine.node.name()]);
        let namespaces: Vec<String> = namespaces.map(str::to_owned).collect();
        removal::kill_inside(&namespaces)?;
        for wired in &pods {
            wired.pod.destroy()?;
        }
        underlay::pull_out(&self.underlay, name)?;
        machine.node.destroy()?;
        sweep::remove_folder(machine.agent.run_dir())?;
        machine.power = Power::Off;
        machine.lost = pods.iter().map(|wired| wired.name.clone()).collect();
        self.list().retain(|wired| wired.node != name);
        Ok(())
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
        let lost = std::mem::take(&mut machine.lost);
        self.start_agent(name)?;
        lost.iter().try_for_each(|pod| self.pod(name, pod).map(drop))
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
