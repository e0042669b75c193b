//! Changes of objects in the store: checked together, then written step by step, so that all references are valid after each step.
//!
//! Every transaction also writes the counter of rule ids and compares its revision. So no other writer changed an object since the
//! objects were listed and checked.

use std::collections::BTreeMap;

use api::{ObjectAction, ObjectName, ObjectStep, ObjectSteps};
use model::{
    ApplyStep, Catalog, Document, Object as _, ObjectError, ObjectErrorCause, ObjectId, ObjectKind,
    RuleCounter, StepAction,
};
use store::{Change, CommitOutcome, Compare, Listing};
use types::Placement;

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
    changes: &ObjectChanges,
) -> Result<ObjectSteps, AskError> {
    let mut done: Vec<ObjectStep> = Vec::new();
    for _ in 0..TRIES {
        let listing = registry.store.list(&registry.layout.root()).await?;
        let ListedObjects { catalog, counter, guard } = listed(registry, changes.defaults.clone(), &listing)?;
        let steps = plan(registry, catalog, changes)?;
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
