//! How a node joins the cluster and keeps its identity.
//!
//! Transactions decide all conflicts. A node's name belongs to the uid in its record. A block belongs to the node in its claim.
//! A record never names a block without a claim, because both are written in one transaction.

use std::collections::BTreeSet;

use ipnet::IpNet;
use model::{
    BlockAllocation, BlockClaim, BlockLayoutError, DecodeError, KeyLayout, NetworkSpec, NodeRecord, Object,
};
use store::{Change, CommitOutcome, Compare, Entry, Store};
use tracing::{info, warn};
use types::{Code, Finding, NetworkRef, NodeName};

use super::former_schema::FormerSchema;
use super::heartbeat::NameLease;
use super::networks::{BlockFit, NetworkLayouts};
use config::Config;

/// How often a read is repeated if the object changed meanwhile.
pub(crate) const TRIES: u32 = 20;

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("{key} in the store: {source}; nothing was changed")]
    Decode { key: String, source: DecodeError },
    #[error(transparent)]
    FormerSchema(#[from] FormerSchema),
    #[error(transparent)]
    BlockLayout(#[from] BlockLayoutError),
    #[error(
        "the name {name} belongs to another host whose agent is running (uid {uid}, at {at}): set another name for this node, or \
         stop that agent; this agent takes over the name afterwards"
    )]
    Held { name: NodeName, uid: String, at: String },
    #[error(
        "the network of this cluster is {stored}, but this node is configured with {configured}: use the same configuration on \
         all nodes, or another `etcd.prefix`"
    )]
    Network {
        stored: String,
        configured: String,
        /// The keys that differ, with the values of the store.
        differences: Vec<(&'static str, String)>,
    },
    #[error(
        "all {count} blocks of {subnet} are in use: remove dead nodes (`podwire nodes`, `podwire node rm NAME`), or use a larger \
         subnet"
    )]
    Exhausted { subnet: IpNet, count: u64 },
    #[error(
        "all blocks with addresses of the pools {pools} are in use: remove pods of the group, or add a pool to it"
    )]
    PoolsExhausted { pools: String },
    #[error(
        "no block of {subnet} is free: some belong to known nodes that are missing in the store, which lost its data; start their \
         agents, or wait until their blocks are released"
    )]
    Reserved { subnet: IpNet },
    #[error(
        "this node has {MAX_BLOCKS} blocks, which is the maximum: spread pods over more nodes, or use a smaller margin, so that \
         blocks are larger"
    )]
    TooMany,
    #[error("{object} changed {TRIES} times while it was read")]
    Contended { object: String },
}

impl JoinError {
    pub(crate) fn network(stored: &NetworkSpec, configured: &NetworkSpec) -> Self {
        Self::Network {
            stored: describe(stored),
            configured: describe(configured),
            differences: differences(stored, configured),
        }
    }

    /// Whether the store did not answer. All other errors follow from its answers.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_transient())
    }

    pub(crate) fn finding(&self, config: &Config) -> Finding {
        let finding = |code, object: String| Finding::new(code, object, self);
        let with_instruction = |finding: Finding, values: &[(&'static str, String)]| {
            let message = format!("{}; {}", finding.message, config.instruction(values));
            Finding { message, ..finding }
        };
        match self {
            Self::Store(_) | Self::BlockLayout(_) | Self::Contended { .. } => {
                finding(Code::StoreFailed, "store".to_owned())
            }
            Self::FormerSchema(former) => finding(Code::StoreSchemaFormer, format!("key {}", former.key)),
            Self::Decode { key, .. } => finding(Code::StoreValueUnreadable, format!("key {key}")),
            Self::Held { name, .. } => {
                let taken = finding(Code::NodeNameTaken, format!("node {name}"));
                with_instruction(taken, &[("node", "another name".to_owned())])
            }
            Self::Network { differences, .. } => {
                with_instruction(finding(Code::NetworkMismatch, "store".to_owned()), differences)
            }
            Self::Exhausted { subnet, .. } | Self::Reserved { subnet } => {
                finding(Code::BlocksExhausted, format!("subnet {subnet}"))
            }
            Self::PoolsExhausted { pools } => finding(Code::BlocksExhausted, format!("pools {pools}")),
            Self::TooMany => finding(Code::BlocksExhausted, "node".to_owned()),
        }
    }
}

/// How many blocks a node may have. After a store lost its data, one transaction writes all of them, and etcd allows 128
/// changes.
pub(crate) const MAX_BLOCKS: usize = 100;

/// This node's record in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) record: NodeRecord,
    pub(crate) revision: u64,
    /// The revision of the network that was checked for this record.
    pub(crate) network: u64,
    /// Former blocks of this node that now belong to other nodes.
    pub(crate) lost: Vec<(IpNet, NodeName)>,
    /// The node was known before, but the store had no record of it.
    pub(crate) was_forgotten: bool,
}

/// A node that joins.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) spec: NetworkSpec,
    /// How the networks are divided into blocks.
    pub(crate) networks: NetworkLayouts,
    /// The address pools of groups in the default network.
    pub(crate) default_pools: Vec<IpNet>,
    /// Blocks of networks that this node does not have any more, in which no pod has an address. They are released.
    pub(crate) released: BTreeSet<IpNet>,
    /// This node's record without blocks.
    pub(crate) record: NodeRecord,
    /// The blocks from the node's saved record, for a store that lost its data.
    pub(crate) saved_blocks: BlockAllocation,
    /// The name in the saved record, if it differs from the current one.
    pub(crate) former: Option<NodeName>,
    /// When its agent started, as Unix time.
    pub(crate) since: u64,
}

/// The cluster's objects in a store.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    pub(crate) store: Store,
    pub(crate) layout: KeyLayout,
}

/// An object and its revision.
pub(crate) struct RevisionedObject<T> {
    pub(crate) object: T,
    revision: u64,
}

/// The value of a key.
enum StoredObject<T> {
    Absent,
    Present(RevisionedObject<T>),
    /// Corrupt, but not written by a newer version. It may be overwritten.
    Unreadable {
        revision: u64,
        cause: DecodeError,
    },
}

impl Registry {
    /// Takes the name and registers the node with those of its blocks that it still owns, possibly none.
    pub(crate) async fn enter(&self, candidate: &Candidate) -> Result<(Joined, NameLease), JoinError> {
        self.refuse_former_schema().await?;
        let network = self.agree_on_network(&candidate.spec, &candidate.record.name).await?;
        let lease = self.acquire_name(candidate).await?;
        Ok((self.register(candidate, network, &lease).await?, lease))
    }

    /// The first node stores the network, and other nodes must have the same configuration. A node without peers may change it.
    /// Returns the revision.
    async fn agree_on_network(&self, configured: &NetworkSpec, name: &NodeName) -> Result<u64, JoinError> {
        let key = self.layout.network();
        let put = |spec: &NetworkSpec| [Change::Put { key: key.clone(), value: spec.encode(), lease: None }];
        for _ in 0..TRIES {
            let stored = match self.get::<NetworkSpec>(&key).await? {
                Some(stored) if stored.object == *configured => return Ok(stored.revision),
                stored => stored,
            };
            let refuse = |stored: &NetworkSpec| JoinError::network(stored, configured);
            let compare = match &stored {
                None => Compare::Absent(key.clone()),
                Some(stored) if self.has_peers(name).await? => return Err(refuse(&stored.object)),
                Some(stored) => Compare::Revision(key.clone(), stored.revision),
            };
            let CommitOutcome::Done { revision } = self.store.commit(&[compare], &put(configured)).await?
            else {
                continue;
            };
            let Some(stored) = stored.map(|stored| stored.object) else { return Ok(revision) };
            // Another node may have joined after the check. Nodes that join from now on read the new network.
            if self.has_peers(name).await? {
                let unchanged = [Compare::Revision(key.clone(), revision)];
                self.store.commit(&unchanged, &put(&stored)).await?;
                return Err(refuse(&stored));
            }
            info!(from = describe(&stored), to = describe(configured), "network changed");
            return Ok(revision);
        }
        Err(JoinError::Contended { object: "the network".to_owned() })
    }

    pub(crate) async fn has_peers(&self, name: &NodeName) -> Result<bool, JoinError> {
        let nodes = self.store.keys(&self.layout.nodes()).await?;
        Ok(nodes.iter().any(|key| self.layout.node_of(key).is_some_and(|node| node != *name)))
    }

    /// Writes this node's record with the blocks that it owns. Takes over a name of another host whose agent no longer runs.
    pub(crate) async fn register(
        &self,
        candidate: &Candidate,
        network: u64,
        lease: &NameLease,
    ) -> Result<Joined, JoinError> {
        let name = &candidate.record.name;
        let key = self.layout.node(name);
        for _ in 0..TRIES {
            let current = self.read_object::<NodeRecord>(&key).await?;
            let mut compares = vec![
                record_precondition(&key, &current),
                Compare::Revision(self.layout.network(), network),
                Compare::Revision(lease.key.clone(), lease.revision),
            ];
            let stored = match &current {
                StoredObject::Present(stored) => Some(stored),
                StoredObject::Absent | StoredObject::Unreadable { .. } => None,
            };
            // Another host had the new name: this node takes over that host's blocks. Its own blocks stay with the old name.
            let former = if stored.is_some() { None } else { self.former_record(candidate).await? };
            let claims =
                self.claims(candidate, stored.map(|stored| &stored.object), former.is_some()).await?;
            let record = NodeRecord { blocks: claims.owned, ..candidate.record.clone() };
            let joined = |revision, was_forgotten| Joined {
                record: record.clone(),
                revision,
                network,
                lost: claims.lost.clone(),
                was_forgotten,
            };
            if let Some(stored) = stored.filter(|stored| stored.object == record && claims.changes.is_empty())
            {
                return Ok(joined(stored.revision, false));
            }
            let was_forgotten = matches!(current, StoredObject::Absent)
                && !candidate.saved_blocks.is_empty()
                && candidate.former.is_none();
            compares.extend(claims.compares);
            let mut changes = claims.changes;
            if let Some((key, revision)) = former {
                compares.push(Compare::Revision(key.clone(), revision));
                changes.push(Change::Delete(key));
            }
            changes.push(Change::Put { key: key.clone(), value: record.encode(), lease: None });
            if let CommitOutcome::Done { revision } = self.store.commit(&compares, &changes).await? {
                if let Some(before) =
                    stored.map(|stored| &stored.object.uid).filter(|uid| **uid != record.uid)
                {
                    info!(%name, former_uid = %before, "took over the name and the blocks of a host whose agent no longer runs");
                }
                return Ok(joined(revision, was_forgotten));
            }
            if self.revision_of(&self.layout.network()).await? != Some(network) {
                return Err(JoinError::Contended { object: "the network".to_owned() });
            }
            if self.revision_of(&lease.key).await? != Some(lease.revision) {
                return Err(JoinError::Contended { object: lease.key.clone() });
            }
        }
        Err(JoinError::Contended { object: format!("the record of {name}") })
    }

    /// The record of this host under its former name. It is removed, and its blocks are taken over.
    async fn former_record(&self, candidate: &Candidate) -> Result<Option<(String, u64)>, JoinError> {
        let Some(former) = &candidate.former else { return Ok(None) };
        let key = self.layout.node(former);
        Ok(match self.read_object::<NodeRecord>(&key).await? {
            StoredObject::Present(stored) if stored.object.uid == candidate.record.uid => {
                Some((key, stored.revision))
            }
            StoredObject::Present(_) | StoredObject::Absent | StoredObject::Unreadable { .. } => None,
        })
    }

    /// Determines which blocks this node still owns or may claim again, with the necessary compares and changes.
    async fn claims(
        &self,
        candidate: &Candidate,
        stored: Option<&NodeRecord>,
        was_renamed: bool,
    ) -> Result<ReclaimedBlocks, JoinError> {
        let name = &candidate.record.name;
        let is_former = |node: &NodeName| was_renamed && candidate.former.as_ref() == Some(node);
        let mut claims = ReclaimedBlocks::default();
        // A record of another program may name a block twice, or more blocks than fit into one transaction.
        let mut unique = BTreeSet::new();
        let blocks = stored.map_or(&candidate.saved_blocks, |stored| &stored.blocks);
        for (network, block) in
            blocks.entries().filter(|(_, block)| unique.insert(block.trunc())).take(MAX_BLOCKS)
        {
            let key = self.layout.network_block(network, block);
            let is_in_network = match candidate.networks.fit(network, block) {
                BlockFit::Fits | BlockFit::Outside if candidate.released.contains(block) => false,
                BlockFit::Fits => true,
                // The subnets of the default network changed.
                BlockFit::Outside if network.is_default() => false,
                // Pods of a removed network may still use it. No other node may get their addresses.
                BlockFit::Outside => true,
                // The block is neither released nor claimed again.
                BlockFit::Unknown => {
                    if matches!(self.read_object::<BlockClaim>(&key).await?, StoredObject::Present(claim) if claim.object.node == *name)
                    {
                        claims.owned.add(network, *block);
                    }
                    continue;
                }
            };
            match self.read_object::<BlockClaim>(&key).await? {
                StoredObject::Present(claim) if is_in_network && is_former(&claim.object.node) => {
                    claims.changes.push(self.put_claim((network, block), name));
                    claims.compares.push(Compare::Revision(key, claim.revision));
                }
                StoredObject::Present(claim) if claim.object.node != *name => {
                    if is_in_network {
                        warn!(%block, node = %claim.object.node, "block lost to another node");
                        claims.lost.push((*block, claim.object.node));
                    }
                    continue;
                }
                // The network changed, so the block is released.
                StoredObject::Present(_) if !is_in_network => {
                    claims.changes.push(Change::Delete(key));
                    continue;
                }
                StoredObject::Absent if !is_in_network => continue,
                // `podwire node rm` removes claims together with the record. Without a record, only the claim's revision shows
                // a removal.
                StoredObject::Present(claim) if stored.is_none() => {
                    claims.compares.push(Compare::Revision(key, claim.revision));
                }
                StoredObject::Present(_) => {}
                StoredObject::Absent => {
                    claims.changes.push(self.put_claim((network, block), name));
                    claims.compares.push(Compare::Absent(key));
                }
                StoredObject::Unreadable { revision, cause } if is_in_network && stored.is_some() => {
                    warn!(key, %cause, "overwriting a corrupt claim of this node's record");
                    claims.changes.push(self.put_claim((network, block), name));
                    claims.compares.push(Compare::Revision(key, revision));
                }
                StoredObject::Unreadable { cause, .. } => {
                    warn!(key, %cause, "ignoring a corrupt claim and its block");
                    continue;
                }
            }
            claims.owned.add(network, *block);
        }
        Ok(claims)
    }

    pub(crate) fn put_claim(&self, (network, block): (&NetworkRef, &IpNet), name: &NodeName) -> Change {
        let value = BlockClaim { node: name.clone() }.encode();
        Change::Put { key: self.layout.network_block(network, block), value, lease: None }
    }

    pub(crate) async fn revision_of(&self, key: &str) -> Result<Option<u64>, JoinError> {
        Ok(self.store.get(key).await?.map(|entry| entry.revision))
    }

    pub(crate) async fn get<T: Object>(&self, key: &str) -> Result<Option<RevisionedObject<T>>, JoinError> {
        match self.read_object(key).await? {
            StoredObject::Absent => Ok(None),
            StoredObject::Present(stored) => Ok(Some(stored)),
            StoredObject::Unreadable { cause, .. } => {
                Err(JoinError::Decode { key: key.to_owned(), source: cause })
            }
        }
    }

    /// Fails for an object of another version, which must not be changed.
    async fn read_object<T: Object>(&self, key: &str) -> Result<StoredObject<T>, JoinError> {
        let Some(Entry { key, value, revision, .. }) = self.store.get(key).await? else {
            return Ok(StoredObject::Absent);
        };
        match T::decode(&value) {
            Ok(object) => Ok(StoredObject::Present(RevisionedObject { object, revision })),
            Err(DecodeError::Older { .. }) => Err(FormerSchema::new(self, key).into()),
            Err(source) if source.is_newer() => Err(JoinError::Decode { key, source }),
            Err(cause) => Ok(StoredObject::Unreadable { revision, cause }),
        }
    }
}

/// The precondition for writing this node's record. A corrupt record may be overwritten.
fn record_precondition(key: &str, current: &StoredObject<NodeRecord>) -> Compare {
    match current {
        StoredObject::Absent => Compare::Absent(key.to_owned()),
        StoredObject::Present(stored) => Compare::Revision(key.to_owned(), stored.revision),
        StoredObject::Unreadable { revision, cause } => {
            warn!(key, %cause, "overwriting a corrupt record");
            Compare::Revision(key.to_owned(), *revision)
        }
    }
}

#[derive(Default)]
struct ReclaimedBlocks {
    owned: BlockAllocation,
    lost: Vec<(IpNet, NodeName)>,
    compares: Vec<Compare>,
    changes: Vec<Change>,
}

fn differences(stored: &NetworkSpec, configured: &NetworkSpec) -> Vec<(&'static str, String)> {
    let values = |spec: &NetworkSpec| {
        let NetworkSpec { subnets, margin, vni, vxlan_port } = spec;
        let subnets: Vec<String> = subnets.iter().take(4).map(ToString::to_string).collect();
        [
            ("network.subnets", subnets.join(",")),
            ("network.margin", margin.to_string()),
            ("network.vni", vni.to_string()),
            ("network.vxlan_port", vxlan_port.to_string()),
        ]
    };
    let pairs = values(stored).into_iter().zip(values(configured));
    pairs.filter(|(stored, configured)| stored != configured).map(|(stored, _)| stored).collect()
}

fn describe(spec: &NetworkSpec) -> String {
    let NetworkSpec { subnets, margin, vni, vxlan_port } = spec;
    // A valid spec has at most one subnet per family. Another program may have written more.
    let subnets: Vec<String> = subnets.iter().take(4).map(ToString::to_string).collect();
    format!("{} with margin {margin}, VNI {vni} on port {vxlan_port}", subnets.join(" and "))
}
