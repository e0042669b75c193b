//! The pods of other nodes on disk, for a boot without the store: one JSON object per line, identities first. Also the addresses of this
//! node's own records in the store, which are not assigned to other pods before the store is reachable.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use model::objects::Identity;
use model::{IdentityHash, NodeRecord, PodRecord};
use serde::{Deserialize, Serialize};
use types::NodeName;

use super::mirror::{IdentityMirror, RemotePod, StoredIdentity};

/// The known pods of other nodes, by address, and the addresses of this node's pods in the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SavedPods {
    pods: BTreeMap<IpAddr, RemotePod>,
    own: BTreeSet<IpAddr>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SavedLine {
    Identity { hash: IdentityHash, identity: Identity },
    Pod { node: NodeName, address: IpAddr, record: PodRecord },
    Own(IpAddr),
}

impl SavedPods {
    pub(crate) fn len(&self) -> usize {
        self.pods.len()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut identities = BTreeMap::new();
        for pod in self.pods.values() {
            identities.entry(&pod.record.identity).or_insert(&pod.identity);
        }
        let identities = identities.into_iter().map(|(hash, identity)| SavedLine::Identity {
            hash: hash.clone(),
            identity: (**identity).clone(),
        });
        let pods = self.pods.iter().map(|(address, pod)| SavedLine::Pod {
            node: pod.node.clone(),
            address: *address,
            record: (*pod.record).clone(),
        });
        let mut text = Vec::new();
        let own = self.own.iter().map(|address| SavedLine::Own(*address));
        for line in identities.chain(pods).chain(own) {
            // Names, addresses and labels always serialize.
            text.extend(serde_json::to_vec(&line).unwrap_or_default());
            text.push(b'\n');
        }
        text
    }

    /// Unreadable lines are ignored: their pods are unknown until the store answers.
    pub(crate) fn decode(text: &[u8]) -> Self {
        let (mut identities, mut pods, mut own) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        for line in lines.filter_map(|line| serde_json::from_slice(line).ok()) {
            match line {
                SavedLine::Identity { hash, identity } => drop(identities.insert(hash, Arc::new(identity))),
                SavedLine::Own(address) => drop(own.insert(address)),
                SavedLine::Pod { node, address, record } => {
                    if let Some(identity) = identities.get(&record.identity).cloned() {
                        pods.insert(address, RemotePod { node, record: Arc::new(record), identity });
                    }
                }
            }
        }
        Self { pods, own }
    }
}

impl IdentityMirror {
    /// The pods that are known now.
    pub(crate) fn saved(&self) -> SavedPods {
        let known = self.addresses_of_pods().filter_map(|address| Some((address, self.pod(address)?)));
        SavedPods { pods: known.collect(), own: self.own_pods.keys().copied().collect() }
    }

    /// Peers were admitted when they were saved: their blocks have claims.
    pub(super) fn restore(&mut self, peers: &[NodeRecord], SavedPods { pods, own }: SavedPods) {
        own.into_iter().for_each(|address| self.restore_own(address));
        for peer in peers {
            self.set_node(peer);
            peer.blocks.iter().for_each(|block| self.set_claim(*block, Some(&peer.name)));
        }
        for (address, pod) in pods {
            // The store's listing replaces it.
            let value = pod.record.identity.clone();
            let stored = StoredIdentity { identity: Some(pod.identity), value, revision: 0 };
            self.identities.entry(pod.record.identity.clone()).or_insert(stored);
            self.set_record(&pod.node, address, Some(&pod.record));
        }
    }
}
