//! Commands may be killed at any time. What they are about to do is saved first; here the next command does the rest.

use std::sync::{MutexGuard, PoisonError};

use anyhow::Result;

use super::{Begun, Cluster, ClusterOrigin, Power, removal, underlay};
use crate::{Node, Ns, sweep};

impl Cluster {
    /// Pods that nobody waits for any more go, and so does what is left of nodes without power.
    pub(super) fn settle(&mut self) -> Result<()> {
        let dark = (0..self.machines.len()).filter(|index| self.machines[*index].power == Power::Off);
        let half: Vec<usize> = dark.filter(|index| self.is_half_off(*index)).collect();
        let begun = std::mem::take(&mut *self.begun());
        if half.is_empty() && begun.is_empty() {
            return Ok(());
        }
        for index in half {
            self.switch_off(index)?;
        }
        for pod in begun {
            // A lab with one pod that cannot be undone is a lab all the same: the next command tries again.
            if self.abandon(&pod).is_err() {
                self.begun().push(pod);
            }
        }
        self.remember()
    }

    /// A pod is about to be made. Those of a cluster that goes as a whole need no notice.
    pub(super) fn begin(&self, machine: &Node, (node, name): (&str, &str)) -> Result<()> {
        if self.origin == ClusterOrigin::Made {
            return Ok(());
        }
        let id = format!("{}-{name}-{}", machine.name(), self.lab.inner.serial());
        self.begun().push(Begun { name: name.to_owned(), node: node.to_owned(), id });
        self.remember()
    }

    /// Undoes what was done for a pod, however far that came.
    fn abandon(&self, begun: &Begun) -> Result<()> {
        // A container of the same name is another one.
        self.lab.inner.next_serial();
        let machine = &self.machines[self.index(&begun.node)?];
        let pod = machine.node.known_pod(&begun.name, &begun.id);
        if machine.power == Power::On {
            removal::kill_plugins(machine.node.path(), &begun.id)?;
            // An agent that does not run is told when it does: the plugin sees to that.
            let detached = self.detach(&begun.node, &begun.name, &pod);
            pod.destroy()?;
            return detached;
        }
        pod.destroy()
    }

    /// Everything of a node but its disk goes; what is gone already is fine.
    pub(super) fn switch_off(&mut self, index: usize) -> Result<()> {
        let machine = &mut self.machines[index];
        if machine.agent.identity().is_some() {
            machine.agent.kill()?;
        }
        let pods = sweep::namespaces_of(machine.node.name())?;
        let all: Vec<String> = pods.iter().cloned().chain([machine.node.name().to_owned()]).collect();
        removal::kill_inside(&all)?;
        for pod in pods {
            self.lab.inner.remove_namespace(&Ns::new(pod))?;
        }
        underlay::pull_out(&self.underlay, &machine.name)?;
        machine.node.destroy()?;
        sweep::remove_directory(machine.agent.run_dir())
    }

    fn is_half_off(&self, index: usize) -> bool {
        let machine = &self.machines[index];
        machine.node.path().exists() || machine.agent.run_dir().exists()
    }

    pub(super) fn begun(&self) -> MutexGuard<'_, Vec<Begun>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
