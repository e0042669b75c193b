//! Pods of a cluster, attached by the real plugin and the agent of their node.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::paths::{NodeRoutes, PodPath};
use super::reach::{self, Matrix, MatrixCell, MatrixPod};
use super::{Cluster, Power};
use crate::{Call, Pod, Verb};

/// An attached pod.
#[derive(Debug)]
pub struct AttachedPod {
    pub name: String,
    /// The name of its node.
    pub node: String,
    pub pod: Pod,
    pub addresses: Vec<IpAddr>,
}

/// Tenant, network and group of a pod. None: the default of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPlacement {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

impl Cluster {
    /// The same for a pod with a placement, which it keeps when its node starts again.
    pub fn placed_pod(&self, node: &str, name: &str, placement: PodPlacement) -> Result<Arc<AttachedPod>> {
        ensure!(!self.is_taken(name, node), "the name {name} is already in use: choose another");
        self.placements().insert(name.to_owned(), placement);
        let result = self.pod(node, name);
        if result.is_err() {
            self.placements().remove(name);
        }
        result
    }

    /// Creates a pod on a node. The name must be unique in the cluster.
    pub fn pod(&self, node: &str, name: &str) -> Result<Arc<AttachedPod>> {
        let host = &self.nodes[self.index(node)?];
        ensure!(host.power == Power::On, "node {node} is powered off: start it first");
        ensure!(!self.is_taken(name, node), "the name {name} is already in use: choose another");
        self.record_pending(&host.node, (node, name))?;
        let pod = host.node.pod(name)?;
        let result = self.attach(node, name, &pod);
        if result.is_err() {
            pod.destroy()?;
        }
        self.pending().retain(|pending| pending.id != pod.id());
        let addresses = result.with_context(|| format!("cannot attach pod {name} on {node}"))?;
        let attached = Arc::new(AttachedPod { name: name.to_owned(), node: node.to_owned(), pod, addresses });
        self.list().push(Arc::clone(&attached));
        Ok(attached)
    }

    /// Names of pods on powered-off nodes stay reserved, because the pods are created again when the node starts.
    fn is_taken(&self, name: &str, node: &str) -> bool {
        let other_nodes = self.nodes.iter().filter(|host| host.name != node);
        let is_lost = other_nodes.flat_map(|host| &host.lost).any(|lost| lost == name);
        is_lost || self.find_pod(name).is_some() || self.host(name).is_some()
    }

    /// Creates `per_node` pods on each node, all nodes in parallel, with the first free names of p1, p2, …
    pub fn pods_everywhere(&self, per_node: usize) -> Result<()> {
        let mut names = (1..).map(|number| format!("p{number}")).filter(|name| self.find_pod(name).is_none());
        let mut work = Vec::new();
        for node in self.node_names() {
            work.push((node, names.by_ref().take(per_node).collect::<Vec<_>>()));
        }
        std::thread::scope(|scope| {
            let create = |(node, names): (String, Vec<String>)| {
                scope.spawn(move || names.iter().try_for_each(|name| self.pod(&node, name).map(drop)))
            };
            let threads: Vec<_> = work.into_iter().map(create).collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    pub fn free_pod_name(&self) -> String {
        let mut names = (1..).map(|number| format!("p{number}"));
        names.find(|name| !self.is_taken(name, "")).unwrap_or_default()
    }

    /// Calls DEL and removes the namespace.
    pub fn remove_pod(&self, name: &str) -> Result<()> {
        let Some(attached) = self.find_pod(name) else {
            bail!("there is no pod {name}{}", self.known_pods())
        };
        self.detach(&attached.node, name, &attached.pod)?;
        attached.pod.destroy()?;
        self.list().retain(|attached| attached.name != name);
        self.placements().remove(name);
        Ok(())
    }

    /// All pods, ordered by node and name.
    pub fn pods(&self) -> Vec<Arc<AttachedPod>> {
        let mut pods = self.list().clone();
        pods.sort_by_key(|attached| {
            (self.index(&attached.node).unwrap_or(usize::MAX), attached.name.len(), attached.name.clone())
        });
        pods
    }

    pub fn find_pod(&self, name: &str) -> Option<Arc<AttachedPod>> {
        self.list().iter().find(|attached| attached.name == name).cloned()
    }

    /// Probes every pair of pods in every family that both have, for at most `within`.
    pub fn reach(&self, within: Duration) -> Result<Matrix> {
        let started = Instant::now();
        let pods = self.pods();
        let results = reach::probe(&pods.iter().map(|attached| &**attached).collect::<Vec<_>>(), within)?;
        let took = started.elapsed();
        let routes = self.routes();
        let mut cells = Vec::new();
        for (i, from) in pods.iter().enumerate() {
            for (j, to) in pods.iter().enumerate().filter(|(j, _)| *j != i) {
                let [v4, v6] = results.get(&(i, j)).cloned().unwrap_or_default();
                let path = match (&routes[self.index(&from.node)?], to.addresses.first()) {
                    _ if from.node == to.node => PodPath::Local,
                    (Some(routes), Some(address)) => routes.path_to(*address),
                    (None, _) | (_, None) => PodPath::None,
                };
                cells.push(MatrixCell { from: from.name.clone(), to: to.name.clone(), v4, v6, path });
            }
        }
        let matrix_pod = |attached: &Arc<AttachedPod>| MatrixPod {
            name: attached.name.clone(),
            node: attached.node.clone(),
        };
        let pods = pods.iter().map(matrix_pod).collect();
        Ok(Matrix { pods, cells, took })
    }

    /// The routes of every node; `None` for a powered-off node.
    fn routes(&self) -> Vec<Option<NodeRoutes>> {
        self.nodes.iter().map(|host| NodeRoutes::of(&host.node).ok()).collect()
    }

    fn attach(&self, node: &str, name: &str, pod: &Pod) -> Result<Vec<IpAddr>> {
        let outcome = self.plugin.call(pod.node(), &self.call(Verb::Add, (node, name), pod)?)?;
        addresses(&outcome.result()?)
    }

    pub(super) fn detach(&self, node: &str, name: &str, pod: &Pod) -> Result<()> {
        let outcome = self.plugin.call(pod.node(), &self.call(Verb::Del, (node, name), pod)?)?;
        outcome.result().map(drop).with_context(|| format!("DEL of pod {name}"))
    }

    /// Passes the pod's name and namespace in CNI_ARGS, as containerd does for Kubernetes, and its placement in the config.
    fn call(&self, verb: Verb, (node, name): (&str, &str), pod: &Pod) -> Result<Call> {
        let placement = self.placements().get(name).cloned().unwrap_or_default();
        let config = self.agent(node)?.config(&serde_json::to_value(placement)?);
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=lab;K8S_POD_NAME={name}");
        Ok(Call { args: Some(args), ..Call::pod(verb, pod, &config) })
    }

    pub(super) fn list(&self) -> MutexGuard<'_, Vec<Arc<AttachedPod>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn placements(&self) -> MutexGuard<'_, BTreeMap<String, PodPlacement>> {
        self.placements.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_pods(&self) -> String {
        let names: Vec<String> = self.pods().iter().map(|attached| attached.name.clone()).collect();
        if names.is_empty() { String::new() } else { format!(": existing pods are {}", names.join(", ")) }
    }
}

fn addresses(result: &Value) -> Result<Vec<IpAddr>> {
    let ips = result["ips"].as_array().context("the CNI result has no ips")?;
    ips.iter()
        .map(|ip| {
            let text = ip["address"].as_str().context("an entry of ips has no address")?;
            Ok(text.split('/').next().unwrap_or(text).parse()?)
        })
        .collect()
}
