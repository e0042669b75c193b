//! Changes of objects, with a real store.

use api::{ObjectAction, ObjectSteps};
use model::objects::{Identity, TenantNetwork};
use model::{API_VERSION, Catalog, Document, ObjectId, ObjectKind, PodRecord, PolicyEdit};
use serde_json::{Value, json};
use types::Placement;

use super::super::cluster_pods::read_pods;
use super::super::object_changes::{ObjectChanges, RequestedObjects, change_objects};
use super::super::object_recovery::restore_objects;
use super::*;
use crate::membership::tests::registry::put;

fn document(kind: &str, name: &str, spec: &Value) -> Document {
    let metadata = match kind {
        "Tenant" => json!({ "name": name }),
        _ => json!({ "name": name, "tenant": "blue" }),
    };
    let body = json!({ "apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec });
    Document { origin: String::new(), body }
}

fn id(kind: ObjectKind, name: &str) -> ObjectId {
    ObjectId::parse(kind, "blue", name).unwrap()
}

async fn change(registry: &Registry, requested: RequestedObjects) -> Result<ObjectSteps, AskError> {
    let known = Catalog::new(TenantNetwork::default_net(Vec::new(), 0));
    let changes = ObjectChanges { known, requested, pods: Vec::new(), dry_run: false };
    change_objects(registry, &"n1".try_into().unwrap(), &changes).await.map(|changed| changed.steps)
}

async fn create_group(registry: &Registry) {
    let documents = vec![
        document("Tenant", "blue", &json!({})),
        document("Network", "front", &json!({ "subnets": ["10.9.0.0/16"] })),
        document("Policy", "p1", &json!({})),
        document("Group", "web", &json!({ "network": "front", "policies": ["p1"] })),
    ];
    change(registry, RequestedObjects { documents, ..RequestedObjects::default() }).await.unwrap();
}

/// A pod of a node with one address in each family.
async fn add_pod(registry: &Registry, node: &str, group: &str) {
    let placement = Placement::parse(Some("blue"), Some("front"), Some(group)).unwrap();
    let labels = model::Labels::new();
    let identity = Identity { placement, namespace: Some("shop".to_owned()), labels, ports: Vec::new() };
    let (hash, value) = identity.stored();
    put(registry, &registry.layout.identity(&hash), &value).await;
    let record = PodRecord { identity: hash, uid: format!("{node}-a"), name: "web-1".to_owned() };
    for address in ["10.9.0.2", "fd00:9::2"] {
        let key = registry.layout.pod(&node.try_into().unwrap(), address.parse().unwrap());
        put(registry, &key, &record.encode()).await;
    }
}

#[test]
fn d_an_object_that_pods_of_other_nodes_use_is_not_removed() {
    with_store(|registry| async move {
        create_group(&registry).await;
        add_pod(&registry, "n2", "web").await;
        // Pods of this node are known from its records.
        add_pod(&registry, "n1", "web").await;
        let remove =
            |kind, name| RequestedObjects { removed: vec![id(kind, name)], ..RequestedObjects::default() };
        for (kind, name) in [(ObjectKind::Group, "web"), (ObjectKind::Tenant, "blue")] {
            let error = change(&registry, remove(kind, name)).await.unwrap_err();
            assert!(
                matches!(&error, AskError::ObjectConflict(reason) if reason.ends_with("1 pod")),
                "{error}"
            );
        }
        let pods = read_pods(&registry, &"n1".try_into().unwrap()).await.unwrap();
        let [pod] = pods.as_slice() else { panic!("{pods:?}") };
        assert_eq!((pod.name.to_string().as_str(), pod.addresses.len()), ("shop/web-1", 2));
        for address in &pod.addresses {
            let key = registry.layout.pod(&pod.node, *address);
            registry.store.commit(&[], &[Change::Delete(key)]).await.unwrap();
        }
        change(&registry, remove(ObjectKind::Group, "web")).await.unwrap();
    });
}

#[test]
fn d_creations_and_edits_need_the_state_that_they_expect() {
    with_store(|registry| async move {
        create_group(&registry).await;
        let create = || RequestedObjects {
            documents: vec![document("Profile", "gold", &json!({ "dscp": 10 }))],
            created: vec![id(ObjectKind::Profile, "gold")],
            ..RequestedObjects::default()
        };
        let done = change(&registry, create()).await.unwrap();
        assert_eq!(done.steps[0].action, ObjectAction::Create);
        let error = change(&registry, create()).await.unwrap_err();
        assert!(matches!(error, AskError::ObjectConflict(_)), "{error}");
        let edit = |name: &str, remove: &[u32]| {
            let add = vec![json!({ "direction": "in", "action": "deny" })];
            let edit = PolicyEdit { policy: id(ObjectKind::Policy, name), add, remove: remove.to_vec() };
            RequestedObjects { edits: vec![edit], ..RequestedObjects::default() }
        };
        let done = change(&registry, edit("p1", &[])).await.unwrap();
        assert_eq!((done.steps.len(), done.steps[0].new_rules.as_slice()), (1, &[1][..]));
        let error = change(&registry, edit("p1", &[])).await.unwrap_err();
        assert!(matches!(error, AskError::ObjectConflict(_)), "{error}");
        for request in [edit("p2", &[]), edit("p1", &[7])] {
            let error = change(&registry, request).await.unwrap_err();
            assert!(matches!(error, AskError::ObjectMissing(_)), "{error}");
        }
    });
}

/// All keys and values below the prefix.
async fn values(registry: &Registry) -> Vec<(String, Vec<u8>)> {
    let listing = registry.store.list(&registry.layout.root()).await.unwrap();
    listing.entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
}

#[test]
fn d_a_store_that_lost_its_data_gets_the_objects_back() {
    with_store(|registry| async move {
        create_group(&registry).await;
        let before = values(&registry).await;
        let mut known = Catalog::new(TenantNetwork::default_net(Vec::new(), 0));
        for (key, value) in &before {
            registry.layout.object_of(key).into_iter().for_each(|id| known.observe(&id, value).unwrap());
        }
        // An agent was killed after it had written one object.
        for (key, _) in &before[1..] {
            registry.store.commit(&[], &[Change::Delete(key.clone())]).await.unwrap();
        }
        restore_objects(&registry, &known).await.unwrap();
        assert_eq!(values(&registry).await, before);
        // Objects that were removed while the agent did not run are not written again.
        let tenant = before.iter().map(|(key, _)| key).find(|key| key.contains("tenants")).unwrap();
        registry.store.commit(&[], &[Change::Delete(tenant.clone())]).await.unwrap();
        restore_objects(&registry, &known).await.unwrap();
        assert_eq!(values(&registry).await.len(), before.len() - 1);
    });
}

#[test]
fn d_an_agent_without_objects_writes_none_to_an_empty_store() {
    with_store(|registry| async move {
        let known = Catalog::new(TenantNetwork::default_net(Vec::new(), 0));
        restore_objects(&registry, &known).await.unwrap();
        assert_eq!(values(&registry).await, []);
    });
}
