//! The pods of this node, as the policy engine gets them. Pure.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use engine::policy::LinkGroup;
use engine::state::Attachment;
use model::Labels;
use model::objects::{Identity, NamespacedName};
use policy::{PodEntry, PodPhase, PodUid, ProfileId, WorldChange};
use types::{AttachmentKey, IfName, NodeName};

use super::objects::restrict_pod;

/// A pod with the name of its host end.
#[derive(Debug, Clone)]
pub(crate) struct LocalPod {
    pub(crate) key: AttachmentKey,
    pub(crate) link: IfName,
    /// None if its placement is not known: the pod is isolated.
    pub(crate) entry: Option<PodEntry>,
}

impl LocalPod {
    pub(crate) fn of(node: &NodeName, pod: &Attachment) -> Self {
        let entry = pod.placement.as_ref().map(|placement| {
            let namespace =
                pod.pod.as_ref().map(|name| name.namespace.clone()).filter(|name| !name.is_empty());
            let name =
                pod.pod.as_ref().map_or_else(|| pod.key.container.to_string(), |name| name.name.clone());
            let identity = Identity {
                placement: placement.clone(),
                namespace: namespace.clone(),
                labels: Labels::new(),
                ports: Vec::new(),
            };
            PodEntry {
                uid: pod_uid(&pod.key),
                name: NamespacedName { namespace, name },
                node: node.clone(),
                identity: Arc::new(identity),
                addresses: Some(pod.ips().collect()),
                phase: PodPhase::Running,
            }
        });
        Self { key: pod.key.clone(), link: pod.host_link.clone(), entry }
    }

    /// Whether its flows are restricted, also if no object restricts flows.
    pub(crate) fn needs_policies(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| restrict_pod(&entry.identity.placement))
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.entry.iter().flat_map(|entry| entry.addresses.iter().flatten().copied())
    }
}

/// The uid of Kubernetes does not identify an attachment: all interfaces of a pod have the same, and so has a new sandbox of the
/// pod while its earlier one is removed.
pub(crate) fn pod_uid(key: &AttachmentKey) -> PodUid {
    key.to_string().into()
}

/// The pods that the engine has.
#[derive(Debug, Default)]
pub(crate) struct LocalPods {
    pods: BTreeMap<AttachmentKey, LocalPod>,
    keys: HashMap<PodUid, AttachmentKey>,
    owners: HashMap<IpAddr, AttachmentKey>,
}

impl LocalPods {
    pub(crate) fn get(&self, key: &AttachmentKey) -> Option<&LocalPod> {
        self.pods.get(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LocalPod> {
        self.pods.values()
    }

    /// Adds or replaces a pod. An earlier pod that had one of its addresses does not exist any more.
    pub(crate) fn set(&mut self, pod: LocalPod) -> Vec<WorldChange> {
        let is_same = |known: &LocalPod| known.entry == pod.entry && known.link == pod.link;
        if self.pods.get(&pod.key).is_some_and(is_same) {
            return Vec::new();
        }
        let mut changes = Vec::new();
        if pod.entry.is_none() {
            changes.extend(self.remove(&pod.key));
        }
        let earlier: Vec<AttachmentKey> = pod
            .addresses()
            .filter_map(|ip| self.owners.get(&ip))
            .filter(|key| **key != pod.key)
            .cloned()
            .collect();
        changes.extend(earlier.iter().filter_map(|key| self.remove(key)));
        self.owners.retain(|_, key| *key != pod.key);
        self.owners.extend(pod.addresses().map(|ip| (ip, pod.key.clone())));
        if let Some(entry) = &pod.entry {
            self.keys.insert(Arc::clone(&entry.uid), pod.key.clone());
            changes.push(WorldChange::SetPod(entry.clone()));
        }
        self.pods.insert(pod.key.clone(), pod);
        changes
    }

    pub(crate) fn remove(&mut self, key: &AttachmentKey) -> Option<WorldChange> {
        let pod = self.pods.remove(key)?;
        for ip in pod.addresses() {
            if self.owners.get(&ip) == Some(key) {
                self.owners.remove(&ip);
            }
        }
        let uid = pod.entry?.uid;
        self.keys.remove(&uid);
        Some(WorldChange::RemovePod(uid))
    }

    /// The pod and its group, for a profile of the engine.
    pub(crate) fn grouped(&self, uid: &PodUid, profile: ProfileId) -> Option<(&LocalPod, LinkGroup)> {
        Some((self.pods.get(self.keys.get(uid)?)?, LinkGroup(profile.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(container: &str, ips: &[&str]) -> LocalPod {
        let key = AttachmentKey {
            network: "blue".try_into().unwrap(),
            container: container.try_into().unwrap(),
            ifname: "eth0".try_into().unwrap(),
        };
        let identity = Identity {
            placement: types::Placement::default(),
            namespace: None,
            labels: Labels::new(),
            ports: Vec::new(),
        };
        let entry = PodEntry {
            uid: pod_uid(&key),
            name: NamespacedName { namespace: None, name: container.to_owned() },
            node: "n1".try_into().unwrap(),
            identity: Arc::new(identity),
            addresses: Some(ips.iter().map(|ip| ip.parse().unwrap()).collect()),
            phase: PodPhase::Running,
        };
        LocalPod { link: key.host_link(0), key, entry: Some(entry) }
    }

    /// A stale pod with the address of a new one would give the new one the class of the stale one.
    #[test]
    fn a_new_pod_replaces_an_earlier_pod_with_one_of_its_addresses() {
        let mut pods = LocalPods::default();
        let (one, other) = (pod("c1", &["10.2.0.2", "fd00::2"]), pod("c2", &["fd00::2"]));
        let set = |pod: &LocalPod| WorldChange::SetPod(pod.entry.clone().unwrap());
        assert_eq!(pods.set(one.clone()), [set(&one)]);
        assert_eq!(pods.set(one.clone()), [], "nothing changed");
        assert_eq!(pods.set(other.clone()), [WorldChange::RemovePod(pod_uid(&one.key)), set(&other)]);
        // The DEL of the earlier pod does not affect the new one.
        assert_eq!(pods.remove(&one.key), None);
        assert_eq!(pods.set(pod("c3", &["fd00::2"]))[0], WorldChange::RemovePod(pod_uid(&other.key)));
    }

    #[test]
    fn a_pod_without_a_placement_is_not_given_to_the_engine() {
        let mut pods = LocalPods::default();
        let known = pod("c1", &["10.2.0.2"]);
        pods.set(known.clone());
        let unknown = LocalPod { entry: None, ..known.clone() };
        assert_eq!(pods.set(unknown), [WorldChange::RemovePod(pod_uid(&known.key))]);
        assert!(pods.get(&known.key).is_some_and(|pod| pod.entry.is_none()));
    }
}
