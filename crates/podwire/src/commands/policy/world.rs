//! The policy engine with everything that files describe.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use api::ExplainAnswer;
use ipnet::IpNet;
use model::Labels;
use model::kubernetes::KubePod;
use model::objects::Identity;
use policy::{
    FlowAnswers, FlowQuery, FlowTraffic, NodeEntry, PodEntry, PodPhase, PodUid, PolicyEngine, QueryEnd,
    WorldChange,
};
use types::{NodeName, Placement};

use super::files::PolicyFiles;

/// The node of pods without one.
const DEFAULT_NODE: &str = "node";

#[derive(Debug)]
pub(super) struct PolicyWorld {
    pub(super) engine: PolicyEngine,
}

/// Assigns addresses of the pod's network to pods that have none.
struct FreeAddresses {
    used: BTreeSet<IpAddr>,
}

impl PolicyWorld {
    pub(super) fn new(files: &PolicyFiles) -> Result<Self> {
        let node = NodeName::try_from(DEFAULT_NODE)?;
        let mut engine = PolicyEngine::new(node.clone());
        let objects =
            files.catalog.records().filter_map(|(_, record)| WorldChange::of_object(&record.object));
        let nodes = files.nodes.iter().map(|node| {
            let entry = NodeEntry { addresses: node.addresses.clone(), labels: node.labels.clone() };
            WorldChange::SetNode(node.name.clone(), entry)
        });
        let namespaces = namespaces(files);
        let pods = pods(files, &namespaces, &node)?;
        let labels = namespaces.into_iter().map(|(name, labels)| WorldChange::SetNamespace(name, labels));
        let network_policies = files.network_policies.iter().cloned().map(WorldChange::SetNetworkPolicy);
        let cluster_policies = files.cluster_policies.iter().cloned().map(WorldChange::SetClusterPolicy);
        let changes = objects.chain(nodes).chain(labels).chain(network_policies).chain(cluster_policies);
        let changes: Vec<WorldChange> = changes.chain(pods.into_iter().map(WorldChange::SetPod)).collect();
        engine.apply(changes);
        Ok(Self { engine })
    }

    /// One flow for each pair of ends.
    pub(super) fn explain(&self, from: &str, to: &str, traffic: FlowTraffic) -> Result<ExplainAnswer> {
        let [from, to] = [from, to].map(|end| QueryEnd::Named(end.to_owned()));
        let FlowAnswers { explanations, omitted } = self.engine.answer(&FlowQuery { from, to, traffic })?;
        let flows = explanations.iter().map(agent::flow_view).collect();
        Ok(ExplainAnswer { not_enforced: None, flows, omitted: omitted as u64 })
    }
}

/// The namespaces of all documents. The API server labels each one with its name.
fn namespaces(files: &PolicyFiles) -> BTreeMap<String, Labels> {
    let described = files.namespaces.iter().map(|one| (one.name.clone(), one.labels.clone()));
    let mut namespaces: BTreeMap<String, Labels> = described.collect();
    let used = files.pods.iter().filter_map(|pod| pod.name.namespace.clone());
    let used = used.chain(files.network_policies.iter().map(|policy| policy.namespace.clone()));
    for name in used {
        namespaces.entry(name).or_default();
    }
    for (name, labels) in &mut namespaces {
        labels.insert("kubernetes.io/metadata.name".to_owned(), name.clone());
    }
    namespaces
}

fn pods(
    files: &PolicyFiles,
    namespaces: &BTreeMap<String, Labels>,
    node: &NodeName,
) -> Result<Vec<PodEntry>> {
    let listed = files.pods.iter().flat_map(|pod| pod.addresses.iter().flatten().copied());
    let mut free = FreeAddresses { used: listed.collect() };
    let mut names = BTreeSet::new();
    let entry = |pod: &KubePod| {
        let name = &pod.name;
        if !names.insert(name.clone()) {
            bail!("pod {name} is described twice");
        }
        pod_entry(pod, files, namespaces, (node, &mut free)).with_context(|| format!("pod {name}"))
    };
    files.pods.iter().map(entry).collect()
}

fn pod_entry(
    pod: &KubePod,
    files: &PolicyFiles,
    namespaces: &BTreeMap<String, Labels>,
    (node, free): (&NodeName, &mut FreeAddresses),
) -> Result<PodEntry> {
    let mut request = pod.placement.clone();
    let namespace = pod.name.namespace.as_ref().and_then(|name| namespaces.get(name));
    let of_namespace = namespace.map(model::PlacementRequest::of_labels).unwrap_or_default();
    request.tenant = request.tenant.or(of_namespace.tenant);
    let placement = files.catalog.resolve(&request)?;
    let phase = if pod.is_completed { PodPhase::Completed } else { PodPhase::Running };
    let addresses = match &pod.addresses {
        None => None,
        Some(listed) if listed.is_empty() => Some(free.take(files, &placement)?),
        Some(listed) => Some(listed.clone()),
    };
    Ok(PodEntry {
        uid: PodUid::from(pod.uid.as_str()),
        name: pod.name.clone(),
        node: pod.node.clone().unwrap_or_else(|| node.clone()),
        identity: Arc::new(Identity {
            placement,
            namespace: pod.name.namespace.clone(),
            labels: pod.labels.clone(),
            ports: pod.ports.clone(),
        }),
        addresses,
        phase,
    })
}

impl FreeAddresses {
    /// One address per family of the network.
    fn take(&mut self, files: &PolicyFiles, placement: &Placement) -> Result<Vec<IpAddr>> {
        let network = files.catalog.network_of(&placement.tenant, &placement.network);
        let subnets: Vec<IpNet> = network.map(|network| network.subnets.clone()).unwrap_or_default();
        let take = |subnet: &IpNet| {
            // The first address of a subnet is its gateway.
            let free = subnet.hosts().skip(1).find(|address| !self.used.contains(address));
            let free = free.with_context(|| format!("{subnet} has no free address"))?;
            self.used.insert(free);
            Ok(free)
        };
        subnets.iter().map(take).collect()
    }
}
