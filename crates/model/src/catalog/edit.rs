//! Changes of single rules. They are computed from the current version of a policy, so that a rule that another writer adds
//! meanwhile stays.

use serde_json::Value;

use super::{Catalog, ObjectError, ObjectErrorCause};
use crate::document::{ClusterObject, Document, ObjectId};
use crate::fields::FieldError;
use crate::objects::{GroupPolicy, GroupRule};

#[derive(Debug, Clone, PartialEq)]
pub struct PolicyEdit {
    pub policy: ObjectId,
    /// Rules without an id, as in a document.
    pub add: Vec<Value>,
    /// Ids of rules.
    pub remove: Vec<u32>,
}

impl Catalog {
    /// The document of the changed policy.
    pub fn edited(&self, edit: &PolicyEdit) -> Result<Document, ObjectError> {
        let PolicyEdit { policy: id, add, remove } = edit;
        let refused = |cause| ObjectError::new(id, cause);
        if let Some(error) = self.invalid.get(id) {
            return Err(refused(ObjectErrorCause::Unreadable(error.clone())));
        }
        let Some(ClusterObject::Policy(policy)) = self.get(id).map(|record| &record.object) else {
            return Err(self.missing(id));
        };
        let mut kept = policy.clone();
        for rule in remove {
            let before = kept.rules.len();
            kept.rules.retain(|known| known.id != *rule);
            if kept.rules.len() == before {
                let rules = policy.rules.iter().map(|rule| rule.id).collect();
                return Err(refused(ObjectErrorCause::NoRule { rule: *rule, rules }));
            }
        }
        let mut body = ClusterObject::Policy(kept.clone()).to_document();
        let rules = kept.rules.len();
        let added = add.iter().map(|rule| match rule.get("id") {
            None => Ok(rule.clone()),
            Some(_) => Err(refused(ObjectErrorCause::Field(FieldError::new(
                "id",
                "the store assigns the id of a new rule; remove the field",
            )))),
        });
        let added = added.collect::<Result<Vec<Value>, ObjectError>>()?;
        if !added.is_empty() {
            let mut all = body["spec"]["rules"].as_array().cloned().unwrap_or_default();
            all.extend(added);
            body["spec"]["rules"] = all.into();
        }
        self.refuse_equal_rules(&kept, body.clone(), rules).map_err(|error| *error)?;
        Ok(Document { origin: String::new(), body })
    }

    /// An equal rule would change nothing, and its removal neither. `first` is the position of the first new rule.
    fn refuse_equal_rules(
        &self,
        kept: &GroupPolicy,
        body: Value,
        first: usize,
    ) -> Result<(), Box<ObjectError>> {
        let id = ObjectId::policy(&kept.tenant, &kept.name);
        let changed =
            ClusterObject::from_document(body).map_err(|error| Box::new(ObjectError::field(&id, error)))?;
        let ClusterObject::Policy(changed) = changed else { return Ok(()) };
        let is_equal = |known: &&GroupRule, new: &GroupRule| {
            GroupRule { id: GroupRule::UNASSIGNED, ..(*known).clone() } == *new
        };
        let found =
            changed.rules.iter().skip(first).find_map(|new| kept.rules.iter().find(|it| is_equal(it, new)));
        match found {
            Some(known) => {
                Err(Box::new(ObjectError::new(&id, ObjectErrorCause::SameRule { rule: known.id })))
            }
            None => Ok(()),
        }
    }

    /// Refuses objects that exist, also those that cannot be read.
    pub fn must_be_new(&self, created: &[ObjectId]) -> Result<(), Vec<ObjectError>> {
        let exists = |id: &&ObjectId| self.records.contains_key(id) || self.invalid.contains_key(id);
        let known = created.iter().filter(exists);
        let errors: Vec<ObjectError> =
            known.map(|id| ObjectError::new(id, ObjectErrorCause::Exists)).collect();
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}
