//! The changes that a set of documents needs, checked together before the first one.

use std::collections::BTreeMap;
use std::fmt;

use types::Placement;

use super::check::references;
use super::{Catalog, ObjectError, ObjectErrorCause, RuleCounter};
use crate::document::{ClusterObject, Document, ObjectId, ObjectRecord, described};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepAction {
    Create,
    Update,
    /// The store already contains this version.
    Keep,
}

/// One object to write.
#[derive(Debug, Clone, PartialEq)]
pub struct ApplyStep {
    pub action: StepAction,
    pub record: ObjectRecord,
    /// The new counter, if the object got ids from it. Both are written in one transaction that compares the
    /// counter's revision.
    pub counter: Option<RuleCounter>,
}

impl fmt::Display for ApplyStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            StepAction::Create => "create",
            StepAction::Update => "update",
            StepAction::Keep => "keep",
        };
        write!(f, "{action} {}", self.record.object.id())
    }
}

/// An object and where its document is.
struct ParsedDocument {
    origin: String,
    object: ClusterObject,
}

impl Catalog {
    /// The steps that apply the documents, or all their errors. After every step all references are valid: if objects refer to
    /// each other, the first is created without the reference and updated later.
    pub fn plan(
        &self,
        documents: Vec<Document>,
        pods: &[Placement],
    ) -> Result<Vec<ApplyStep>, Vec<ObjectError>> {
        let (drafts, mut errors) = read(documents);
        let mut state = self.clone();
        for draft in &drafts {
            if let ClusterObject::Policy(policy) = &draft.object {
                state.reserve(policy.rules.iter());
            }
        }
        errors.extend(state.check_result(&drafts, pods));
        if !errors.is_empty() {
            return Err(errors);
        }
        order(state, drafts, pods)
    }

    /// The errors of the catalog that the documents result in.
    fn check_result(&self, drafts: &[ParsedDocument], pods: &[Placement]) -> Vec<ObjectError> {
        let mut result = self.clone();
        let mut errors = Vec::new();
        for draft in drafts {
            match result.prepare(draft.object.clone(), pods) {
                Ok(step) => result.accept(&step),
                Err(error) => {
                    errors.push(ObjectError { origin: draft.origin.clone(), ..error });
                    // So that objects that refer to it have no errors in consequence.
                    result.records.insert(draft.object.id(), draft.object.clone().into());
                }
            }
        }
        for ParsedDocument { origin, object } in drafts {
            if let Err(error) = result.check(object) {
                errors
                    .push(ObjectError { origin: origin.clone(), ..ObjectError::field(&object.id(), error) });
            }
        }
        errors
    }

    /// The object without its references to missing objects. None if it needs all of them, or has none.
    fn without_missing(&self, object: &ClusterObject) -> Option<ClusterObject> {
        let is_missing = |target: &ObjectId| !self.records.contains_key(target);
        if !references(object).iter().any(|reference| is_missing(&reference.target)) {
            return None;
        }
        match object.clone() {
            ClusterObject::Tenant(mut tenant) => {
                tenant.default_network = None;
                Some(ClusterObject::Tenant(tenant))
            }
            ClusterObject::Group(mut group) => {
                let tenant = group.group.tenant.clone();
                group.group.policies.retain(|policy| !is_missing(&ObjectId::policy(&tenant, policy)));
                Some(ClusterObject::Group(group))
            }
            ClusterObject::Network(_)
            | ClusterObject::Profile(_)
            | ClusterObject::Policy(_)
            | ClusterObject::Share(_) => None,
        }
    }
}

/// Sets what can be set until nothing is left.
fn order(
    mut state: Catalog,
    mut pending: Vec<ParsedDocument>,
    pods: &[Placement],
) -> Result<Vec<ApplyStep>, Vec<ObjectError>> {
    let mut steps = Vec::new();
    pending.sort_by_key(|draft| draft.object.id());
    while !pending.is_empty() {
        let before = steps.len();
        let mut errors = Vec::new();
        pending.retain(|draft| match state.set(draft.object.clone(), pods) {
            Ok(step) => {
                steps.push(step);
                false
            }
            Err(error) => {
                let cause = Box::new(ObjectErrorCause::NoOrder(error.cause));
                errors.push(ObjectError { origin: draft.origin.clone(), object: error.object, cause });
                true
            }
        });
        if steps.len() == before {
            let reduced = pending.iter().filter_map(|draft| state.without_missing(&draft.object));
            let mut step = reduced.filter_map(|object| state.clone().set(object, pods).ok());
            let step = step.find(|step| step.action != StepAction::Keep);
            let Some(step) = step else { return Err(errors) };
            state.accept(&step);
            steps.push(step);
        }
    }
    Ok(steps)
}

/// Valid objects, and the errors of all others.
fn read(documents: Vec<Document>) -> (Vec<ParsedDocument>, Vec<ObjectError>) {
    let mut origins: BTreeMap<ObjectId, String> = BTreeMap::new();
    let mut drafts = Vec::new();
    let mut errors = Vec::new();
    for Document { origin, body } in documents {
        let object = described(&body);
        let cause = match ClusterObject::from_document(body) {
            Ok(object) => match origins.get(&object.id()) {
                Some(first) => ObjectErrorCause::Twice { first: first.clone() },
                None => {
                    origins.insert(object.id(), origin.clone());
                    drafts.push(ParsedDocument { origin, object });
                    continue;
                }
            },
            Err(error) => ObjectErrorCause::Field(error),
        };
        errors.push(ObjectError { origin, object, cause: Box::new(cause) });
    }
    (drafts, errors)
}
