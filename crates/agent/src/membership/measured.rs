//! The join of an agent as a function for `make bench`, which calls it without an agent.

use model::{KeyLayout, NetworkSpec, NodeRecord};
use store::Store;

use super::join::{Candidate, Registry};
use crate::clock::unix_time;

/// Joins a cluster and returns the record in the store.
pub async fn join(
    store: Store,
    layout: KeyLayout,
    spec: NetworkSpec,
    record: NodeRecord,
) -> Result<NodeRecord, String> {
    let since = unix_time();
    let candidate = Candidate { spec, record, saved_blocks: Vec::new(), former: None, since };
    let joined = Registry { store, layout }.join(&candidate, &[]).await.map_err(|error| error.to_string())?;
    Ok(joined.record)
}
