//! The objects of the store, as the policy engine gets them. Pure.

use model::objects::{NodeAccess, Tenant, TenantGroup, TenantNetwork};
use model::{Catalog, ClusterObject, ObjectId, ObjectKind};
use policy::WorldChange;
use types::{GroupName, NetworkId, Placement, TenantName};

use config::Config;

/// The objects of a cluster without any: tenant `default` with the agent's network.
pub(crate) fn defaults(config: &Config) -> Catalog {
    Catalog::new(TenantNetwork::default_net(config.network.subnets.clone(), config.cluster.margin))
}

/// The changes that turn `before` into `after`. Without `before`, all objects are new.
pub(crate) fn changes(before: Option<&Catalog>, after: &Catalog) -> Vec<WorldChange> {
    let records = before.into_iter().flat_map(Catalog::records);
    let removed = records.filter(|(id, _)| after.get(id).is_none()).filter_map(|(id, _)| removal(id));
    let is_new = |id: &ObjectId| before.and_then(|before| before.get(id)) != after.get(id);
    let set = after.records().filter(|(id, _)| is_new(id));
    removed.chain(set.filter_map(|(_, record)| WorldChange::of_object(&record.object))).collect()
}

/// Whether the objects restrict flows. Tenant `default` without settings restricts nothing. Groups and policies that are missing or
/// were never valid close their pods.
pub(crate) fn restrict_flows(objects: &Catalog) -> bool {
    let is_missing = |id: &ObjectId| objects.get(id).is_none();
    let restricts = |id: &ObjectId, object: &ClusterObject| match object {
        ClusterObject::Tenant(Tenant { nodes, .. }) => !id.is_default() || *nodes == NodeAccess::Deny,
        ClusterObject::Policy(policy) => !policy.rules.is_empty(),
        ClusterObject::Group(TenantGroup { group, .. }) => {
            group.policies.iter().any(|name| is_missing(&ObjectId::policy(&group.tenant, name)))
        }
        ClusterObject::Network(_) | ClusterObject::Profile(_) | ClusterObject::Share(_) => false,
    };
    let is_closed = |id: &ObjectId| match id.kind() {
        ObjectKind::Tenant | ObjectKind::Group | ObjectKind::Policy => is_missing(id),
        ObjectKind::Network | ObjectKind::Profile | ObjectKind::Share => false,
    };
    objects.records().any(|(id, record)| restricts(id, &record.object))
        || objects.invalid().any(|(id, _)| is_closed(id))
}

/// Whether flows of a pod must be restricted, also if no object restricts flows. A pod of a tenant whose object was removed is still
/// separated from pods of other tenants.
pub(crate) fn restrict_pod(placement: &Placement) -> bool {
    placement.tenant != TenantName::default()
}

fn removal(id: &ObjectId) -> Option<WorldChange> {
    let (tenant, name) = (id.tenant_name().clone(), id.name().to_owned());
    Some(match id.kind() {
        ObjectKind::Tenant => WorldChange::RemoveTenant(tenant),
        // Names of objects are valid names of all types.
        ObjectKind::Network => WorldChange::RemoveNetwork(tenant, NetworkId::try_from(name).ok()?),
        ObjectKind::Group => WorldChange::RemoveGroup(tenant, GroupName::try_from(name).ok()?),
        ObjectKind::Policy => WorldChange::RemoveGroupPolicy(tenant, name),
        ObjectKind::Share => WorldChange::RemoveShare(tenant, name),
        ObjectKind::Profile => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn objects(documents: &[Value]) -> Catalog {
        let mut catalog = Catalog::new(TenantNetwork::default_net(Vec::new(), 0));
        for document in documents {
            let mut document = document.clone();
            document["apiVersion"] = model::API_VERSION.into();
            let object = ClusterObject::from_document(document).unwrap();
            catalog.observe(&object.id(), &model::ObjectRecord::from(object).encode()).unwrap();
        }
        catalog
    }

    fn tenant(name: &str, spec: &Value) -> Value {
        json!({ "kind": "Tenant", "metadata": { "name": name }, "spec": spec })
    }

    #[test]
    fn only_differences_are_given_to_the_engine() {
        let share = json!({ "kind": "Share", "metadata": { "name": "dns", "tenant": "blue" }, "spec": { "with": ["red"] } });
        let before = objects(&[tenant("blue", &json!({})), tenant("red", &json!({})), share]);
        let after = objects(&[tenant("blue", &json!({ "nodes": "deny" })), tenant("red", &json!({}))]);
        assert_eq!(changes(Some(&before), &before), []);
        let changed = changes(Some(&before), &after);
        let [WorldChange::RemoveShare(owner, name), WorldChange::SetTenant(blue)] = changed.as_slice() else {
            panic!("{changed:?}")
        };
        assert_eq!((owner.as_str(), name.as_str(), blue.nodes), ("blue", "dns", NodeAccess::Deny));
    }

    #[test]
    fn defaults_restrict_no_flows() {
        let group =
            json!({ "kind": "Group", "metadata": { "name": "web" }, "spec": { "network": "default-net" } });
        assert!(!restrict_flows(&objects(&[])));
        assert!(!restrict_flows(&objects(&[tenant("default", &json!({})), group])));
        assert!(restrict_flows(&objects(&[tenant("default", &json!({ "nodes": "deny" }))])));
        assert!(restrict_flows(&objects(&[tenant("blue", &json!({}))])));
    }

    #[test]
    fn d_objects_that_were_never_valid_restrict_flows() {
        let newer = br#"{"schema":99}"#;
        let (tenant, web) = (TenantName::default(), GroupName::try_from("web").unwrap());
        for id in [ObjectId::policy(&tenant, "p"), ObjectId::group(&tenant, &web)] {
            let mut objects = objects(&[]);
            objects.observe(&id, newer).unwrap_err();
            assert!(restrict_flows(&objects), "{id}");
            objects.forget(&id);
            assert!(!restrict_flows(&objects), "{id}");
        }
        let spec = json!({ "network": "default-net", "policies": ["p"] });
        let bound = json!({ "kind": "Group", "metadata": { "name": "web" }, "spec": spec });
        assert!(restrict_flows(&objects(&[bound])), "policy p is missing");
        let policy = json!({ "kind": "Policy", "metadata": { "name": "p" }, "spec": { "rules": [] } });
        let mut known = objects(&[policy]);
        known.observe(&ObjectId::policy(&tenant, "p"), newer).unwrap_err();
        assert!(!restrict_flows(&known), "the last valid version is in force");
    }
}
