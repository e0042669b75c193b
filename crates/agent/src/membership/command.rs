//! Commands to the membership thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use model::{AliveRecord, BlockClaim, DecodeError, KeyLayout, NodeRecord, Object as _, StoredNode};
use store::{Change, CommitOutcome, Compare, Entry};
use tokio::sync::oneshot;
use types::{NetworkRef, NodeName};

use super::ask_error::AskError;
use super::block_requests::{BlockRequest, BlockRequestError};
use super::cluster_pods::{ClusterPod, read_pods};
use super::contact::Contact;
use super::former_schema::FormerSchema;
use super::join::{JoinError, Registry};
use super::object_changes::{ChangedObjects, ObjectChanges, change_objects};

/// How often a read is repeated if the object changed meanwhile. Also the limit of transactions for the claims of a removed
/// node.
pub(crate) const TRIES: u32 = 20;
/// Claims or pods that are deleted in one transaction.
const CLAIMS_PER_COMMIT: usize = 100;

#[derive(Debug)]
pub(crate) enum MembershipCommand {
    /// Claims one more block. Only the member does so, because it changes the node's own record.
    RequestBlock(Arc<BlockRequest>),
    Ask(StoreQuery),
}

/// Queries that need only the store.
#[derive(Debug)]
pub(crate) enum StoreQuery {
    /// Lists the whole store.
    ReadContents(oneshot::Sender<Result<StoreContents, AskError>>),
    /// Lists the pods of other nodes.
    ReadPods(oneshot::Sender<Result<Vec<ClusterPod>, AskError>>),
    /// Removes a node permanently. Returns the blocks that it freed.
    Remove { name: NodeName, force: bool, done: oneshot::Sender<Result<Vec<IpNet>, AskError>> },
    /// Checks and changes objects.
    ChangeObjects { changes: Box<ObjectChanges>, done: oneshot::Sender<Result<ChangedObjects, AskError>> },
}

/// The contents of the store.
#[derive(Debug, Default)]
pub(crate) struct StoreContents {
    pub(crate) nodes: Vec<StoredNode>,
    /// Nodes with an unusable record, and the reason.
    pub(crate) unread: Vec<(NodeName, String)>,
    pub(crate) claims: Vec<(NetworkRef, IpNet, NodeName)>,
    /// Nodes with a running agent, and since when. None if unknown.
    pub(crate) alive: Option<BTreeMap<NodeName, u64>>,
}

impl MembershipCommand {
    /// Answers that the command cannot be executed now.
    pub(crate) fn refuse(self, reason: AskError) {
        match self {
            Self::RequestBlock(request) => {
                request.answer(Err(BlockRequestError::Refused(reason.to_string())));
            }
            Self::Ask(ask) => ask.refuse(reason),
        }
    }
}

impl StoreQuery {
    /// The client may have stopped waiting.
    pub(crate) fn refuse(self, reason: AskError) {
        match self {
            Self::ReadContents(done) => drop(done.send(Err(reason))),
            Self::ReadPods(done) => drop(done.send(Err(reason))),
            Self::Remove { done, .. } => drop(done.send(Err(reason))),
            Self::ChangeObjects { done, .. } => drop(done.send(Err(reason))),
        }
    }

    /// Whether the client has stopped waiting.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::ReadContents(done) => done.is_closed(),
            Self::ReadPods(done) => done.is_closed(),
            Self::Remove { done, .. } => done.is_closed(),
            Self::ChangeObjects { done, .. } => done.is_closed(),
        }
    }

    pub(crate) async fn answer(self, registry: Registry, own: NodeName, contact: &Contact) {
        match self {
            Self::ReadContents(done) => {
                let contents = read_contents(&registry).await;
                match &contents {
                    Err(JoinError::Store(error)) => contact.query_failed(error),
                    Ok(_) | Err(_) => contact.answered(),
                }
                drop(done.send(contents.map_err(AskError::from)));
            }
            Self::ReadPods(done) => {
                let pods = read_pods(&registry, &own).await;
                match &pods {
                    Ok(_) => contact.answered(),
                    Err(error) => contact.query_failed(error),
                }
                drop(done.send(pods.map_err(AskError::from)));
            }
            Self::ChangeObjects { changes, done } => {
                let changed = change_objects(&registry, &own, &changes).await;
                if let Err(AskError::Unreachable(reason)) = &changed {
                    contact.query_timed_out(reason.clone());
                }
                drop(done.send(changed));
            }
            Self::Remove { name, force, done } => {
                let removed = if name == own {
                    Err(AskError::Own(name))
                } else {
                    remove(&registry, &name, force).await
                };
                if let Err(AskError::Unreachable(reason)) = &removed {
                    contact.query_timed_out(reason.clone());
                }
                drop(done.send(removed));
            }
        }
    }
}

pub(crate) async fn read_contents(registry: &Registry) -> Result<StoreContents, JoinError> {
    let Registry { store, layout } = registry;
    let mut contents = StoreContents::default();
    let mut alive = BTreeMap::new();
    let listing = store.list(&layout.root()).await?;
    if let Some(former) = FormerSchema::find(registry, &listing.entries) {
        return Err(former.into());
    }
    for Entry { key, value, created, .. } in listing.entries {
        match layout.node_at(&key, &value) {
            Some((_, Ok(record))) => contents.nodes.push(StoredNode { record, created }),
            Some((name, Err(reason))) => contents.unread.push((name, reason)),
            None => {}
        }
        if let Some((network, block, Ok(owner))) = layout.claim_at(&key, &value) {
            contents.claims.push((network, block, owner));
        }
        alive.extend(alive_at(layout, &key, &value));
    }
    Ok(StoreContents { alive: Some(alive), ..contents })
}

/// The node of an `alive` key, and since when its agent runs.
pub(crate) fn alive_at(layout: &KeyLayout, key: &str, value: &[u8]) -> Option<(NodeName, u64)> {
    let name = layout.alive_of(key)?;
    Some((name, AliveRecord::decode(value).ok()?.since))
}

/// Removes a node and its claims from the store, including claims that no record names. A node with a running agent is removed
/// only with `force`, and its agent registers it again.
async fn remove(registry: &Registry, name: &NodeName, force: bool) -> Result<Vec<IpNet>, AskError> {
    let Registry { store, layout } = registry;
    let (node, alive) = (layout.node(name), layout.alive(name));
    let mut freed = Vec::new();
    for _ in 0..TRIES {
        let record = store.get(&node).await?;
        if let Some(entry) = &record {
            may_remove(entry, force)?;
        }
        let mut claims = claims_of(registry, name).await?;
        if record.is_none() && claims.is_empty() {
            // Another removal may have ended before it removed the pods.
            let had_pods = remove_pods(registry, name).await?;
            let is_unknown = freed.is_empty() && had_pods == HadPods::No;
            return if is_unknown { Err(AskError::NotFound(name.clone())) } else { Ok(freed) };
        }
        let is_alive = store.get(&alive).await?.is_some();
        if is_alive && !force {
            return Err(AskError::Alive(name.clone()));
        }
        let is_last = claims.len() <= CLAIMS_PER_COMMIT;
        claims.truncate(CLAIMS_PER_COMMIT);
        let mut compares = vec![match &record {
            Some(entry) => Compare::Revision(node.clone(), entry.revision),
            None => Compare::Absent(node.clone()),
        }];
        compares.extend((!is_alive).then(|| Compare::Absent(alive.clone())));
        let mut changes: Vec<Change> = claims
            .iter()
            .map(|(network, block)| Change::Delete(layout.network_block(network, block)))
            .collect();
        changes.extend(record.map(|_| Change::Delete(node.clone())));
        if let CommitOutcome::Done { .. } = store.commit(&compares, &changes).await? {
            freed.extend(claims.into_iter().map(|(_, block)| block));
            if is_last {
                remove_pods(registry, name).await?;
                return Ok(freed);
            }
        }
    }
    Err(AskError::Contended(name.clone()))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HadPods {
    Yes,
    No,
}

/// Removes the records of a node's pods after its own record, without which other nodes ignore them. If the node is a member again
/// meanwhile, its agent removes those that do not exist.
async fn remove_pods(registry: &Registry, name: &NodeName) -> Result<HadPods, AskError> {
    let Registry { store, layout } = registry;
    let keys = store.keys(&layout.node_pods(name)).await?;
    let had_pods = if keys.is_empty() { HadPods::No } else { HadPods::Yes };
    for keys in keys.chunks(CLAIMS_PER_COMMIT) {
        let changes: Vec<Change> = keys.iter().cloned().map(Change::Delete).collect();
        match store.commit(&[Compare::Absent(layout.node(name))], &changes).await? {
            CommitOutcome::Done { .. } => {}
            CommitOutcome::Refused => break,
        }
    }
    Ok(had_pods)
}

/// A record of a newer version is never removed, and a corrupt one only with `force`, because its content is unknown.
fn may_remove(entry: &Entry, force: bool) -> Result<(), AskError> {
    let refused = |problem| Err(AskError::Unreadable { key: entry.key.clone(), problem });
    match NodeRecord::decode(&entry.value) {
        Ok(_) => Ok(()),
        Err(DecodeError::Unreadable { .. } | DecodeError::Field { .. }) if force => Ok(()),
        Err(error @ (DecodeError::Unreadable { .. } | DecodeError::Field { .. })) => {
            refused(format!("{error}; --force removes it nevertheless"))
        }
        Err(error @ (DecodeError::Newer { .. } | DecodeError::Older { .. })) => refused(error.to_string()),
    }
}

/// All blocks that a node has claimed, also those that its record does not name.
async fn claims_of(registry: &Registry, name: &NodeName) -> Result<Vec<(NetworkRef, IpNet)>, store::Error> {
    let Registry { store, layout } = registry;
    let listing = store.list(&layout.networks()).await?;
    let is_of_node = |entry: &&Entry| BlockClaim::decode(&entry.value).is_ok_and(|claim| claim.node == *name);
    Ok(listing
        .entries
        .iter()
        .filter(is_of_node)
        .filter_map(|entry| layout.network_block_of(&entry.key))
        .collect())
}
