//! Parts of a round that may fail separately: rules that could not be applied, and checks that could not be done. Each is a
//! condition until it succeeds.

use std::collections::BTreeMap;
use std::fmt::Display;

use types::{Code, Finding};

use super::Reconciler;
use crate::conditions::Source;

/// The last failure of each object.
#[derive(Debug, Default)]
pub(super) struct Rules(BTreeMap<String, String>);

impl Rules {
    fn note(&mut self, object: &str, failure: Option<String>) -> Vec<Finding> {
        match failure {
            Some(why) => self.0.insert(object.to_owned(), why),
            None => self.0.remove(object),
        };
        self.0.iter().map(|(object, why)| Finding::new(Code::RepairFailed, object, why)).collect()
    }
}

impl Reconciler {
    /// Returns the result of a part that succeeded, and reports one that failed.
    pub(super) fn report_rule<T, E: Display>(
        &mut self,
        object: &str,
        operation: &str,
        done: Result<T, E>,
    ) -> Option<T> {
        let failure = done.as_ref().err().map(|error| format!("cannot {operation}: {error}"));
        let findings = self.rules.note(object, failure);
        self.parts.agent_status.set(Source::Rules, findings);
        done.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a9_each_failed_rule_is_a_condition_until_it_is_applied() {
        let mut rules = Rules::default();
        rules.note("table podwire-limit-podwire", Some("cannot limit connections: EPERM".to_owned()));
        let both = rules.note("chain clamp", Some("cannot clamp the MSS: EPERM".to_owned()));
        assert_eq!(both.len(), 2);
        let left = rules.note("table podwire-limit-podwire", None);
        let (found, object) = (&left[0], "chain clamp");
        assert_eq!((left.len(), found.code, found.object.as_str()), (1, Code::RepairFailed, object));
        assert_eq!(rules.note("chain clamp", None), []);
    }
}
