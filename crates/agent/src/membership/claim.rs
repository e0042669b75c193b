//! Claims blocks for a node at its start, and when its blocks are full.

use std::collections::BTreeSet;

use ipnet::IpNet;
use model::{BlockLayout, NodeRecord, Object as _};
use netconf::comma_separated;
use store::{Change, CommitOutcome, Compare};
use tracing::info;
use types::NetworkRef;

use super::join::{Candidate, JoinError, Joined, MAX_BLOCKS, Registry, TRIES};

/// How many claims are tried before the list of free blocks is read again.
const CLAIMS_PER_LISTING: usize = 32;
/// How many free blocks are compared with pools.
const MAX_CANDIDATES: usize = 1 << 16;

/// Which blocks of a network with address pools are claimed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SearchedPools<'a> {
    /// Blocks with addresses outside of these pools of groups.
    Outside(&'a [IpNet]),
    /// Blocks that overlap these pools.
    Within(&'a [IpNet]),
}

/// The kind of the block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WantedBlock<'a> {
    pub(crate) network: &'a NetworkRef,
    pub(crate) block_layout: &'a BlockLayout,
    pub(crate) pools: SearchedPools<'a>,
}

/// Parameters of a search for a free block.
struct BlockSearch<'a> {
    wanted: WantedBlock<'a>,
    /// The first candidate.
    start: u64,
    /// Blocks of known nodes. After the store lost its data, they are free in the store but in use.
    known: &'a [IpNet],
}

impl Registry {
    /// Registers the node, and claims a block of each subnet of the default network in which it has none. `known` are the blocks of known nodes.
    pub(crate) async fn join(&self, candidate: &Candidate, known: &[IpNet]) -> Result<Joined, JoinError> {
        let (joined, _) = self.enter(candidate).await?;
        self.complete(joined, candidate, known).await
    }

    /// Claims a block of each subnet of the default network in which the node has none.
    pub(crate) async fn complete(
        &self,
        mut joined: Joined,
        candidate: &Candidate,
        known: &[IpNet],
    ) -> Result<Joined, JoinError> {
        let network = NetworkRef::default();
        let owned = joined.record.blocks.of(&network);
        let lacks = |block_layout: &&BlockLayout| !owned.iter().any(|block| block_layout.owns(block));
        let missing: Vec<&BlockLayout> = candidate.networks.of(&network).iter().filter(lacks).collect();
        if missing.is_empty() {
            return Ok(joined);
        }
        // A store that has this node's record lost no data: nodes that it does not know were removed.
        let known = if joined.was_forgotten { known } else { &[] };
        // One PUT for all families, so that the blocks of a node have the same number if possible.
        let start = self.store.put_counter(self.layout.counter()).await?;
        for block_layout in missing {
            joined = self
                .claim(
                    joined,
                    &BlockSearch {
                        wanted: WantedBlock {
                            network: &network,
                            block_layout,
                            pools: SearchedPools::Outside(&candidate.default_pools),
                        },
                        start,
                        known,
                    },
                )
                .await?;
        }
        Ok(joined)
    }

    /// Claims one more block of this network and family.
    pub(crate) async fn claim_another_block(
        &self,
        joined: Joined,
        wanted: WantedBlock<'_>,
        known: &[IpNet],
    ) -> Result<Joined, JoinError> {
        if joined.record.blocks.len() >= MAX_BLOCKS {
            return Err(JoinError::TooMany);
        }
        let start = self.store.put_counter(self.layout.counter()).await?;
        self.claim(joined, &BlockSearch { wanted, start, known }).await
    }

    /// Claims a block. The counter is only a hint. The transaction on the block's key decides.
    async fn claim(&self, joined: Joined, search: &BlockSearch<'_>) -> Result<Joined, JoinError> {
        let block_layout = search.wanted.block_layout;
        for _ in 0..TRIES {
            let keys = self.store.keys(&self.layout.network_blocks(search.wanted.network)).await?;
            let claimed = keys.iter().filter_map(|key| self.layout.network_block_of(key));
            let taken: BTreeSet<IpNet> = claimed.map(|(_, block)| block).collect();
            for block in search.free(&taken)? {
                if let Some(joined) = self.try_claim(&joined, (search.wanted.network, block)).await? {
                    info!(network = %search.wanted.network, %block, "claimed block");
                    return Ok(joined);
                }
                let key = self.layout.node(&joined.record.name);
                if self.revision_of(&key).await? != Some(joined.revision) {
                    return Err(JoinError::Contended {
                        object: format!("the record of {}", joined.record.name),
                    });
                }
                if self.revision_of(&self.layout.network()).await? != Some(joined.network) {
                    return Err(JoinError::Contended { object: "the network".to_owned() });
                }
            }
        }
        Err(JoinError::Contended { object: format!("the list of blocks of {}", block_layout.subnet()) })
    }

    /// None if another node was faster, or if the record or the network changed.
    async fn try_claim(
        &self,
        joined: &Joined,
        (network, block): (&NetworkRef, IpNet),
    ) -> Result<Option<Joined>, JoinError> {
        let mut record: NodeRecord = joined.record.clone();
        record.blocks.add(network, block);
        let key = self.layout.node(&record.name);
        let compares = [
            Compare::Absent(self.layout.network_block(network, &block)),
            Compare::Revision(key.clone(), joined.revision),
            Compare::Revision(self.layout.network(), joined.network),
        ];
        let changes = [
            self.put_claim((network, &block), &record.name),
            Change::Put { key, value: record.encode(), lease: None },
        ];
        Ok(match self.store.commit(&compares, &changes).await? {
            CommitOutcome::Done { revision } => Some(Joined { record, revision, ..joined.clone() }),
            CommitOutcome::Refused => None,
        })
    }
}

impl BlockSearch<'_> {
    /// Blocks that may be claimed, at least one.
    fn free(&self, taken: &BTreeSet<IpNet>) -> Result<Vec<IpNet>, JoinError> {
        // Only claims of the right size count. Peers do not route other ones, and a claim for all addresses would leave no
        // block free.
        let known: BTreeSet<&IpNet> = self.known.iter().collect();
        let is_taken = |block: &IpNet| taken.contains(block) || known.contains(block);
        let offered: Vec<IpNet> = match self.wanted.pools {
            SearchedPools::Outside(pools) => {
                let is_inside = |block: &IpNet| pools.iter().any(|pool| pool.contains(block));
                let offered = self.wanted.block_layout.offer(self.start, is_taken).take(MAX_CANDIDATES);
                offered.filter(|block| !is_inside(block)).take(CLAIMS_PER_LISTING).collect()
            }
            SearchedPools::Within(pools) => {
                let free = self.wanted.block_layout.within(pools).filter(|block| !is_taken(block));
                free.take(CLAIMS_PER_LISTING).collect()
            }
        };
        if !offered.is_empty() {
            return Ok(offered);
        }
        if let SearchedPools::Within(pools) = self.wanted.pools {
            return Err(JoinError::PoolsExhausted { pools: comma_separated(pools) });
        }
        let (subnet, count) = (self.wanted.block_layout.subnet(), self.wanted.block_layout.count());
        let is_reserved =
            |block: &&IpNet| self.wanted.block_layout.subnet().contains(*block) && !taken.contains(*block);
        Err(match self.known.iter().find(is_reserved) {
            Some(_) => JoinError::Reserved { subnet },
            None => JoinError::Exhausted { subnet, count },
        })
    }
}
