//! The pods and nodes of the cluster, as the policy engine gets them. Pure.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use model::Labels;
use model::objects::{Identity, NamespacedName};
use policy::{NodeEntry, PodEntry, PodPhase, PodUid, WorldChange};
use types::NodeName;

use super::objects::restrict_pod;
use crate::identities::{RemoteChanges, RemotePod};

/// Removed pods whose identity is remembered.
const MAX_DEPARTED: usize = 65_536;

/// Whether an address belongs to a pod with other properties than before, or to its first known pod. Its flows must be judged again:
/// those of an unknown address were not judged. The same applies to the addresses of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reuse {
    None,
    OtherIdentity,
}

/// The pods and nodes that the policy thread has received, also while no policy is enforced.
#[derive(Debug, Default)]
pub(super) struct RemoteWorld {
    pods: BTreeMap<IpAddr, RemotePod>,
    /// Addresses of pods in other tenants than `default`.
    restricted: usize,
    nodes: BTreeMap<NodeName, Vec<IpAddr>>,
    /// The identity of the last pod of each address that has none now. Flows to it may still exist when another pod gets the address.
    departed: HashMap<IpAddr, Arc<Identity>>,
}

impl RemoteWorld {
    /// Returns the changes for the engine.
    pub(super) fn update(&mut self, changes: RemoteChanges) -> (Vec<WorldChange>, Reuse) {
        let RemoteChanges { pods, nodes } = changes;
        let (mut world, mut reuse) = (Vec::new(), Reuse::None);
        for (name, addresses) in nodes {
            world.extend(self.update_node(name, addresses));
        }
        // An address of a node may have been one outside of the cluster before.
        if !world.is_empty() {
            reuse = Reuse::OtherIdentity;
        }
        for (address, pod) in pods {
            if pod.as_ref() == self.pods.get(&address) {
                continue;
            }
            match pod {
                Some(pod) => {
                    reuse = if self.is_other(address, &pod.identity) { Reuse::OtherIdentity } else { reuse };
                    world.push(set_pod(address, &pod));
                    self.restricted += usize::from(restrict_pod(&pod.identity.placement));
                    let earlier = self.pods.insert(address, pod);
                    self.forget(earlier.as_ref());
                }
                None => {
                    let gone = self.pods.remove(&address);
                    self.forget(gone.as_ref());
                    if self.departed.len() >= MAX_DEPARTED {
                        // The next pods of these addresses count as their first ones.
                        self.departed.clear();
                    }
                    self.departed.extend(gone.map(|gone| (address, gone.identity)));
                    world.push(WorldChange::RemovePod(uid(address)));
                }
            }
        }
        (world, reuse)
    }

    fn forget(&mut self, pod: Option<&RemotePod>) {
        let is_restricted = pod.is_some_and(|pod| restrict_pod(&pod.identity.placement));
        self.restricted = self.restricted.saturating_sub(usize::from(is_restricted));
    }

    /// Whether a known pod is in another tenant than `default`.
    pub(super) fn has_tenant_pods(&self) -> bool {
        self.restricted > 0
    }

    fn update_node(&mut self, name: NodeName, addresses: Option<Vec<IpAddr>>) -> Option<WorldChange> {
        if addresses.as_ref() == self.nodes.get(&name) {
            return None;
        }
        match addresses {
            Some(addresses) => {
                self.nodes.insert(name.clone(), addresses.clone());
                Some(set_node(name, addresses))
            }
            None => {
                self.nodes.remove(&name);
                Some(WorldChange::RemoveNode(name))
            }
        }
    }

    fn is_other(&mut self, address: IpAddr, identity: &Arc<Identity>) -> bool {
        let departed = self.departed.remove(&address);
        let before = self.pods.get(&address).map(|pod| &pod.identity).or(departed.as_ref());
        before != Some(identity)
    }

    /// Everything, for an engine without pods.
    pub(super) fn all(&self) -> Vec<WorldChange> {
        let nodes = self.nodes.iter().map(|(name, addresses)| set_node(name.clone(), addresses.clone()));
        nodes.chain(self.pods.iter().map(|(address, pod)| set_pod(*address, pod))).collect()
    }
}

/// An address of a remote pod is an entry of its own: its addresses arrive in any order, and an address that moves to another pod is
/// replaced by one change. It differs from the uids of local pods, which are keys of attachments.
fn uid(address: IpAddr) -> PodUid {
    address.to_string().into()
}

fn set_pod(address: IpAddr, pod: &RemotePod) -> WorldChange {
    WorldChange::SetPod(PodEntry {
        uid: uid(address),
        name: NamespacedName { namespace: pod.identity.namespace.clone(), name: pod.record.name.clone() },
        node: pod.node.clone(),
        identity: Arc::clone(&pod.identity),
        addresses: Some(vec![address]),
        phase: PodPhase::Running,
    })
}

fn set_node(name: NodeName, addresses: Vec<IpAddr>) -> WorldChange {
    WorldChange::SetNode(name, NodeEntry { addresses, labels: Labels::new() })
}

#[cfg(test)]
mod tests {
    use model::PodRecord;
    use types::Placement;

    use super::*;

    fn pod(tenant: &str) -> RemotePod {
        let identity = Identity {
            placement: Placement::parse(Some(tenant), None, None).unwrap(),
            namespace: None,
            labels: Labels::new(),
            ports: Vec::new(),
        };
        let (hash, _) = identity.stored();
        let record = PodRecord { identity: hash, uid: "n/c/eth0".to_owned(), name: "c".to_owned() };
        RemotePod { node: "n2".try_into().unwrap(), record: Arc::new(record), identity: Arc::new(identity) }
    }

    fn changes(address: &str, pod: Option<RemotePod>) -> RemoteChanges {
        RemoteChanges { pods: BTreeMap::from([(address.parse().unwrap(), pod)]), nodes: BTreeMap::new() }
    }

    #[test]
    fn flows_are_judged_again_if_the_identity_of_an_address_is_new_or_another_one() {
        let mut world = RemoteWorld::default();
        let mut update = |pod: Option<&str>| {
            let (changes, reuse) = world.update(changes("10.0.0.2", pod.map(self::pod)));
            (changes.len(), reuse)
        };
        assert_eq!(update(Some("blue")), (1, Reuse::OtherIdentity), "flows of unknown addresses were kept");
        assert_eq!(update(Some("blue")), (0, Reuse::None), "nothing changed");
        assert_eq!(update(None), (1, Reuse::None));
        assert_eq!(update(Some("blue")), (1, Reuse::None), "the same identity as before");
        assert_eq!(update(Some("red")), (1, Reuse::OtherIdentity));
        assert_eq!(update(None), (1, Reuse::None));
        assert_eq!(update(Some("blue")), (1, Reuse::OtherIdentity), "after a pod that is gone");
        assert_eq!(world.all().len(), 1);
    }

    #[test]
    fn pods_of_tenants_are_counted() {
        let mut world = RemoteWorld::default();
        let mut has_tenant_pods = |address: &str, pod: Option<&str>| {
            world.update(changes(address, pod.map(self::pod)));
            world.has_tenant_pods()
        };
        assert!(!has_tenant_pods("10.0.0.1", Some("default")));
        assert!(has_tenant_pods("10.0.0.2", Some("blue")));
        assert!(has_tenant_pods("fd00::2", Some("blue")));
        assert!(has_tenant_pods("10.0.0.2", Some("default")));
        assert!(has_tenant_pods("fd00::2", Some("red")));
        assert!(!has_tenant_pods("fd00::2", None));
        assert!(!has_tenant_pods("10.0.0.2", None));
    }

    #[test]
    fn a_node_is_replaced_and_removed() {
        let mut world = RemoteWorld::default();
        let mut update = |addresses: Option<&str>| {
            let addresses = addresses.map(|address| vec![address.parse().unwrap()]);
            let nodes = BTreeMap::from([("n2".try_into().unwrap(), addresses)]);
            world.update(RemoteChanges { nodes, ..RemoteChanges::default() })
        };
        let (added, reuse) = update(Some("192.0.2.2"));
        assert_eq!((added.len(), reuse), (1, Reuse::OtherIdentity));
        assert_eq!(update(Some("192.0.2.2")), (vec![], Reuse::None));
        let removed = vec![WorldChange::RemoveNode("n2".try_into().unwrap())];
        assert_eq!(update(None), (removed, Reuse::OtherIdentity));
    }
}
