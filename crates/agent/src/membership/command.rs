//! What the rest of the agent asks of the cluster's side.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use model::{AliveRecord, BlockClaim, DecodeError, KeyLayout, NodeRecord, Object as _, StoredNode};
use store::{Change, CommitOutcome, Compare, Entry};
use tokio::sync::oneshot;
use types::NodeName;

use super::ask_error::AskError;
use super::contact::Contact;
use super::grow::{BlockRequest, GrowError};
use super::join::Registry;

/// How often something is read again that changed under our eyes; also how many transactions a node's claims may need.
pub(crate) const TRIES: u32 = 20;
/// Claims that go in one transaction.
const AT_ONCE: usize = 100;

#[derive(Debug)]
pub(crate) enum MembershipCommand {
    /// One more block. The member alone does so, since it is about its own record.
    Grow(Arc<BlockRequest>),
    Ask(StoreQuery),
}

/// What takes nothing but the store.
#[derive(Debug)]
pub(crate) enum StoreQuery {
    /// Everything that stands in the store.
    Look(oneshot::Sender<Result<StoreContents, AskError>>),
    /// Removes a node for good; the blocks that are free now.
    Remove { name: NodeName, force: bool, done: oneshot::Sender<Result<Vec<IpNet>, AskError>> },
}

/// What stands in the store.
#[derive(Debug, Default)]
pub(crate) struct StoreContents {
    pub(crate) nodes: Vec<StoredNode>,
    /// Nodes whose record is of no use, and why.
    pub(crate) unread: Vec<(NodeName, String)>,
    pub(crate) claims: Vec<(IpNet, NodeName)>,
    /// Nodes whose agent is alive, and since when. None: not known.
    pub(crate) alive: Option<BTreeMap<NodeName, u64>>,
}

impl MembershipCommand {
    /// Answers that it cannot be done now.
    pub(crate) fn refuse(self, why: AskError) {
        match self {
            Self::Grow(request) => request.answer(Err(GrowError::Refused(why.to_string()))),
            Self::Ask(ask) => ask.refuse(why),
        }
    }
}

impl StoreQuery {
    /// Whoever asked may have given up.
    pub(crate) fn refuse(self, why: AskError) {
        match self {
            Self::Look(done) => drop(done.send(Err(why))),
            Self::Remove { done, .. } => drop(done.send(Err(why))),
        }
    }

    /// Nobody waits for the answer any more.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Look(done) => done.is_closed(),
            Self::Remove { done, .. } => done.is_closed(),
        }
    }

    pub(crate) async fn answer(self, registry: Registry, own: NodeName, contact: &Contact) {
        match self {
            Self::Look(done) => {
                let looked = look(&registry).await;
                match &looked {
                    Ok(_) => contact.answered(),
                    Err(error) => contact.question_failed(error),
                }
                drop(done.send(looked.map_err(AskError::from)));
            }
            Self::Remove { name, force, done } => {
                let removed = if name == own {
                    Err(AskError::Own(name))
                } else {
                    remove(&registry, &name, force).await
                };
                if let Err(AskError::Unreachable(why)) = &removed {
                    contact.unanswered(why.clone());
                }
                drop(done.send(removed));
            }
        }
    }
}

pub(crate) async fn look(registry: &Registry) -> Result<StoreContents, store::Error> {
    let Registry { store, layout } = registry;
    let mut contents = StoreContents::default();
    let mut alive = BTreeMap::new();
    for Entry { key, value, created, .. } in store.list(&layout.root()).await?.entries {
        match layout.node_at(&key, &value) {
            Some((_, Ok(record))) => contents.nodes.push(StoredNode { record, created }),
            Some((name, Err(why))) => contents.unread.push((name, why)),
            None => {}
        }
        if let Some((block, Ok(owner))) = layout.claim_at(&key, &value) {
            contents.claims.push((block, owner));
        }
        alive.extend(alive_at(layout, &key, &value));
    }
    Ok(StoreContents { alive: Some(alive), ..contents })
}

/// The node whose agent a key is about, and since when it is alive.
pub(crate) fn alive_at(layout: &KeyLayout, key: &str, value: &[u8]) -> Option<(NodeName, u64)> {
    let name = layout.alive_of(key)?;
    Some((name, AliveRecord::decode(value).ok()?.since))
}

/// Takes a node and its claims out of the store, also claims that no record names. While its agent is alive only by force,
/// and it will come back.
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
            return if freed.is_empty() { Err(AskError::NotFound(name.clone())) } else { Ok(freed) };
        }
        let lives = store.get(&alive).await?.is_some();
        if lives && !force {
            return Err(AskError::Alive(name.clone()));
        }
        let is_last = claims.len() <= AT_ONCE;
        claims.truncate(AT_ONCE);
        let mut compares = vec![match &record {
            Some(entry) => Compare::Revision(node.clone(), entry.revision),
            None => Compare::Absent(node.clone()),
        }];
        compares.extend((!lives).then(|| Compare::Absent(alive.clone())));
        let mut changes: Vec<Change> =
            claims.iter().map(|block| Change::Delete(layout.block(block))).collect();
        changes.extend(record.map(|_| Change::Delete(node.clone())));
        if let CommitOutcome::Done { .. } = store.commit(&compares, &changes).await? {
            freed.extend(claims);
            if is_last {
                return Ok(freed);
            }
        }
    }
    Err(AskError::Contended(name.clone()))
}

/// What a newer version wrote is never removed; what is damaged only by force, since nobody can tell what it says.
fn may_remove(entry: &Entry, force: bool) -> Result<(), AskError> {
    let refused = |problem| Err(AskError::Unreadable { key: entry.key.clone(), problem });
    match NodeRecord::decode(&entry.value) {
        Ok(_) => Ok(()),
        Err(DecodeError::Unreadable { .. }) if force => Ok(()),
        Err(error @ DecodeError::Unreadable { .. }) => {
            refused(format!("{error}; --force removes it all the same"))
        }
        Err(error @ DecodeError::Newer { .. }) => refused(error.to_string()),
    }
}

/// The blocks that are claimed by a node, whatever its record says.
async fn claims_of(registry: &Registry, name: &NodeName) -> Result<Vec<IpNet>, store::Error> {
    let Registry { store, layout } = registry;
    let listing = store.list(&layout.blocks()).await?;
    let is_its = |entry: &&Entry| BlockClaim::decode(&entry.value).is_ok_and(|claim| claim.node == *name);
    Ok(listing.entries.iter().filter(is_its).filter_map(|entry| layout.block_of(&entry.key)).collect())
}
