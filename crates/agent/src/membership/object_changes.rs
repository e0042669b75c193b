//! Changes of objects in the store: checked together, then written step by step, so that all references are valid after each step.
//!
//! Every transaction also writes the counter of rule ids and compares its revision. So no other writer changed an object since the
//! objects were listed and checked.

use std::collections::BTreeMap;

use api::{ObjectAction, ObjectName, ObjectStep, ObjectSteps};
use model::objects::TenantNetwork;
use model::{
    ApplyStep, Catalog, ClusterObject, Document, Object as _, ObjectError, ObjectErrorCause, ObjectId,
    ObjectKind, ObjectRecord, RuleCounter, StepAction,
};
use store::{Change, CommitOutcome, Compare, Entry, Listing};
use types::{NetworkRef, NodeName, Placement};

use super::ask_error::AskError;
use super::command::TRIES;
use super::join::Registry;

/// Objects in one transaction. etcd allows 128 operations.
const STEPS_PER_COMMIT: usize = 100;

/// A change that a client requests.
#[derive(Debug)]
pub(crate) struct ObjectChanges {
    /// The objects of an empty store.
    pub(crate) defaults: Catalog,
    /// Objects to create or replace.
    pub(crate) documents: Vec<Document>,
    /// Objects to remove afterwards.
    pub(crate) removed: Vec<ObjectId>,
    /// The placements of this node's pods, which need their objects.
    pub(crate) pods: Vec<Placement>,
    pub(crate) dry_run: bool,
}

/// One object to write or delete.
struct ObjectWrite {
    view: ObjectStep,
    change: Option<Change>,
    counter: Option<RuleCounter>,
}

/// The objects of the store, and the revision of the counter. None: it does not exist.
struct ListedObjects {
    catalog: Catalog,
    counter: RuleCounter,
    guard: Option<u64>,
}

pub(crate) async fn change_objects(
    registry: &Registry,
    own: &NodeName,
    changes: &ObjectChanges,
) -> Result<ObjectSteps, AskError> {
    let mut done: Vec<ObjectStep> = Vec::new();
    for _ in 0..TRIES {
        let listing = registry.store.list(&registry.layout.root()).await?;
        let ListedObjects { catalog, counter, guard } = listed(registry, changes.defaults.clone(), &listing)?;
        let steps = plan(registry, catalog, &in_cluster(registry, (own, &listing), changes))?;
        refuse_used_subnets(registry, &listing, changes)?;
        let views = |steps: &[ObjectWrite]| steps.iter().map(|step| step.view.clone()).collect::<Vec<_>>();
        if changes.dry_run {
            return Ok(ObjectSteps { steps: views(&steps), dry_run: true });
        }
        let written = write(registry, &steps, (counter, guard)).await?;
        done.extend(views(&steps).into_iter().take(written).filter(|step| step.action != ObjectAction::Keep));
        if written == steps.len() {
            let kept = views(&steps).into_iter().filter(|step| {
                step.action == ObjectAction::Keep && !done.iter().any(|earlier| earlier.object == step.object)
            });
            let steps = done.iter().cloned().chain(kept).collect();
            return Ok(ObjectSteps { steps, dry_run: false });
        }
    }
    Err(AskError::ObjectsContended)
}

fn listed(registry: &Registry, defaults: Catalog, listing: &Listing) -> Result<ListedObjects, AskError> {
    let (mut catalog, mut counter, mut guard) = (defaults, RuleCounter::default(), None);
    let counter_key = registry.layout.rule_counter();
    for entry in &listing.entries {
        if entry.key == counter_key {
            let unreadable = |error: model::DecodeError| AskError::Unreadable {
                key: entry.key.clone(),
                problem: error.to_string(),
            };
            counter = RuleCounter::decode(&entry.value).map_err(unreadable)?;
            guard = Some(entry.revision);
            catalog.observe_counter(counter);
        } else if let Some(id) = registry.layout.object_of(&entry.key) {
            // The catalog knows which objects it cannot read, and does not overwrite those of newer versions.
            let _ = catalog.observe(&id, &entry.value);
        }
    }
    Ok(ListedObjects { catalog, counter, guard })
}

/// The changes with the placements of pods of other nodes, as far as the store has their addresses.
fn in_cluster(
    registry: &Registry,
    (own, listing): (&NodeName, &Listing),
    changes: &ObjectChanges,
) -> ObjectChanges {
    let networks: Vec<TenantNetwork> =
        listing.entries.iter().filter_map(|entry| network_at(registry, entry)).collect();
    let mut pods = changes.pods.clone();
    let others = listing.entries.iter().filter_map(|entry| registry.layout.pod_of(&entry.key));
    for (_, address) in others.filter(|(node, _)| node != own) {
        let has_address = |network: &&TenantNetwork| network.subnets.iter().any(|net| net.contains(&address));
        pods.extend(networks.iter().find(has_address).map(|network| Placement {
            tenant: network.tenant.clone(),
            network: network.id.clone(),
            group: None,
        }));
    }
    ObjectChanges {
        defaults: changes.defaults.clone(),
        documents: changes.documents.clone(),
        removed: changes.removed.clone(),
        pods,
        dry_run: changes.dry_run,
    }
}

fn network_at(registry: &Registry, entry: &Entry) -> Option<TenantNetwork> {
    let id = registry.layout.object_of(&entry.key)?;
    network_of(ObjectRecord::decode(&id, &entry.value).ok()?.object)
}

fn network_of(object: ClusterObject) -> Option<TenantNetwork> {
    match object {
        ClusterObject::Network(network) => Some(network),
        ClusterObject::Tenant(_)
        | ClusterObject::Profile(_)
        | ClusterObject::Group(_)
        | ClusterObject::Policy(_)
        | ClusterObject::Share(_) => None,
    }
}

/// A node keeps a block of a removed network while its pods use it. No other network may get these addresses.
fn refuse_used_subnets(
    registry: &Registry,
    listing: &Listing,
    changes: &ObjectChanges,
) -> Result<(), AskError> {
    // The plan has checked the documents.
    let read = |document: &Document| network_of(ClusterObject::from_document(document.body.clone()).ok()?);
    let wanted: Vec<TenantNetwork> = changes.documents.iter().filter_map(read).collect();
    for entry in &listing.entries {
        let Some((claimed, block, Ok(node))) = registry.layout.claim_at(&entry.key, &entry.value) else {
            continue;
        };
        let overlaps = |network: &&TenantNetwork| {
            NetworkRef::new(&network.tenant, &network.id) != claimed
                && network.subnets.iter().any(|net| net.contains(&block) || block.contains(net))
        };
        if let Some(network) = wanted.iter().find(overlaps) {
            let id = ObjectId::network(&network.tenant, &network.id);
            return Err(AskError::ObjectConflict(format!(
                "{id}: node {node} still has block {block} of network {claimed}; it returns the block when no pod uses it any \
                 more: remove these pods and try again"
            )));
        }
    }
    Ok(())
}

fn plan(
    registry: &Registry,
    mut catalog: Catalog,
    changes: &ObjectChanges,
) -> Result<Vec<ObjectWrite>, AskError> {
    let layout = &registry.layout;
    let applied =
        catalog.plan(changes.documents.clone(), &changes.pods).map_err(|errors| refused(&errors))?;
    let mut steps = Vec::new();
    for ApplyStep { action, record, counter } in applied {
        let id = record.object.id();
        catalog.set(record.object.clone(), &changes.pods).map_err(|error| refused(&[error]))?;
        let put = Change::Put { key: layout.object(&id), value: record.encode(), lease: None };
        let (action, change) = match action {
            StepAction::Create => (ObjectAction::Create, Some(put)),
            StepAction::Update => (ObjectAction::Update, Some(put)),
            StepAction::Keep => (ObjectAction::Keep, None),
        };
        steps.push(ObjectWrite { view: ObjectStep { action, object: name(&id) }, change, counter });
    }
    for id in removal_order(catalog, changes)? {
        let view = ObjectStep { action: ObjectAction::Remove, object: name(&id) };
        steps.push(ObjectWrite { view, change: Some(Change::Delete(layout.object(&id))), counter: None });
    }
    Ok(steps)
}

/// Removes what no other object needs until nothing is left.
fn removal_order(mut catalog: Catalog, changes: &ObjectChanges) -> Result<Vec<ObjectId>, AskError> {
    let (mut pending, mut order) = (changes.removed.clone(), Vec::new());
    while !pending.is_empty() {
        let mut errors = Vec::new();
        let before = order.len();
        pending.retain(|id| match catalog.remove(id, &changes.pods) {
            Ok(_) => {
                order.push(id.clone());
                false
            }
            Err(error) => {
                errors.push(error);
                true
            }
        });
        if order.len() == before {
            return Err(refused(&errors));
        }
    }
    Ok(order)
}

/// Returns how many steps were written before another writer changed an object.
async fn write(
    registry: &Registry,
    steps: &[ObjectWrite],
    (mut counter, mut guard): (RuleCounter, Option<u64>),
) -> Result<usize, AskError> {
    let key = registry.layout.rule_counter();
    let mut written = 0;
    for chunk in steps.chunks(STEPS_PER_COMMIT) {
        let mut changes = last_changes(chunk);
        if !changes.is_empty() {
            counter = chunk.iter().filter_map(|step| step.counter).fold(counter, RuleCounter::max);
            changes.push(Change::Put { key: key.clone(), value: counter.encode(), lease: None });
            let compare = match guard {
                Some(revision) => Compare::Revision(key.clone(), revision),
                None => Compare::Absent(key.clone()),
            };
            match registry.store.commit(&[compare], &changes).await? {
                CommitOutcome::Done { revision } => guard = Some(revision),
                CommitOutcome::Refused => return Ok(written),
            }
        }
        written += chunk.len();
    }
    Ok(written)
}

/// An object that others refer to in a circle has two steps. In one transaction, only the last one counts.
fn last_changes(steps: &[ObjectWrite]) -> Vec<Change> {
    let changes = steps.iter().filter_map(|step| step.change.as_ref());
    let last: BTreeMap<&str, &Change> = changes.map(|change| (change.key(), change)).collect();
    last.into_values().cloned().collect()
}

fn name(id: &ObjectId) -> ObjectName {
    let tenant = match id.kind() {
        ObjectKind::Tenant => String::new(),
        ObjectKind::Network
        | ObjectKind::Profile
        | ObjectKind::Group
        | ObjectKind::Policy
        | ObjectKind::Share => id.tenant_name().to_string(),
    };
    ObjectName { kind: id.kind().title().to_owned(), tenant, name: id.name().to_owned() }
}

fn refused(errors: &[ObjectError]) -> AskError {
    let reasons = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let is = |matches: fn(&ObjectErrorCause) -> bool| errors.iter().all(|error| matches(&error.cause));
    if is(|cause| matches!(cause, ObjectErrorCause::NotFound { .. })) {
        return AskError::ObjectMissing(reasons);
    }
    let conflicts = |cause: &ObjectErrorCause| {
        matches!(
            cause,
            ObjectErrorCause::InUse { .. } | ObjectErrorCause::Permanent | ObjectErrorCause::Newer(_)
        )
    };
    if is(conflicts) { AskError::ObjectConflict(reasons) } else { AskError::ObjectInvalid(reasons) }
}
