//! The order in which objects can be removed.

use std::collections::BTreeSet;

use types::Placement;

use super::check::pods_of;
use super::{Catalog, ObjectError};
use crate::document::ObjectId;

impl Catalog {
    /// An order in which no removed object is needed by one that still exists, or the errors of the objects that are needed by others.
    /// Objects that need only each other follow each other.
    pub fn removal_order(
        &self,
        removed: &[ObjectId],
        pods: &[Placement],
    ) -> Result<Vec<ObjectId>, Vec<ObjectError>> {
        let mut state = self.clone();
        let mut pending: BTreeSet<ObjectId> = removed.iter().cloned().collect();
        let mut order = Vec::new();
        while !pending.is_empty() {
            let mut errors = Vec::new();
            let before = order.len();
            pending.retain(|id| match state.remove(id, pods) {
                Ok(()) => {
                    order.push(id.clone());
                    false
                }
                Err(error) => {
                    errors.push(error);
                    true
                }
            });
            if order.len() > before {
                continue;
            }
            let together = state.needed_by_each_other(&pending, pods);
            if together.is_empty() {
                return Err(errors);
            }
            for id in together {
                pending.remove(&id);
                state.invalid.remove(&id);
                state.records.remove(&id);
                order.push(id);
            }
        }
        Ok(order)
    }

    /// The objects that only objects of the result need.
    fn needed_by_each_other(&self, pending: &BTreeSet<ObjectId>, pods: &[Placement]) -> BTreeSet<ObjectId> {
        let is_free = |id: &&ObjectId| {
            let exists = self.records.contains_key(*id) || self.invalid.contains_key(*id);
            exists && !id.is_default() && self.refuse_newer(id).is_ok() && pods_of(id, pods) == 0
        };
        let mut together: BTreeSet<ObjectId> = pending.iter().filter(is_free).cloned().collect();
        loop {
            let is_needed = |id: &&ObjectId| {
                self.dependents(id).iter().any(|user| !together.contains(user) && user != *id)
            };
            let needed: Vec<ObjectId> = together.iter().filter(is_needed).cloned().collect();
            if needed.is_empty() {
                return together;
            }
            for id in needed {
                together.remove(&id);
            }
        }
    }
}
