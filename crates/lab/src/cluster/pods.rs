//! Pods of a cluster, through the real plugin and the agent of their node.

use std::net::IpAddr;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::reach::{self, Cell, Matrix, Spot};
use super::ways::{PodPath, Ways};
use super::{Cluster, Power};
use crate::{Call, Pod, Verb};

/// A pod that is attached.
#[derive(Debug)]
pub struct AttachedPod {
    pub name: String,
    /// Its node's name.
    pub node: String,
    pub pod: Pod,
    pub addresses: Vec<IpAddr>,
}

impl Cluster {
    /// Makes a pod on a node. Its name is the only one of the cluster.
    pub fn pod(&self, node: &str, name: &str) -> Result<Arc<AttachedPod>> {
        let machine = &self.machines[self.index(node)?];
        ensure!(machine.power == Power::On, "node {node} has no power: start it first");
        ensure!(!self.is_taken(name, node), "the name {name} is taken: choose another");
        self.begin(&machine.node, (node, name))?;
        let pod = machine.node.pod(name)?;
        let attached = self.attach(node, name, &pod);
        if attached.is_err() {
            pod.destroy()?;
        }
        self.begun().retain(|begun| begun.id != pod.id());
        let addresses = attached.with_context(|| format!("pod {name} on {node} gets no network"))?;
        let wired = Arc::new(AttachedPod { name: name.to_owned(), node: node.to_owned(), pod, addresses });
        self.list().push(Arc::clone(&wired));
        Ok(wired)
    }

    /// Also a pod that a node without power had has its name: it comes back with the node.
    fn is_taken(&self, name: &str, node: &str) -> bool {
        let others = self.machines.iter().filter(|machine| machine.name != node);
        let lost = others.flat_map(|machine| &machine.lost).any(|lost| lost == name);
        lost || self.find_pod(name).is_some() || self.host(name).is_some()
    }

    /// So many pods on each node, all nodes at once, under the first free names p1, p2, …
    pub fn pods_everywhere(&self, per_node: usize) -> Result<()> {
        let mut names = (1..).map(|number| format!("p{number}")).filter(|name| self.find_pod(name).is_none());
        let mut work = Vec::new();
        for node in self.node_names() {
            work.push((node, names.by_ref().take(per_node).collect::<Vec<_>>()));
        }
        std::thread::scope(|scope| {
            let made = |(node, names): (String, Vec<String>)| {
                scope.spawn(move || names.iter().try_for_each(|name| self.pod(&node, name).map(drop)))
            };
            let threads: Vec<_> = work.into_iter().map(made).collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    pub fn free_pod_name(&self) -> String {
        let mut names = (1..).map(|number| format!("p{number}"));
        names.find(|name| !self.is_taken(name, "")).unwrap_or_default()
    }

    /// DEL through the plugin, then the namespace goes.
    pub fn remove_pod(&self, name: &str) -> Result<()> {
        let Some(wired) = self.find_pod(name) else { bail!("there is no pod {name}{}", self.known_pods()) };
        self.detach(&wired.node, name, &wired.pod)?;
        wired.pod.destroy()?;
        self.list().retain(|other| other.name != name);
        Ok(())
    }

    /// By node, then by name.
    pub fn pods(&self) -> Vec<Arc<AttachedPod>> {
        let mut pods = self.list().clone();
        pods.sort_by_key(|wired| {
            (self.index(&wired.node).unwrap_or(usize::MAX), wired.name.len(), wired.name.clone())
        });
        pods
    }

    pub fn find_pod(&self, name: &str) -> Option<Arc<AttachedPod>> {
        self.list().iter().find(|wired| wired.name == name).cloned()
    }

    /// Every pod to every other pod, in every family they share, asked for at most so long.
    pub fn reach(&self, within: Duration) -> Result<Matrix> {
        let begun = Instant::now();
        let pods = self.pods();
        let found = reach::probe(&pods.iter().map(|wired| &**wired).collect::<Vec<_>>(), within)?;
        let took = begun.elapsed();
        let ways = self.ways();
        let mut cells = Vec::new();
        for (i, from) in pods.iter().enumerate() {
            for (j, to) in pods.iter().enumerate().filter(|(j, _)| *j != i) {
                let [v4, v6] = found.get(&(i, j)).cloned().unwrap_or_default();
                let way = match (&ways[self.index(&from.node)?], to.addresses.first()) {
                    _ if from.node == to.node => PodPath::Local,
                    (Some(ways), Some(address)) => ways.to(*address),
                    (None, _) | (_, None) => PodPath::None,
                };
                cells.push(Cell { from: from.name.clone(), to: to.name.clone(), v4, v6, way });
            }
        }
        let spot = |wired: &Arc<AttachedPod>| Spot { name: wired.name.clone(), node: wired.node.clone() };
        let pods = pods.iter().map(spot).collect();
        Ok(Matrix { pods, cells, took })
    }

    /// Of every node; none of one that has no power.
    fn ways(&self) -> Vec<Option<Ways>> {
        self.machines.iter().map(|machine| Ways::of(&machine.node).ok()).collect()
    }

    fn attach(&self, node: &str, name: &str, pod: &Pod) -> Result<Vec<IpAddr>> {
        let outcome = self.plugin.call(pod.node(), &self.call(Verb::Add, (node, name), pod)?)?;
        addresses(&outcome.ok()?)
    }

    pub(super) fn detach(&self, node: &str, name: &str, pod: &Pod) -> Result<()> {
        let outcome = self.plugin.call(pod.node(), &self.call(Verb::Del, (node, name), pod)?)?;
        outcome.ok().map(drop).with_context(|| format!("DEL of pod {name}"))
    }

    /// Container and pod are called as Kubernetes and containerd would.
    fn call(&self, verb: Verb, (node, name): (&str, &str), pod: &Pod) -> Result<Call> {
        let config = self.agent(node)?.config(&json!({}));
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=lab;K8S_POD_NAME={name}");
        Ok(Call { args: Some(args), ..Call::pod(verb, pod, &config) })
    }

    pub(super) fn list(&self) -> MutexGuard<'_, Vec<Arc<AttachedPod>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_pods(&self) -> String {
        let names: Vec<String> = self.pods().iter().map(|wired| wired.name.clone()).collect();
        if names.is_empty() { String::new() } else { format!(": the pods are {}", names.join(", ")) }
    }
}

fn addresses(result: &Value) -> Result<Vec<IpAddr>> {
    let ips = result["ips"].as_array().context("the result has no ips")?;
    ips.iter()
        .map(|ip| {
            let text = ip["address"].as_str().context("an address is missing in the result")?;
            Ok(text.split('/').next().unwrap_or(text).parse()?)
        })
        .collect()
}
