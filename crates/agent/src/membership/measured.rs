//! The join of an agent as a function for `make bench`, which calls it without an agent.

use std::collections::BTreeSet;

use model::{BlockAllocation, KeyLayout, NetworkSpec, NodeRecord};
use store::Store;

use super::join::{Candidate, Registry};
use super::networks::NetworkLayouts;
use crate::clock::unix_time;

/// Joins a cluster and returns the record in the store.
pub async fn join(
    store: Store,
    layout: KeyLayout,
    spec: NetworkSpec,
    record: NodeRecord,
) -> Result<NodeRecord, String> {
    let since = unix_time();
    let networks = NetworkLayouts::of_default(&spec).map_err(|error| error.to_string())?;
    let saved_blocks = BlockAllocation::default();
    let candidate = Candidate {
        spec,
        networks,
        default_pools: Vec::new(),
        released: BTreeSet::new(),
        record,
        saved_blocks,
        former: None,
        since,
    };
    let joined = Registry { store, layout }.join(&candidate, &[]).await.map_err(|error| error.to_string())?;
    Ok(joined.record)
}
