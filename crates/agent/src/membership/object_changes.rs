//! Changes of objects in the store: checked together, then written step by step, so that all references are valid after each step.
//!
//! Every transaction also writes the counter of rule ids and compares its revision. So no other writer changed an object since the
//! objects were listed and checked.

use std::collections::BTreeMap;

use api::{ObjectAction, ObjectName, ObjectStep, ObjectSteps};
use model::objects::TenantNetwork;
use model::{
    ApplyStep, Catalog, ClusterObject, Document, Object as _, ObjectError, ObjectErrorCause, ObjectId,
    ObjectKind, PolicyEdit, RuleCounter, StepAction,
};
use store::{Change, CommitOutcome, Compare, Listing};
use types::{NetworkRef, NodeName, Placement};

use super::ask_error::AskError;
use super::cluster_pods::pods_of_other_nodes;
use super::command::TRIES;
use super::join::Registry;

/// Objects in one transaction. etcd allows 128 operations.
const STEPS_PER_COMMIT: usize = 100;

/// A change that a client requests.
#[derive(Debug)]
pub(crate) struct ObjectChanges {
    /// The objects that are in force on this node. Values of the store that can be read have precedence.
    pub(crate) known: Catalog,
    pub(crate) requested: RequestedObjects,
    /// The placements of this node's pods, which need their objects.
    pub(crate) pods: Vec<Placement>,
    pub(crate) dry_run: bool,
}

#[derive(Debug, Default)]
pub(crate) struct RequestedObjects {
    /// Objects to create or replace.
    pub(crate) documents: Vec<Document>,
    /// Those of the documents that must not exist.
    pub(crate) created: Vec<ObjectId>,
    /// Changes of rules, computed from the policies in the store.
    pub(crate) edits: Vec<PolicyEdit>,
    /// Objects to remove afterwards.
    pub(crate) removed: Vec<ObjectId>,
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

/// The steps of a change.
#[derive(Debug)]
pub(crate) struct ChangedObjects {
    pub(crate) steps: ObjectSteps,
    /// The revision of the last write. None: nothing was written.
    pub(crate) revision: Option<u64>,
}

pub(crate) async fn change_objects(
    registry: &Registry,
    own: &NodeName,
    changes: &ObjectChanges,
) -> Result<ChangedObjects, AskError> {
    let mut revision = None;
    let mut done: Vec<ObjectStep> = Vec::new();
    for _ in 0..TRIES {
        let listing = registry.store.list(&registry.layout.root()).await?;
        let ListedObjects { catalog, counter, guard } = listed(registry, changes.known.clone(), &listing)?;
        let others = pods_of_other_nodes(&registry.layout, own, listing.entries.iter());
        let others = others.into_iter().map(|pod| pod.placement);
        let pods: Vec<Placement> = changes.pods.iter().cloned().chain(others).collect();
        let steps = plan(registry, catalog, (&changes.requested, &pods), &done)?;
        refuse_used_subnets(registry, &listing, &changes.requested)?;
        let views = |steps: &[ObjectWrite]| steps.iter().map(|step| step.view.clone()).collect::<Vec<_>>();
        if changes.dry_run {
            let steps = ObjectSteps { steps: views(&steps), dry_run: true };
            return Ok(ChangedObjects { steps, revision });
        }
        let written = write(registry, &steps, (counter, guard), &mut revision).await?;
        done.extend(views(&steps).into_iter().take(written).filter(|step| step.action != ObjectAction::Keep));
        if written == steps.len() {
            let kept = views(&steps).into_iter().filter(|step| {
                step.action == ObjectAction::Keep && !done.iter().any(|earlier| earlier.object == step.object)
            });
            let steps = done.iter().cloned().chain(kept).collect();
            return Ok(ChangedObjects { steps: ObjectSteps { steps, dry_run: false }, revision });
        }
    }
    Err(AskError::ObjectsContended)
}

fn listed(registry: &Registry, known: Catalog, listing: &Listing) -> Result<ListedObjects, AskError> {
    let (mut catalog, mut counter, mut guard) = (known, RuleCounter::default(), None);
    let objects = listing.entries.iter().filter_map(|entry| registry.layout.object_of(&entry.key));
    catalog.retain(&objects.collect());
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

/// A node keeps a block of a removed network while its pods use it. No other network may get these addresses.
fn refuse_used_subnets(
    registry: &Registry,
    listing: &Listing,
    requested: &RequestedObjects,
) -> Result<(), AskError> {
    // The plan has checked the documents.
    let read = |document: &Document| match ClusterObject::from_document(document.body.clone()).ok()? {
        ClusterObject::Network(network) => Some(network),
        ClusterObject::Tenant(_)
        | ClusterObject::Profile(_)
        | ClusterObject::Group(_)
        | ClusterObject::Policy(_)
        | ClusterObject::Share(_) => None,
    };
    let wanted: Vec<TenantNetwork> = requested.documents.iter().filter_map(read).collect();
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

/// `done` are steps of earlier attempts.
fn plan(
    registry: &Registry,
    mut catalog: Catalog,
    (requested, pods): (&RequestedObjects, &[Placement]),
    done: &[ObjectStep],
) -> Result<Vec<ObjectWrite>, AskError> {
    let layout = &registry.layout;
    let is_new = |id: &&ObjectId| !done.iter().any(|step| step.object == object_name(id));
    let created: Vec<ObjectId> = requested.created.iter().filter(is_new).cloned().collect();
    catalog.must_be_new(&created).map_err(|errors| refused(&errors))?;
    let edited: Result<Vec<Document>, _> = requested.edits.iter().map(|edit| catalog.edited(edit)).collect();
    let edited = edited.map_err(|error| refused(&[error]))?;
    let documents = requested.documents.iter().cloned().chain(edited).collect();
    let applied = catalog.plan(documents, pods).map_err(|errors| refused(&errors))?;
    let mut steps = Vec::new();
    for ApplyStep { action, record, counter } in applied {
        let id = record.object.id();
        let new_rules = new_rules(&catalog, &record.object);
        catalog.set(record.object.clone(), pods).map_err(|error| refused(&[error]))?;
        let put = Change::Put { key: layout.object(&id), value: record.encode(), lease: None };
        let (action, change) = match action {
            StepAction::Create => (ObjectAction::Create, Some(put)),
            StepAction::Update => (ObjectAction::Update, Some(put)),
            StepAction::Keep => (ObjectAction::Keep, None),
        };
        let view = ObjectStep { action, object: object_name(&id), new_rules };
        steps.push(ObjectWrite { view, change, counter });
    }
    let removed = catalog.removal_order(&requested.removed, pods).map_err(|errors| refused(&errors))?;
    for id in removed {
        let view =
            ObjectStep { action: ObjectAction::Remove, object: object_name(&id), new_rules: Vec::new() };
        steps.push(ObjectWrite { view, change: Some(Change::Delete(layout.object(&id))), counter: None });
    }
    Ok(steps)
}

/// The ids of rules that the policy did not have before.
fn new_rules(before: &Catalog, object: &ClusterObject) -> Vec<u32> {
    let ClusterObject::Policy(policy) = object else { return Vec::new() };
    let known = before.policies().find(|known| known.tenant == policy.tenant && known.name == policy.name);
    let is_known = |id: u32| known.is_some_and(|known| known.rules.iter().any(|rule| rule.id == id));
    policy.rules.iter().map(|rule| rule.id).filter(|id| !is_known(*id)).collect()
}

/// Returns how many steps were written before another writer changed an object. `last` is the revision of the last write.
async fn write(
    registry: &Registry,
    steps: &[ObjectWrite],
    (mut counter, mut guard): (RuleCounter, Option<u64>),
    last: &mut Option<u64>,
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
                CommitOutcome::Done { revision } => {
                    guard = Some(revision);
                    *last = Some(revision);
                }
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

pub(crate) fn object_name(id: &ObjectId) -> ObjectName {
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
    if is(|cause| matches!(cause, ObjectErrorCause::NotFound { .. } | ObjectErrorCause::NoRule { .. })) {
        return AskError::ObjectMissing(reasons);
    }
    let conflicts = |cause: &ObjectErrorCause| {
        matches!(
            cause,
            ObjectErrorCause::InUse { .. }
                | ObjectErrorCause::Permanent
                | ObjectErrorCause::Newer(_)
                | ObjectErrorCause::Unreadable(_)
                | ObjectErrorCause::Exists
                | ObjectErrorCause::SameRule { .. }
        )
    };
    if is(conflicts) { AskError::ObjectConflict(reasons) } else { AskError::ObjectInvalid(reasons) }
}
