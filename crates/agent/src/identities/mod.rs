//! Identities of pods in the cluster: this node publishes those of its pods, and observes those of other nodes' pods.
//!
//! ```text
//! ADD, DEL, records ─► LocalIdentities ─┐ 10 ms                ┌─► pods, nodes ─► policy thread
//!                                       ├─► Publisher ─► store ─► IdentityObserver (IdentityMirror, pure)
//!                      stored records ──┘                      └─► pods.json, for a boot without the store
//! ```
//!
//! ADD and DEL only change a map in memory. An address without a record, an identity or a claim of its block is of no known pod, so that
//! policies deny it.

mod differences;
mod local;
mod mirror;
mod observer;
mod publisher;
mod records;
mod saved;
#[cfg(test)]
mod tests;
mod unused;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use config::{Config, StoreChoice};
use types::AttachMode;

pub(crate) use local::LocalIdentities;
pub(crate) use mirror::{IdentityMirror, RemoteChanges, RemotePod};
pub(crate) use observer::{IdentityObserver, ObserverParts, PublishSession, last_revision, observer};
pub(crate) use publisher::Publisher;
pub(crate) use records::{RecordName, local_pods, record_name};
pub(crate) use saved::SavedPods;

/// Only the observer changes it. Publisher and saver read it.
pub(crate) type SharedMirror = Arc<Mutex<IdentityMirror>>;

fn lock(mirror: &SharedMirror) -> MutexGuard<'_, IdentityMirror> {
    mirror.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Also while there are no policies: other nodes need the identities when enforcement begins.
pub(crate) fn are_published(config: &Config) -> bool {
    match (&config.store, config.network.mode) {
        (StoreChoice::Etcd(_), AttachMode::Routed) => true,
        (StoreChoice::Etcd(_), AttachMode::Bridge) | (StoreChoice::Embedded, _) => false,
    }
}
