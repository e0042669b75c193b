//! The membership thread's side: passes the store's contents to the mirror, and its changes to the policy thread.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use ipnet::IpNet;
use model::{DecodeError, KeyLayout, NodeRecord};
use store::{Entry, Event, Listing, Store};
use tokio::sync::{Notify, watch};
use types::NodeName;

use super::mirror::{IdentityKey, IdentityMirror};
use super::publisher::{Publisher, PublisherParts};
use super::saved::SavedPods;
use super::{SharedMirror, lock};
use crate::membership::Contact;
use crate::membership::networks_of;
use crate::peers::inputs::{RecordUpdate, StoreListing};
use crate::policies::Policies;
use config::Config;

/// A session with the store in which this node is a member.
#[derive(Debug, Clone)]
pub(crate) struct PublishSession {
    pub(crate) store: Store,
    /// The revision of this node's record. If it has another one, this session must not write.
    pub(crate) record: u64,
    pub(crate) blocks: Vec<IpNet>,
}

pub(crate) struct ObserverParts {
    pub(crate) own: NodeName,
    pub(crate) config: Arc<Config>,
    pub(crate) layout: KeyLayout,
    pub(crate) policies: Arc<Policies>,
    /// The peers and pods of an earlier run.
    pub(crate) peers: Vec<NodeRecord>,
    pub(crate) pods: SavedPods,
}

pub(crate) struct IdentityObserver {
    own: NodeName,
    config: Arc<Config>,
    layout: KeyLayout,
    mirror: SharedMirror,
    policies: Arc<Policies>,
    /// None while this node is not a member.
    session: watch::Sender<Option<PublishSession>>,
    /// The revision up to which the mirror has the store's contents.
    observed: watch::Sender<u64>,
    /// Notifies the publisher.
    changed: Arc<Notify>,
    /// Notifies the saver.
    unsaved: Arc<Notify>,
}

/// Pods of an earlier run are in force when this returns, before the store has answered.
pub(crate) fn observer(parts: ObserverParts) -> IdentityObserver {
    let ObserverParts { own, config, layout, policies, peers, pods } = parts;
    let mut mirror = IdentityMirror::new(own.clone(), networks_of(&config).all());
    mirror.restore(&peers, pods);
    pass_on(&mut mirror, &policies);
    IdentityObserver {
        own,
        config,
        layout,
        mirror: Arc::new(Mutex::new(mirror)),
        changed: policies.identities().map(|local| local.changed()).unwrap_or_default(),
        policies,
        session: watch::channel(None).0,
        observed: watch::channel(0).0,
        unsaved: Arc::default(),
    }
}

impl IdentityObserver {
    /// None if this node's pods are not published.
    pub(crate) fn publisher(&self, contact: Arc<Contact>) -> Option<Publisher> {
        let local = self.policies.identities()?;
        Some(Publisher::new(PublisherParts {
            own: self.own.clone(),
            config: Arc::clone(&self.config),
            layout: self.layout.clone(),
            local: Arc::clone(local),
            mirror: Arc::clone(&self.mirror),
            session: self.session.subscribe(),
            observed: self.observed.subscribe(),
            contact,
        }))
    }

    /// What has to be saved for a boot without the store, and the notification after a change.
    pub(crate) fn saver(&self) -> (SharedMirror, Arc<Notify>) {
        (Arc::clone(&self.mirror), Arc::clone(&self.unsaved))
    }

    /// This node's record has this revision, and its blocks are these.
    pub(crate) fn set_session(&self, session: PublishSession) {
        self.session.send_if_modified(|current| {
            let is_same =
                |known: &PublishSession| (known.record, &known.blocks) == (session.record, &session.blocks);
            if current.as_ref().is_some_and(is_same) {
                return false;
            }
            *current = Some(session);
            true
        });
    }

    pub(crate) fn end_session(&self) {
        self.session.send_replace(None);
    }

    /// Whether the key is that of a pod or an identity.
    pub(crate) fn is_watched(&self, key: &str) -> bool {
        IdentityKey::of(&self.layout, key).is_some()
    }

    /// Removes what the listing does not have. Its values follow one by one.
    pub(crate) fn begin_listing(&self, listing: &Listing) {
        let keys = listing.entries.iter().filter_map(|entry| IdentityKey::of(&self.layout, &entry.key));
        lock(&self.mirror).retain(&keys.collect::<BTreeSet<_>>());
    }

    /// None if the key is neither that of a pod nor that of an identity.
    pub(crate) fn put(&self, entry: &Entry) -> Option<Result<(), DecodeError>> {
        let key = IdentityKey::of(&self.layout, &entry.key)?;
        Some(lock(&self.mirror).put(&key, &entry.value, entry.revision))
    }

    pub(crate) fn delete(&self, key: &str) {
        if let Some(key) = IdentityKey::of(&self.layout, key) {
            lock(&self.mirror).delete(&key);
        }
    }

    /// Nodes and claims decide which pods are known.
    pub(crate) fn list_nodes(&self, listing: &StoreListing) {
        lock(&self.mirror).list_nodes(listing);
    }

    pub(crate) fn update_node(&self, update: &RecordUpdate) {
        lock(&self.mirror).update_node(update);
    }

    /// The values up to this revision were passed on. Passes their changes to the policy thread, together.
    pub(crate) fn publish(&self, revision: u64) {
        if pass_on(&mut lock(&self.mirror), &self.policies) == PassedOn::Changes {
            self.unsaved.notify_one();
        }
        self.observed.send_replace(revision);
        self.changed.notify_one();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PassedOn {
    Changes,
    Nothing,
}

/// Passes changes to the policy thread, and to the allocation of addresses.
fn pass_on(mirror: &mut IdentityMirror, policies: &Policies) -> PassedOn {
    let (changes, own) = (mirror.take_changes(), mirror.take_own());
    let passed_on = if changes.is_empty() && own.is_none() { PassedOn::Nothing } else { PassedOn::Changes };
    policies.update_remote(changes);
    if let Some((local, own)) = policies.identities().zip(own) {
        local.set_stored(own);
    }
    passed_on
}

/// The revision of the last event.
pub(crate) fn last_revision(events: &[Event]) -> Option<u64> {
    events.iter().map(Event::revision).max()
}
