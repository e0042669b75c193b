//! Gives the objects back to a store that lost its data, as nodes give their records back. Without them, tenants would no longer be
//! separated.
//!
//! The first change of objects creates the counter of rule ids, and nothing removes it. So a store without the counter lost its
//! objects or never had any. Each object is written only if it does not exist, and the counter last: if the agent is killed
//! meanwhile, or several agents do this at once, the result is the same.

use model::{Catalog, Object as _};
use store::{Change, CommitOutcome, Compare, Result};
use tracing::info;

use super::join::Registry;

/// Whether the store lacks objects that this node knows, because it lost its data.
pub(super) async fn has_lost_objects(registry: &Registry, known: &Catalog) -> Result<bool> {
    let has_objects = known.stored().next().is_some();
    Ok(has_objects && registry.store.get(&registry.layout.rule_counter()).await?.is_none())
}

/// Writes the objects that this node knows if the store lost them.
pub(super) async fn restore_objects(registry: &Registry, known: &Catalog) -> Result<()> {
    if !has_lost_objects(registry, known).await? {
        return Ok(());
    }
    let mut restored = 0;
    for (id, record) in known.stored() {
        let outcome = put_new(registry, registry.layout.object(id), record.encode()).await?;
        restored += usize::from(matches!(outcome, CommitOutcome::Done { .. }));
    }
    put_new(registry, registry.layout.rule_counter(), known.rule_counter().encode()).await?;
    info!(restored, "the store lost its objects; the objects that this node knows were written again");
    Ok(())
}

/// Refused if another node has written the key.
async fn put_new(registry: &Registry, key: String, value: Vec<u8>) -> Result<CommitOutcome> {
    let absent = Compare::Absent(key.clone());
    registry.store.commit(&[absent], &[Change::Put { key, value, lease: None }]).await
}
