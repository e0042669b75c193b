//! A command may be killed at any time. It saves each step before it starts, and the next command completes the step here.

use std::sync::{MutexGuard, PoisonError};

use anyhow::Result;

use super::{Cluster, ClusterOrigin, PendingPod, Power, removal, underlay};
use crate::{Node, Ns, sweep};

impl Cluster {
    /// Removes pods that were not completely created, and the remains of powered-off nodes.
    pub(super) fn complete_interrupted_steps(&mut self) -> Result<()> {
        let off = (0..self.nodes.len()).filter(|index| self.nodes[*index].power == Power::Off);
        let half_off: Vec<usize> = off.filter(|index| self.is_half_off(*index)).collect();
        let pending = std::mem::take(&mut *self.pending());
        if half_off.is_empty() && pending.is_empty() {
            return Ok(());
        }
        for index in half_off {
            self.power_off(index)?;
        }
        for pod in pending {
            // A pod that cannot be removed does not block the lab; the next command tries again.
            match self.remove_pending(&pod) {
                Ok(()) => drop(self.placements().remove(&pod.name)),
                Err(_) => self.pending().push(pod),
            }
        }
        self.remember()
    }

    /// Records that a pod is about to be created. Not needed while the cluster is being created, because it is then removed
    /// as a whole.
    pub(super) fn record_pending(&self, host: &Node, (node, name): (&str, &str)) -> Result<()> {
        if self.origin == ClusterOrigin::Created {
            return Ok(());
        }
        let id = format!("{}-{name}-{}", host.name(), self.lab.inner.serial());
        self.pending().push(PendingPod { name: name.to_owned(), node: node.to_owned(), id });
        self.remember()
    }

    /// Removes a partially created pod.
    fn remove_pending(&self, pending: &PendingPod) -> Result<()> {
        // A later container with the same name needs another ID.
        self.lab.inner.next_serial();
        let host = &self.nodes[self.index(&pending.node)?];
        let pod = host.node.known_pod(&pending.name, &pending.id);
        if host.power == Power::On {
            removal::kill_plugins(host.node.path(), &pending.id)?;
            // If the agent is not running, the plugin leaves a tombstone for it.
            let detached = self.detach(&pending.node, &pending.name, &pod);
            pod.destroy()?;
            return detached;
        }
        pod.destroy()
    }

    /// Removes everything of a node except its directory. Missing objects are not an error.
    pub(super) fn power_off(&mut self, index: usize) -> Result<()> {
        let host = &mut self.nodes[index];
        if host.agent.identity().is_some() {
            host.agent.kill()?;
        }
        let pods = sweep::namespaces_of(host.node.name())?;
        let all: Vec<String> = pods.iter().cloned().chain([host.node.name().to_owned()]).collect();
        removal::kill_inside(&all)?;
        for pod in pods {
            self.lab.inner.remove_namespace(&Ns::new(pod))?;
        }
        underlay::unplug(&self.underlay, &host.name)?;
        host.node.destroy()?;
        sweep::remove_directory(host.agent.run_dir())
    }

    fn is_half_off(&self, index: usize) -> bool {
        let host = &self.nodes[index];
        host.node.path().exists() || host.agent.run_dir().exists()
    }

    pub(super) fn pending(&self) -> MutexGuard<'_, Vec<PendingPod>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
