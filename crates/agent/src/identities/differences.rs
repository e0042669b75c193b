//! What has to be written so that the store has exactly the pods of this node. Pure.

use std::collections::BTreeSet;

use ipnet::IpNet;
use model::{IdentityHash, KeyLayout, Object as _};
use store::Change;
use types::{Digest, NodeName};

use super::local::PublishedPods;
use super::mirror::{IdentityMirror, OwnRecord};

/// Changes in one transaction. etcd allows 128.
const CHANGES_PER_COMMIT: usize = 100;
/// Bytes of values in one transaction.
const BYTES_PER_COMMIT: usize = 512 << 10;

/// Keys of this node's pods.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnKeys<'a> {
    pub(super) layout: &'a KeyLayout,
    pub(super) node: &'a NodeName,
}

impl IdentityMirror {
    /// Transactions in this order. An identity is written before the pods that name it, or together with them. Only addresses in blocks of
    /// this node are published, because other nodes accept no others.
    pub(super) fn differences(
        &self,
        keys: OwnKeys<'_>,
        desired: &PublishedPods,
        blocks: &[IpNet],
    ) -> Vec<Vec<Change>> {
        let OwnKeys { layout, node } = keys;
        let mut changes = Vec::new();
        let mut new_identities: BTreeSet<&IdentityHash> = BTreeSet::new();
        let is_owned = |address| blocks.iter().any(|block| block.contains(address));
        for (address, pod) in desired.iter().filter(|(address, _)| is_owned(*address)) {
            let hash = &pod.record.identity;
            // A value that was written but cannot be read is not written again.
            let is_stored = self.identities.get(hash).is_some_and(|stored| stored.value == *hash);
            if !is_stored && new_identities.insert(hash) {
                changes.push(put(layout.identity(hash), pod.identity.clone()));
            }
            let key = layout.pod(node, *address);
            match self.own_pods.get(address) {
                Some(OwnRecord::Known(known)) if **known == pod.record => {}
                Some(OwnRecord::Newer) => {}
                Some(OwnRecord::Unreadable(digest)) => {
                    let value = pod.record.encode();
                    changes.extend((*digest != Digest::of_bytes(&value)).then(|| put(key, value)));
                }
                Some(OwnRecord::Known(_) | OwnRecord::Unlisted) | None => {
                    changes.push(put(key, pod.record.encode()));
                }
            }
        }
        let is_gone = |address| !desired.contains_key(address) || !is_owned(address);
        for (address, record) in self.own_pods.iter().filter(|(address, _)| is_gone(*address)) {
            match record {
                OwnRecord::Known(_) | OwnRecord::Unreadable(_) | OwnRecord::Unlisted => {
                    changes.push(Change::Delete(layout.pod(node, *address)));
                }
                OwnRecord::Newer => {}
            }
        }
        commits(changes)
    }
}

fn put(key: String, value: Vec<u8>) -> Change {
    Change::Put { key, value, lease: None }
}

pub(super) fn commits(changes: Vec<Change>) -> Vec<Vec<Change>> {
    let (mut commits, mut bytes) = (Vec::<Vec<Change>>::new(), 0);
    for change in changes {
        let size = change.key().len()
            + match &change {
                Change::Put { value, .. } => value.len(),
                Change::Delete(_) => 0,
            };
        match commits.last_mut() {
            Some(last) if last.len() < CHANGES_PER_COMMIT && bytes + size <= BYTES_PER_COMMIT => {
                bytes += size;
                last.push(change);
            }
            Some(_) | None => {
                bytes = size;
                commits.push(vec![change]);
            }
        }
    }
    commits
}
