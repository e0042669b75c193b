//! How a node becomes one of the cluster, and stays the one it was.
//!
//! Everything is decided by transactions: a node's name belongs to the uid in its record, a block to the claim that is
//! named by it, and a record never names a block without the claim (both are written in one transaction).

use std::collections::BTreeSet;

use cluster::{Alive, BlockClaim, Cut, CutError, DecodeError, Layout, NetworkSpec, NodeRecord, Object};
use ipnet::IpNet;
use store::{Change, Compare, Entry, Outcome, Store};
use tracing::{info, warn};
use types::NodeName;

/// How often something is read again that changed under our eyes.
const TRIES: u32 = 20;
/// How many claims are tried before the list of free ones is read again.
const CLAIMS: usize = 32;

#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("{key} in the store: {source}; nothing was changed")]
    Decode { key: String, source: DecodeError },
    #[error(transparent)]
    Cut(#[from] CutError),
    #[error(
        "the name {name} belongs to another machine whose agent is alive (uid {uid}, at {at}): give this node another \
         name, or stop that agent; this one takes over when it is gone"
    )]
    Held { name: NodeName, uid: String, at: String },
    #[error(
        "this cluster's network is {theirs}, but this node is configured with {ours}: configure all nodes alike, or use \
         another prefix in the store"
    )]
    Network { theirs: String, ours: String },
    #[error(
        "all {count} blocks of {subnet} are taken: remove nodes that are gone for good (`podwire nodes`, `podwire node rm \
         NAME`), or use a larger subnet"
    )]
    Exhausted { subnet: IpNet, count: u64 },
    #[error("{what} changed {TRIES} times while it was read")]
    Restless { what: String },
}

impl JoinError {
    /// Will it go by itself?
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::Restless { .. } => true,
            Self::Decode { .. }
            | Self::Cut(_)
            | Self::Held { .. }
            | Self::Network { .. }
            | Self::Exhausted { .. } => false,
        }
    }
}

/// Our record as it stands in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) record: NodeRecord,
    pub(crate) revision: u64,
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
}

/// The cluster's objects in a store.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    pub(crate) store: Store,
    pub(crate) layout: Layout,
}

/// An object and the revision at which it stands.
struct Found<T> {
    object: T,
    revision: u64,
}

impl Registry {
    /// Registers the node, and claims a block of each subnet where it has none.
    pub(crate) async fn join(&self, candidate: &Candidate) -> Result<Joined, JoinError> {
        self.agree(&candidate.spec, &candidate.record.name).await?;
        let mut joined = self.register(candidate).await?;
        let cuts = cuts(&candidate.spec)?;
        let lacking = |record: &NodeRecord| -> Vec<Cut> {
            cuts.iter().copied().filter(|cut| !record.blocks.iter().any(|block| cut.owns(block))).collect()
        };
        let missing = lacking(&joined.record);
        if !missing.is_empty() {
            // One PUT for all families: the blocks of a node have the same number where they can.
            let start = self.store.put_counter(self.layout.counter()).await?;
            for cut in missing {
                joined = self.claim(joined, &cut, start).await?;
            }
        }
        Ok(joined)
    }

    /// One more block of this family.
    pub(crate) async fn grow(&self, joined: Joined, cut: &Cut) -> Result<Joined, JoinError> {
        let start = self.store.put_counter(self.layout.counter()).await?;
        self.claim(joined, cut, start).await
    }

    /// The first node says what the network is, the others must mean the same. A node that is alone may change its mind.
    async fn agree(&self, ours: &NetworkSpec, name: &NodeName) -> Result<(), JoinError> {
        let key = self.layout.network();
        for _ in 0..TRIES {
            let compare = match self.get::<NetworkSpec>(&key).await? {
                None => Compare::Absent(key.clone()),
                Some(theirs) if theirs.object == *ours => return Ok(()),
                Some(theirs) => {
                    let nodes = self.store.keys(&self.layout.nodes()).await?;
                    if nodes.iter().any(|key| self.layout.node_of(key).is_some_and(|node| node != *name)) {
                        return Err(JoinError::Network { theirs: words(&theirs.object), ours: words(ours) });
                    }
                    info!("the network was {} and is {} now", words(&theirs.object), words(ours));
                    Compare::Revision(key.clone(), theirs.revision)
                }
            };
            let put = Change::Put { key: key.clone(), value: ours.encode(), lease: None };
            if let Outcome::Done { .. } = self.store.commit(&[compare], &[put]).await? {
                return Ok(());
            }
        }
        Err(JoinError::Restless { what: "the network".to_owned() })
    }

    /// Our record, with the blocks that are ours.
    async fn register(&self, candidate: &Candidate) -> Result<Joined, JoinError> {
        let cuts = cuts(&candidate.spec)?;
        for _ in 0..TRIES {
            let key = self.layout.node(&candidate.record.name);
            let found = self.get::<NodeRecord>(&key).await?;
            let mut compares = vec![match &found {
                None => Compare::Absent(key.clone()),
                Some(found) => Compare::Revision(key.clone(), found.revision),
            }];
            if let Some(found) = found.as_ref().filter(|found| found.object.uid != candidate.record.uid) {
                compares.push(self.take_over(&found.object).await?);
            }
            let before = found.as_ref().map_or(&candidate.remembered, |found| &found.object.blocks);
            let ours = before.iter().filter(|block| cuts.iter().any(|cut| cut.owns(block)));
            let claims = self.claims(ours, &candidate.record.name).await?;
            let record = NodeRecord { blocks: claims.ours, ..candidate.record.clone() };
            let unclaimed = claims.compares.iter().any(|compare| matches!(compare, Compare::Absent(_)));
            if let Some(found) = found.as_ref().filter(|found| found.object == record && !unclaimed) {
                return Ok(Joined {
                    record,
                    revision: found.revision,
                    lost: claims.lost,
                    was_forgotten: false,
                });
            }
            let was_forgotten = found.is_none() && !candidate.remembered.is_empty();
            compares.extend(claims.compares);
            // Blocks that we do not want any more (the network changed) go back.
            let mut changes: Vec<Change> = claims.puts;
            changes.extend(self.surrender(before, &record, &candidate.record.name).await?);
            changes.push(Change::Put { key, value: record.encode(), lease: None });
            if let Outcome::Done { revision } = self.store.commit(&compares, &changes).await? {
                return Ok(Joined { record, revision, lost: claims.lost, was_forgotten });
            }
        }
        Err(JoinError::Restless { what: format!("the record of {}", candidate.record.name) })
    }

    /// Another machine had our name. While its agent is alive it keeps it; afterwards name and blocks are ours.
    async fn take_over(&self, held: &NodeRecord) -> Result<Compare, JoinError> {
        let key = self.layout.alive(&held.name);
        if let Some(alive) = self.get::<Alive>(&key).await? {
            let at: Vec<String> = held.addresses.iter().map(ToString::to_string).collect();
            let (uid, at) = (alive.object.uid.to_string(), at.join(", "));
            return Err(JoinError::Held { name: held.name.clone(), uid, at });
        }
        info!(
            "the name {} and its blocks belonged to uid {}, which is gone: they are ours now",
            held.name, held.uid
        );
        Ok(Compare::Absent(key))
    }

    /// Which of these blocks are ours, or free to be; and what must hold for it.
    async fn claims<'a>(
        &self,
        blocks: impl Iterator<Item = &'a IpNet>,
        name: &NodeName,
    ) -> Result<Claims, JoinError> {
        let mut claims = Claims::default();
        for block in blocks {
            let key = self.layout.block(block);
            match self.get::<BlockClaim>(&key).await? {
                None => {
                    claims.puts.push(self.put_claim(block, name));
                    claims.compares.push(Compare::Absent(key));
                }
                Some(claim) if claim.object.node == *name => {
                    claims.compares.push(Compare::Revision(key, claim.revision));
                }
                Some(claim) => {
                    warn!("block {block} was ours and belongs to {} now", claim.object.node);
                    claims.lost.push((*block, claim.object.node));
                    continue;
                }
            }
            claims.ours.push(*block);
        }
        Ok(claims)
    }

    async fn surrender(
        &self,
        before: &[IpNet],
        record: &NodeRecord,
        name: &NodeName,
    ) -> Result<Vec<Change>, JoinError> {
        let mut changes = Vec::new();
        for block in before.iter().filter(|block| !record.blocks.contains(block)) {
            let key = self.layout.block(block);
            if self.get::<BlockClaim>(&key).await?.is_some_and(|claim| claim.object.node == *name) {
                changes.push(Change::Delete(key));
            }
        }
        Ok(changes)
    }

    fn put_claim(&self, block: &IpNet, name: &NodeName) -> Change {
        let value = BlockClaim { node: name.clone() }.encode();
        Change::Put { key: self.layout.block(block), value, lease: None }
    }

    /// Claims a block: the transaction on the block's own key decides, whatever the counter said.
    async fn claim(&self, joined: Joined, cut: &Cut, start: u64) -> Result<Joined, JoinError> {
        let name = joined.record.name.clone();
        for _ in 0..TRIES {
            let keys = self.store.keys(&self.layout.blocks()).await?;
            let taken: BTreeSet<IpNet> = keys.iter().filter_map(|key| self.layout.block_of(key)).collect();
            // Somebody may have been given one of another size, under another margin.
            let odd: Vec<&IpNet> = taken.iter().filter(|block| !cut.owns(block)).collect();
            let overlaps = |block: &IpNet| odd.iter().any(|odd| odd.contains(block) || block.contains(*odd));
            let is_taken = |block: &IpNet| taken.contains(block) || overlaps(block);
            let mut offered = cut.offer(start, is_taken).take(CLAIMS).peekable();
            if offered.peek().is_none() {
                return Err(JoinError::Exhausted { subnet: cut.subnet(), count: cut.count() });
            }
            for block in offered {
                let mut record = joined.record.clone();
                record.blocks.push(block);
                let key = self.layout.node(&name);
                let compares = [
                    Compare::Absent(self.layout.block(&block)),
                    Compare::Revision(key.clone(), joined.revision),
                ];
                let changes =
                    [self.put_claim(&block, &name), Change::Put { key, value: record.encode(), lease: None }];
                if let Outcome::Done { revision } = self.store.commit(&compares, &changes).await? {
                    info!("claimed block {block}");
                    return Ok(Joined { record, revision, ..joined });
                }
                if self.revision_of_record(&name).await? != Some(joined.revision) {
                    return Err(JoinError::Restless { what: format!("the record of {name}") });
                }
            }
        }
        Err(JoinError::Restless { what: format!("the list of blocks of {}", cut.subnet()) })
    }

    async fn revision_of_record(&self, name: &NodeName) -> Result<Option<u64>, JoinError> {
        Ok(self.store.get(&self.layout.node(name)).await?.map(|entry| entry.revision))
    }

    async fn get<T: Object>(&self, key: &str) -> Result<Option<Found<T>>, JoinError> {
        let found = |entry: Entry| match T::decode(&entry.value) {
            Ok(object) => Ok(Found { object, revision: entry.revision }),
            Err(source) => Err(JoinError::Decode { key: entry.key, source }),
        };
        self.store.get(key).await?.map(found).transpose()
    }
}

#[derive(Default)]
struct Claims {
    ours: Vec<IpNet>,
    lost: Vec<(IpNet, NodeName)>,
    compares: Vec<Compare>,
    puts: Vec<Change>,
}

pub(crate) fn cuts(spec: &NetworkSpec) -> Result<Vec<Cut>, CutError> {
    spec.subnets.iter().map(|subnet| Cut::new(*subnet, spec.margin)).collect()
}

fn words(spec: &NetworkSpec) -> String {
    let subnets: Vec<String> = spec.subnets.iter().map(ToString::to_string).collect();
    format!("{} with {} bits for nodes", subnets.join(" and "), spec.margin)
}
