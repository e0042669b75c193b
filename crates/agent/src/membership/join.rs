//! How a node becomes one of the cluster, and stays the one it was.
//!
//! Everything is decided by transactions: a node's name belongs to the uid in its record, a block to the claim that is
//! named by it, and a record never names a block without the claim (both are written in one transaction).

use std::collections::BTreeSet;

use ipnet::IpNet;
use model::{
    BlockClaim, BlockLayout, BlockLayoutError, DecodeError, KeyLayout, NetworkSpec, NodeRecord, Object,
};
use store::{Change, CommitOutcome, Compare, Entry, Store};
use tracing::{info, warn};
use types::{Code, Finding, NodeName};

use super::alive::Hold;

/// How often something is read again that changed under our eyes.
pub(crate) const TRIES: u32 = 20;

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("{key} in the store: {source}; nothing was changed")]
    Decode { key: String, source: DecodeError },
    #[error(transparent)]
    BlockLayout(#[from] BlockLayoutError),
    #[error(
        "the name {name} belongs to another machine whose agent is alive (uid {uid}, at {at}): give this node another \
         name, or stop that agent; this one takes over when it is gone"
    )]
    Held { name: NodeName, uid: String, at: String },
    #[error(
        "this cluster's network is {theirs}, but this node is configured with {ours}: configure all nodes alike, or use \
         another `etcd.prefix`"
    )]
    Network { theirs: String, ours: String },
    #[error(
        "all {count} blocks of {subnet} are taken: remove nodes that are gone for good (`podwire nodes`, `podwire node rm \
         NAME`), or use a larger subnet"
    )]
    Exhausted { subnet: IpNet, count: u64 },
    #[error(
        "no block of {subnet} is free: some belong to nodes that are known here and are not in the store, which lost its \
         data; start their agents, or wait until they are given up"
    )]
    Awaited { subnet: IpNet },
    #[error(
        "this node has {MOST_BLOCKS} blocks, and no node may have more: spread pods over more nodes, or use a smaller \
         margin, so that blocks are larger"
    )]
    TooMany,
    #[error("{what} changed {TRIES} times while it was read")]
    Restless { what: String },
}

impl JoinError {
    pub(crate) fn network(theirs: &NetworkSpec, ours: &NetworkSpec) -> Self {
        Self::Network { theirs: words(theirs), ours: words(ours) }
    }

    /// The store did not answer; everything else follows from its answers.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_transient())
    }

    pub(crate) fn finding(&self) -> Finding {
        let found = |code, object: String| Finding::new(code, object, self);
        match self {
            Self::Store(_) | Self::BlockLayout(_) | Self::Restless { .. } => {
                found(Code::StoreFailed, "store".to_owned())
            }
            Self::Decode { key, .. } => found(Code::StoreValueUnreadable, format!("key {key}")),
            Self::Held { name, .. } => found(Code::NodeNameTaken, format!("node {name}")),
            Self::Network { .. } => found(Code::NetworkMismatch, "store".to_owned()),
            Self::Exhausted { subnet, .. } | Self::Awaited { subnet } => {
                found(Code::BlocksExhausted, format!("subnet {subnet}"))
            }
            Self::TooMany => found(Code::BlocksExhausted, "node".to_owned()),
        }
    }
}

/// How many blocks a node may have: all of them are written in one transaction when a store lost its data, and etcd takes
/// 128 changes.
pub(crate) const MOST_BLOCKS: usize = 100;

/// Our record as it stands in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) record: NodeRecord,
    pub(crate) revision: u64,
    /// Of what all nodes agree on, which holds for this record.
    pub(crate) network: u64,
    /// Blocks that were ours and belong to another node now.
    pub(crate) lost: Vec<(IpNet, NodeName)>,
    /// We were known before, and the store had no record of us.
    pub(crate) was_forgotten: bool,
}

/// A node that wants in.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) spec: NetworkSpec,
    /// Without blocks: what this node says of itself.
    pub(crate) record: NodeRecord,
    /// The blocks it remembers, for a store that forgot them.
    pub(crate) remembered: Vec<IpNet>,
    /// The name under which it remembers them, if that was another one.
    pub(crate) former: Option<NodeName>,
    /// When its agent began to work, in seconds since 1970.
    pub(crate) since: u64,
}

/// The cluster's objects in a store.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    pub(crate) store: Store,
    pub(crate) layout: KeyLayout,
}

/// An object and the revision at which it stands.
pub(crate) struct RevisionedObject<T> {
    pub(crate) object: T,
    revision: u64,
}

/// What stands under a key of ours.
enum StoredObject<T> {
    Absent,
    Found(RevisionedObject<T>),
    /// Damaged, and not by a newer version: it may be written anew.
    Unreadable {
        revision: u64,
        why: DecodeError,
    },
}

impl Registry {
    /// Takes the name and registers the node, with those of its blocks that are still its own. It may have none.
    pub(crate) async fn enter(&self, candidate: &Candidate) -> Result<(Joined, Hold), JoinError> {
        let network = self.agree(&candidate.spec, &candidate.record.name).await?;
        let hold = self.hold(candidate).await?;
        Ok((self.register(candidate, network, &hold).await?, hold))
    }

    /// The first node says what the network is, the others must mean the same. A node that is alone may change its mind.
    /// Gives the revision.
    async fn agree(&self, ours: &NetworkSpec, name: &NodeName) -> Result<u64, JoinError> {
        let key = self.layout.network();
        let put = |spec: &NetworkSpec| [Change::Put { key: key.clone(), value: spec.encode(), lease: None }];
        for _ in 0..TRIES {
            let theirs = match self.get::<NetworkSpec>(&key).await? {
                Some(theirs) if theirs.object == *ours => return Ok(theirs.revision),
                theirs => theirs,
            };
            let refuse = |theirs: &NetworkSpec| JoinError::network(theirs, ours);
            let compare = match &theirs {
                None => Compare::Absent(key.clone()),
                Some(theirs) if self.has_others(name).await? => return Err(refuse(&theirs.object)),
                Some(theirs) => Compare::Revision(key.clone(), theirs.revision),
            };
            let CommitOutcome::Done { revision } = self.store.commit(&[compare], &put(ours)).await? else {
                continue;
            };
            let Some(theirs) = theirs.map(|found| found.object) else { return Ok(revision) };
            // Somebody may have come in after we looked. Whoever comes now meets the new one.
            if self.has_others(name).await? {
                let back = [Compare::Revision(key.clone(), revision)];
                self.store.commit(&back, &put(&theirs)).await?;
                return Err(refuse(&theirs));
            }
            info!("the network was {} and is {} now", words(&theirs), words(ours));
            return Ok(revision);
        }
        Err(JoinError::Restless { what: "the network".to_owned() })
    }

    pub(crate) async fn has_others(&self, name: &NodeName) -> Result<bool, JoinError> {
        let nodes = self.store.keys(&self.layout.nodes()).await?;
        Ok(nodes.iter().any(|key| self.layout.node_of(key).is_some_and(|node| node != *name)))
    }

    /// Our record, with the blocks that are ours; of a name that another machine had, too, now that its agent is gone.
    pub(crate) async fn register(
        &self,
        candidate: &Candidate,
        network: u64,
        hold: &Hold,
    ) -> Result<Joined, JoinError> {
        let name = &candidate.record.name;
        let key = self.layout.node(name);
        for _ in 0..TRIES {
            let standing = self.standing::<NodeRecord>(&key).await?;
            let mut compares = vec![
                may_write(&key, &standing),
                Compare::Revision(self.layout.network(), network),
                Compare::Revision(hold.key.clone(), hold.revision),
            ];
            let found = match &standing {
                StoredObject::Found(found) => Some(found),
                StoredObject::Absent | StoredObject::Unreadable { .. } => None,
            };
            // Where another machine had the new name, its blocks are what we get: ours stay with the old name, as others know it.
            let former = if found.is_some() { None } else { self.former(candidate).await? };
            let claims = self.claims(candidate, found.map(|found| &found.object), former.is_some()).await?;
            let record = NodeRecord { blocks: claims.ours, ..candidate.record.clone() };
            let joined = |revision, was_forgotten| Joined {
                record: record.clone(),
                revision,
                network,
                lost: claims.lost.clone(),
                was_forgotten,
            };
            if let Some(found) = found.filter(|found| found.object == record && claims.changes.is_empty()) {
                return Ok(joined(found.revision, false));
            }
            let was_forgotten = matches!(standing, StoredObject::Absent)
                && !candidate.remembered.is_empty()
                && candidate.former.is_none();
            compares.extend(claims.compares);
            let mut changes = claims.changes;
            if let Some((key, revision)) = former {
                compares.push(Compare::Revision(key.clone(), revision));
                changes.push(Change::Delete(key));
            }
            changes.push(Change::Put { key: key.clone(), value: record.encode(), lease: None });
            if let CommitOutcome::Done { revision } = self.store.commit(&compares, &changes).await? {
                if let Some(before) = found.map(|found| &found.object.uid).filter(|uid| **uid != record.uid) {
                    info!(
                        "the name {name} and its blocks belonged to uid {before}, which is gone: they are ours now"
                    );
                }
                return Ok(joined(revision, was_forgotten));
            }
            if self.revision_of(&self.layout.network()).await? != Some(network) {
                return Err(JoinError::Restless { what: "the network".to_owned() });
            }
            if self.revision_of(&hold.key).await? != Some(hold.revision) {
                return Err(JoinError::Restless { what: hold.key.clone() });
            }
        }
        Err(JoinError::Restless { what: format!("the record of {name}") })
    }

    /// The record of this very machine under the name that it had: it goes, and its blocks come along.
    async fn former(&self, candidate: &Candidate) -> Result<Option<(String, u64)>, JoinError> {
        let Some(former) = &candidate.former else { return Ok(None) };
        let key = self.layout.node(former);
        Ok(match self.standing::<NodeRecord>(&key).await? {
            StoredObject::Found(found) if found.object.uid == candidate.record.uid => {
                Some((key, found.revision))
            }
            StoredObject::Found(_) | StoredObject::Absent | StoredObject::Unreadable { .. } => None,
        })
    }

    /// Which of our blocks are still ours, or free to be; and what must hold and change for it.
    async fn claims(
        &self,
        candidate: &Candidate,
        found: Option<&NodeRecord>,
        was_renamed: bool,
    ) -> Result<ReclaimedBlocks, JoinError> {
        let (block_layouts, name) = (block_layouts(&candidate.spec)?, &candidate.record.name);
        let is_former = |node: &NodeName| was_renamed && candidate.former.as_ref() == Some(node);
        let mut claims = ReclaimedBlocks::default();
        // A record that was written by another program may name a block twice, or more than fit into one transaction.
        let mut named = BTreeSet::new();
        let blocks = found.map_or(&candidate.remembered, |found| &found.blocks);
        for block in blocks.iter().filter(|block| named.insert(block.trunc())).take(MOST_BLOCKS) {
            let key = self.layout.block(block);
            let is_wanted = block_layouts.iter().any(|block_layout| block_layout.owns(block));
            match self.standing::<BlockClaim>(&key).await? {
                StoredObject::Found(claim) if is_wanted && is_former(&claim.object.node) => {
                    claims.changes.push(self.put_claim(block, name));
                    claims.compares.push(Compare::Revision(key, claim.revision));
                }
                StoredObject::Found(claim) if claim.object.node != *name => {
                    if is_wanted {
                        warn!("block {block} was ours and belongs to {} now", claim.object.node);
                        claims.lost.push((*block, claim.object.node));
                    }
                    continue;
                }
                // The network changed: it goes back.
                StoredObject::Found(_) if !is_wanted => {
                    claims.changes.push(Change::Delete(key));
                    continue;
                }
                StoredObject::Absent if !is_wanted => continue,
                // Who removes our claims removes our record too. Where there is none, nothing else tells.
                StoredObject::Found(claim) if found.is_none() => {
                    claims.compares.push(Compare::Revision(key, claim.revision));
                }
                StoredObject::Found(_) => {}
                StoredObject::Absent => {
                    claims.changes.push(self.put_claim(block, name));
                    claims.compares.push(Compare::Absent(key));
                }
                StoredObject::Unreadable { revision, why } if is_wanted && found.is_some() => {
                    warn!("{key} in the store is written anew, since our record names it: {why}");
                    claims.changes.push(self.put_claim(block, name));
                    claims.compares.push(Compare::Revision(key, revision));
                }
                StoredObject::Unreadable { why, .. } => {
                    warn!("{key} in the store is left alone, and the block with it: {why}");
                    continue;
                }
            }
            claims.ours.push(*block);
        }
        Ok(claims)
    }

    pub(crate) fn put_claim(&self, block: &IpNet, name: &NodeName) -> Change {
        let value = BlockClaim { node: name.clone() }.encode();
        Change::Put { key: self.layout.block(block), value, lease: None }
    }

    pub(crate) async fn revision_of(&self, key: &str) -> Result<Option<u64>, JoinError> {
        Ok(self.store.get(key).await?.map(|entry| entry.revision))
    }

    pub(crate) async fn get<T: Object>(&self, key: &str) -> Result<Option<RevisionedObject<T>>, JoinError> {
        match self.standing(key).await? {
            StoredObject::Absent => Ok(None),
            StoredObject::Found(found) => Ok(Some(found)),
            StoredObject::Unreadable { why, .. } => {
                Err(JoinError::Decode { key: key.to_owned(), source: why })
            }
        }
    }

    /// What a newer version wrote is an error: nobody here may touch it.
    async fn standing<T: Object>(&self, key: &str) -> Result<StoredObject<T>, JoinError> {
        let Some(Entry { key, value, revision, .. }) = self.store.get(key).await? else {
            return Ok(StoredObject::Absent);
        };
        match T::decode(&value) {
            Ok(object) => Ok(StoredObject::Found(RevisionedObject { object, revision })),
            Err(source) if source.is_newer() => Err(JoinError::Decode { key, source }),
            Err(why) => Ok(StoredObject::Unreadable { revision, why }),
        }
    }
}

/// What must hold for our record to be written. One that is damaged is nobody's.
fn may_write(key: &str, standing: &StoredObject<NodeRecord>) -> Compare {
    match standing {
        StoredObject::Absent => Compare::Absent(key.to_owned()),
        StoredObject::Found(found) => Compare::Revision(key.to_owned(), found.revision),
        StoredObject::Unreadable { revision, why } => {
            warn!("{key} in the store is written anew: {why}");
            Compare::Revision(key.to_owned(), *revision)
        }
    }
}

#[derive(Default)]
struct ReclaimedBlocks {
    ours: Vec<IpNet>,
    lost: Vec<(IpNet, NodeName)>,
    compares: Vec<Compare>,
    changes: Vec<Change>,
}

pub(crate) fn block_layouts(spec: &NetworkSpec) -> Result<Vec<BlockLayout>, BlockLayoutError> {
    spec.subnets.iter().map(|subnet| BlockLayout::new(*subnet, spec.margin)).collect()
}

fn words(spec: &NetworkSpec) -> String {
    let NetworkSpec { subnets, margin, vni, vxlan_port } = spec;
    // There is one of each family, unless another program wrote it.
    let subnets: Vec<String> = subnets.iter().take(4).map(ToString::to_string).collect();
    format!("{} with {margin} bits for nodes, VNI {vni} on port {vxlan_port}", subnets.join(" and "))
}
