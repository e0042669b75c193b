//! What `make bench` calls without an agent around it: the very code that an agent runs, and nothing of its own.

use model::{KeyLayout, NetworkSpec, NodeRecord};
use store::Store;

use super::join::{Candidate, Registry};
use crate::clock::unix_time;

/// Joins a cluster; gives the record as it stands in the store.
pub async fn join(
    store: Store,
    layout: KeyLayout,
    spec: NetworkSpec,
    record: NodeRecord,
) -> Result<NodeRecord, String> {
    let since = unix_time();
    let candidate = Candidate { spec, record, remembered: Vec::new(), former: None, since };
    let joined = Registry { store, layout }.join(&candidate, &[]).await.map_err(|error| error.to_string())?;
    Ok(joined.record)
}
