//! The engine with the inputs that it has. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use engine::policy::LinkGroup;
use model::Catalog;
use nft::desired::policy::OwnNode;
use policy::{Delta, NodeEntry, PolicyCounts, PolicyElement, PolicyEngine, PolicyProblem, WorldChange};
use types::{AttachmentKey, NodeName};

use super::objects;
use super::pods::{LocalPod, LocalPods};
use crate::identities::{RecordName, record_name};

pub(super) struct Enforced {
    engine: Arc<PolicyEngine>,
    node: NodeName,
    addresses: Vec<IpAddr>,
    objects: Option<Arc<Catalog>>,
    pub(super) pods: LocalPods,
}

impl Enforced {
    pub(super) fn new(node: &NodeName) -> Self {
        Self {
            engine: Arc::new(PolicyEngine::new(node.clone())),
            node: node.clone(),
            addresses: Vec::new(),
            objects: None,
            pods: LocalPods::default(),
        }
    }

    pub(super) fn apply(&mut self, changes: Vec<WorldChange>) -> Delta {
        if changes.is_empty() { Delta::default() } else { Arc::make_mut(&mut self.engine).apply(changes) }
    }

    pub(super) fn set_objects(&mut self, objects: &Arc<Catalog>) -> Vec<WorldChange> {
        let changes = objects::changes(self.objects.as_deref(), objects);
        self.objects = Some(Arc::clone(objects));
        changes
    }

    pub(super) fn set_addresses(&mut self, addresses: Vec<IpAddr>) -> Vec<WorldChange> {
        if self.addresses == addresses {
            return Vec::new();
        }
        self.addresses.clone_from(&addresses);
        vec![WorldChange::SetNode(self.node.clone(), NodeEntry { addresses, labels: model::Labels::new() })]
    }

    /// Adds pods with a record and removes pods without one. `recorded` are all records, also of pods that are being removed.
    pub(super) fn set_pods(
        &mut self,
        pods: Vec<LocalPod>,
        recorded: &BTreeSet<RecordName>,
    ) -> Vec<WorldChange> {
        let gone: Vec<AttachmentKey> = self
            .pods
            .iter()
            .map(|pod| &pod.key)
            .filter(|key| !recorded.contains(&record_name(key)))
            .cloned()
            .collect();
        let mut changes: Vec<WorldChange> = gone.iter().filter_map(|key| self.pods.remove(key)).collect();
        changes.extend(pods.into_iter().flat_map(|pod| self.pods.set(pod)));
        changes
    }

    /// Whether a pod of this node is in another tenant than `default`.
    pub(super) fn has_tenant_pods(&self) -> bool {
        self.pods.iter().any(LocalPod::needs_policies)
    }

    pub(super) fn group(&self, pod: &LocalPod) -> LinkGroup {
        let profile = pod.entry.as_ref().and_then(|entry| self.engine.profile(&entry.uid));
        profile.map_or(LinkGroup::CLOSED, |profile| LinkGroup(profile.0))
    }

    pub(super) fn groups(&self) -> Vec<(&LocalPod, LinkGroup)> {
        self.pods.iter().map(|pod| (pod, self.group(pod))).collect()
    }

    pub(super) fn elements(&self) -> Vec<PolicyElement> {
        self.engine.elements().collect()
    }

    pub(super) fn own_node(&self) -> OwnNode {
        if self.engine.judges_own_node() { OwnNode::Judged } else { OwnNode::Accepted }
    }

    pub(super) fn engine(&self) -> &Arc<PolicyEngine> {
        &self.engine
    }

    pub(super) fn counts(&self) -> PolicyCounts {
        self.engine.counts()
    }

    pub(super) fn problems(&self) -> Vec<PolicyProblem> {
        self.engine.problems()
    }
}
