//! Objects of the store: tenants, groups, policies. The member passes them to the policy thread and saves them for a start without
//! the store.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Catalog, DecodeError, ObjectId};
use tokio::sync::watch;

use crate::policies::Policies;

/// The objects as the store has them. If a value cannot be read, the last known one stays.
#[derive(Debug)]
pub(crate) struct ObjectMirror {
    catalog: Catalog,
    policies: Arc<Policies>,
    saved: watch::Sender<Option<Arc<Catalog>>>,
}

impl ObjectMirror {
    /// `defaults` exist without a value in the store. The second value receives all objects after each change.
    pub(crate) fn new(
        defaults: Catalog,
        policies: Arc<Policies>,
    ) -> (Self, watch::Receiver<Option<Arc<Catalog>>>) {
        let (saved, receiver) = watch::channel(None);
        let catalog = policies.objects().map_or(defaults, |objects| (*objects).clone());
        (Self { catalog, policies, saved }, receiver)
    }

    /// Removes all objects except these, before the values of a listing are put.
    pub(crate) fn retain(&mut self, listed: &BTreeSet<ObjectId>) {
        self.catalog.retain(listed);
    }

    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    pub(crate) fn put(&mut self, id: &ObjectId, value: &[u8]) -> Result<(), DecodeError> {
        self.catalog.observe(id, value)
    }

    /// Whether a valid version of the object is in force.
    pub(crate) fn is_known(&self, id: &ObjectId) -> bool {
        self.catalog.get(id).is_some()
    }

    pub(crate) fn delete(&mut self, id: &ObjectId) {
        self.catalog.forget(id);
    }

    /// Passes the objects on, once after all changes that arrived together. Returns them if they changed.
    pub(crate) fn publish(&self) -> Option<Arc<Catalog>> {
        if self.saved.borrow().as_ref().is_some_and(|saved| **saved == self.catalog) {
            return None;
        }
        let catalog = Arc::new(self.catalog.clone());
        self.policies.set_objects(Arc::clone(&catalog));
        self.saved.send_replace(Some(Arc::clone(&catalog)));
        Some(catalog)
    }
}

#[cfg(test)]
mod tests {
    use model::objects::TenantNetwork;
    use model::{ClusterObject, ObjectRecord};
    use serde_json::json;

    use super::*;
    use crate::agent_status::AgentStatus;
    use crate::waker::Waker;

    fn tenant(name: &str) -> (ObjectId, Vec<u8>) {
        let metadata = json!({ "name": name });
        let document =
            json!({ "apiVersion": model::API_VERSION, "kind": "Tenant", "metadata": metadata, "spec": {} });
        let object = ClusterObject::from_document(document).unwrap();
        (object.id(), ObjectRecord::from(object).encode())
    }

    #[test]
    fn an_unreadable_object_keeps_its_last_value_until_it_is_deleted() {
        let status = Arc::new(AgentStatus::new());
        let policies = Arc::new(Policies::new("n1".try_into().unwrap(), Waker::new().unwrap(), status));
        let defaults = Catalog::new(TenantNetwork::default_net(Vec::new(), 0));
        let (mut mirror, saved) = ObjectMirror::new(defaults, Arc::clone(&policies));
        let names = |mirror: &ObjectMirror| -> Vec<String> {
            mirror.publish();
            let objects = policies.objects().unwrap();
            assert_eq!(saved.borrow().as_ref(), Some(&objects));
            objects.tenants().map(|tenant| tenant.name.to_string()).collect()
        };
        let ((blue, value), (green, other)) = (tenant("blue"), tenant("green"));
        assert_eq!(names(&mirror), ["default"]);
        mirror.put(&blue, &value).unwrap();
        assert_eq!(names(&mirror), ["blue", "default"]);
        mirror.put(&blue, b"{}").unwrap_err();
        mirror.put(&green, b"{}").unwrap_err();
        assert_eq!(names(&mirror), ["blue", "default"]);
        mirror.put(&green, &other).unwrap();
        mirror.retain(&BTreeSet::from([green.clone()]));
        assert_eq!(names(&mirror), ["default", "green"]);
        mirror.delete(&green);
        assert_eq!(names(&mirror), ["default"]);
    }
}
