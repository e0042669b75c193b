use types::Placement;

use super::{ApplyStep, Catalog, ObjectError, ObjectErrorCause, RuleCounter, StepAction};
use crate::document::{ClusterObject, ObjectId, ObjectRecord};
use crate::fields::FieldError;
use crate::object::MAX_SIZE;

impl Catalog {
    /// Adds or replaces an object. `pods` has one placement per pod of the cluster. On success the catalog contains the object,
    /// and the caller writes the returned step to the store.
    pub fn set(&mut self, object: ClusterObject, pods: &[Placement]) -> Result<ApplyStep, ObjectError> {
        let step = self.prepare(object, pods)?;
        self.check(&step.record.object)
            .map_err(|error| ObjectError::field(&step.record.object.id(), error))?;
        self.accept(&step);
        Ok(step)
    }

    /// Removes an object that no other object and no pod needs, also one that cannot be read.
    pub fn remove(&mut self, id: &ObjectId, pods: &[Placement]) -> Result<(), ObjectError> {
        if id.is_default() {
            return Err(ObjectError::new(id, ObjectErrorCause::Permanent));
        }
        self.refuse_newer(id)?;
        self.in_use(id, pods)?;
        let was_invalid = self.invalid.remove(id).is_some();
        if self.records.remove(id).is_none() && !was_invalid {
            return Err(self.missing(id));
        }
        Ok(())
    }

    /// All steps of [`Self::set`] except the checks against other objects.
    pub(super) fn prepare(
        &self,
        object: ClusterObject,
        pods: &[Placement],
    ) -> Result<ApplyStep, ObjectError> {
        let id = object.id();
        let field = |error| ObjectError::field(&id, error);
        self.refuse_newer(&id)?;
        let object = object.checked().map_err(field)?;
        self.check_pods(&object, pods).map_err(field)?;
        let (object, counter) = match object {
            ClusterObject::Policy(policy) => {
                let (policy, counter) = self.with_rule_ids(policy).map_err(field)?;
                (ClusterObject::Policy(policy), Some(counter))
            }
            other => (other, None),
        };
        let previous = self.get(&id);
        let unknown = previous.map(|record| record.unknown.clone()).unwrap_or_default();
        let record = ObjectRecord { object, unknown };
        let size = record.encode().len();
        if size > MAX_SIZE {
            let reason = format!("is too large: {size} bytes in the store; the maximum is {MAX_SIZE}");
            return Err(field(FieldError::new("spec", reason)));
        }
        let is_broken = self.invalid.contains_key(&id);
        let action = match previous {
            Some(known) if *known == record && !is_broken => StepAction::Keep,
            Some(_) => StepAction::Update,
            None => StepAction::Create,
        };
        let counter = counter.filter(|_| action != StepAction::Keep);
        Ok(ApplyStep { action, record, counter })
    }

    pub(super) fn accept(&mut self, step: &ApplyStep) {
        let id = step.record.object.id();
        self.invalid.remove(&id);
        self.counter = self.counter.max(step.counter.unwrap_or(RuleCounter { next: 0 }));
        self.records.insert(id, step.record.clone());
    }

    pub(super) fn refuse_newer(&self, id: &ObjectId) -> Result<(), ObjectError> {
        match self.invalid.get(id) {
            Some(error) if error.is_newer() => {
                Err(ObjectError::new(id, ObjectErrorCause::Newer(error.clone())))
            }
            Some(_) | None => Ok(()),
        }
    }
}
