//! The identities of this node's pods, as they should be in the store.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cni::MAX_POD_NAME;
use model::{IdentityHash, MAX_SIZE, PodRecord};
use policy::PodEntry;
use tokio::sync::Notify;
use tracing::warn;
use types::{AttachmentKey, Digest};

use super::records::{RecordName, record_name};
use crate::policies::LocalPod;

/// The values of a pod for the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublishedPod {
    pub(crate) record: PodRecord,
    /// The value of the identity.
    pub(crate) identity: Vec<u8>,
}

/// The addresses that this node publishes. There is never more than one value per address, so that its size is bounded by the pods.
pub(crate) type PublishedPods = BTreeMap<IpAddr, Arc<PublishedPod>>;

/// ADD and DEL change it in memory and never wait for the store.
#[derive(Debug)]
pub(crate) struct LocalIdentities {
    state: Mutex<LocalState>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct LocalState {
    addresses: PublishedPods,
    /// The pod that has each address, and the addresses of each pod.
    owners: HashMap<IpAddr, AttachmentKey>,
    pods: HashMap<AttachmentKey, BTreeSet<IpAddr>>,
    /// Pods that changed since the listing of the records began. None: no listing is in progress.
    touched: Option<HashSet<AttachmentKey>>,
    /// Addresses for which the store has a record of this node, as far as it is known.
    stored: HashSet<IpAddr>,
    /// Whether the records were listed. Until then the pods of an earlier agent are not known.
    is_complete: bool,
}

impl LocalIdentities {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: Arc::default() })
    }

    /// Notified when something has to be published.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// Adds or replaces a pod. A pod without a known placement has no identity.
    pub(crate) fn set(&self, pod: &LocalPod) {
        let published = pod.entry.as_ref().and_then(published);
        let is_changed = {
            let mut state = self.lock();
            state.touch(&pod.key);
            state.replace(&pod.key, published)
        };
        self.notify(is_changed);
    }

    pub(crate) fn remove(&self, key: &AttachmentKey) {
        let is_changed = {
            let mut state = self.lock();
            state.touch(key);
            state.replace(key, None)
        };
        self.notify(is_changed);
    }

    /// Called before the records are listed. Pods that change meanwhile are not changed by the listing.
    pub(super) fn begin_listing(&self) {
        self.lock().touched = Some(HashSet::new());
    }

    /// Adds the pods that are ready, and removes pods without any record.
    pub(super) fn finish_listing(&self, ready: &[LocalPod], recorded: &BTreeSet<RecordName>) {
        let is_changed = {
            let mut state = self.lock();
            let mut is_changed = !std::mem::replace(&mut state.is_complete, true);
            let touched = state.touched.take().unwrap_or_default();
            let is_gone =
                |key: &&AttachmentKey| !recorded.contains(&record_name(key)) && !touched.contains(*key);
            let gone: Vec<AttachmentKey> = state.pods.keys().filter(is_gone).cloned().collect();
            for key in &gone {
                is_changed |= state.replace(key, None);
            }
            for pod in ready.iter().filter(|pod| !touched.contains(&pod.key)) {
                is_changed |= state.replace(&pod.key, pod.entry.as_ref().and_then(published));
            }
            is_changed
        };
        self.notify(is_changed);
    }

    /// Whether other nodes may know a pod with this address.
    pub(crate) fn is_stored(&self, address: IpAddr) -> bool {
        self.lock().stored.contains(&address)
    }

    pub(super) fn set_stored(&self, addresses: HashSet<IpAddr>) {
        self.lock().stored = addresses;
    }

    /// None until the records were listed.
    pub(super) fn published(&self) -> Option<PublishedPods> {
        let state = self.lock();
        state.is_complete.then(|| state.addresses.clone())
    }

    fn notify(&self, is_changed: bool) {
        if is_changed {
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, LocalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalState {
    fn touch(&mut self, key: &AttachmentKey) {
        if let Some(touched) = &mut self.touched {
            touched.insert(key.clone());
        }
    }

    /// Returns whether anything changed. An earlier pod that had one of the addresses does not exist any more.
    fn replace(&mut self, key: &AttachmentKey, new: Option<(Vec<IpAddr>, Arc<PublishedPod>)>) -> bool {
        let before = self.pods.remove(key).unwrap_or_default();
        let (ips, value) = new.map_or_else(Default::default, |(ips, value)| (ips, Some(value)));
        let after: BTreeSet<IpAddr> = ips.into_iter().collect();
        let mut is_changed = false;
        for ip in before.difference(&after) {
            if self.owners.get(ip) == Some(key) {
                self.owners.remove(ip);
                is_changed |= self.addresses.remove(ip).is_some();
            }
        }
        for ip in &after {
            self.owners.insert(*ip, key.clone());
            if let Some(value) = &value {
                is_changed |= self.addresses.insert(*ip, Arc::clone(value)).as_ref() != Some(value);
            }
        }
        if !after.is_empty() {
            self.pods.insert(key.clone(), after);
        }
        is_changed
    }
}

/// The longest uid that is published. Longer ones are hashed.
const MAX_UID: usize = 512;

/// Attachments of earlier versions, and container ids, may be of any length. None: other nodes could not read the identity, so the pod
/// stays unknown to them.
fn published(pod: &PodEntry) -> Option<(Vec<IpAddr>, Arc<PublishedPod>)> {
    let (identity, value): (IdentityHash, Vec<u8>) = pod.identity.stored();
    if value.len() > MAX_SIZE {
        warn!(size = value.len(), max = MAX_SIZE, "identity of a pod is too large to be published");
        return None;
    }
    let uid = match pod.uid.to_string() {
        uid if uid.len() <= MAX_UID => uid,
        uid => format!("#{}", Digest::of(&[&uid]).base32(51)),
    };
    let name = pod.name.name[..pod.name.name.floor_char_boundary(MAX_POD_NAME)].to_owned();
    let record = PodRecord { identity, uid, name };
    Some((pod.addresses.clone().unwrap_or_default(), Arc::new(PublishedPod { record, identity: value })))
}
