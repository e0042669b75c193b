//! Ids of rules. They never change while a rule exists, and are never used again, because equal priorities are ordered by id and
//! logs name rules by id.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Catalog;
use crate::document::ObjectId;
use crate::fields::FieldError;
use crate::object::Object;
use crate::objects::{GroupPolicy, GroupRule};

/// The next id that no rule ever had. It is written to the store in the transaction that writes the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RuleCounter {
    pub next: u32,
}

impl Default for RuleCounter {
    fn default() -> Self {
        Self { next: 1 }
    }
}

impl Object for RuleCounter {
    const KIND: &'static str = "rule-counter";
    const SCHEMA: u32 = 1;
    const OLDEST_SCHEMA: u32 = 1;
}

impl Catalog {
    /// Gives ids to rules without one: that of the same rule in the previous version, or a new one.
    pub(super) fn with_rule_ids(
        &self,
        mut policy: GroupPolicy,
    ) -> Result<(GroupPolicy, RuleCounter), FieldError> {
        let id_of = |policy: &GroupPolicy| ObjectId::policy(&policy.tenant, &policy.name);
        let id = id_of(&policy);
        let mut taken: BTreeMap<u32, ObjectId> = BTreeMap::new();
        let mut previous: Vec<GroupRule> = Vec::new();
        for known in self.policies() {
            if id_of(known) == id {
                previous.clone_from(&known.rules);
            } else {
                taken.extend(known.rules.iter().map(|rule| (rule.id, id_of(known))));
            }
        }
        let assigned = policy.rules.iter().enumerate().filter(|(_, rule)| rule.id != GroupRule::UNASSIGNED);
        for (i, rule) in assigned {
            if let Some(owner) = taken.insert(rule.id, id.clone()).filter(|owner| *owner != id) {
                let reason =
                    format!("{} is the id of a rule of {owner}; remove the id to get a new one", rule.id);
                return Err(FieldError { field: format!("spec.rules[{i}].id"), reason });
            }
        }
        let ids = taken.keys().copied().chain(previous.iter().map(|rule| rule.id));
        let mut next = self.counter.next.max(ids.max().unwrap_or_default().saturating_add(1));
        let unassigned =
            policy.rules.iter_mut().enumerate().filter(|(_, rule)| rule.id == GroupRule::UNASSIGNED);
        for (i, rule) in unassigned {
            let is_same =
                |known: &&GroupRule| GroupRule { id: GroupRule::UNASSIGNED, ..(*known).clone() } == *rule;
            let same = previous.iter().filter(is_same).find(|known| !taken.contains_key(&known.id));
            rule.id = match same {
                Some(known) => known.id,
                None if next == u32::MAX => {
                    return Err(FieldError::new(format!("spec.rules[{i}].id"), "no id is left"));
                }
                None => {
                    next += 1;
                    next - 1
                }
            };
            taken.insert(rule.id, id.clone());
        }
        Ok((policy, RuleCounter { next }))
    }

    /// The counter that prevents that an id of these rules is used again.
    pub fn rule_counter(&self) -> RuleCounter {
        let ids = self.policies().flat_map(|policy| &policy.rules).map(|rule| rule.id);
        RuleCounter { next: self.counter.next.max(ids.max().unwrap_or_default().saturating_add(1)) }
    }

    /// Makes sure that no rule gets an id that one of these rules has.
    pub(super) fn reserve<'a>(&mut self, rules: impl Iterator<Item = &'a GroupRule>) {
        let highest = rules.map(|rule| rule.id).max().unwrap_or_default();
        self.counter.next = self.counter.next.max(highest.saturating_add(1));
    }
}
