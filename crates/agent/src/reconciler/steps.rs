//! Steps of a round that may fail separately: rules that could not be applied, and checks that could not be done. Each is a
//! condition until it succeeds.

use std::collections::BTreeMap;
use std::fmt::Display;

use types::{Code, Finding};

use super::Reconciler;
use crate::conditions::Source;

/// The last failure of each object.
#[derive(Debug, Default)]
pub(super) struct FailedSteps(BTreeMap<String, String>);

impl FailedSteps {
    fn note(&mut self, object: &str, failure: Option<String>) -> Vec<Finding> {
        match failure {
            Some(why) => self.0.insert(object.to_owned(), why),
            None => self.0.remove(object),
        };
        self.0.iter().map(|(object, why)| Finding::new(Code::RepairFailed, object, why)).collect()
    }
}

impl Reconciler {
    /// Returns the result of a step that succeeded, and reports one that failed.
    pub(super) fn report_step<T, E: Display>(
        &mut self,
        object: &str,
        operation: &str,
        done: Result<T, E>,
    ) -> Option<T> {
        let failure = done.as_ref().err().map(|error| format!("cannot {operation}: {error}"));
        let findings = self.failed_steps.note(object, failure);
        self.parts.agent_status.set(Source::Steps, findings);
        done.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a9_each_failed_step_is_a_condition_until_it_succeeds() {
        let mut failed = FailedSteps::default();
        failed.note("table podwire-limit-podwire", Some("cannot limit connections: EPERM".to_owned()));
        let both = failed.note("chain clamp", Some("cannot clamp the MSS: EPERM".to_owned()));
        assert_eq!(both.len(), 2);
        let left = failed.note("table podwire-limit-podwire", None);
        let (found, object) = (&left[0], "chain clamp");
        assert_eq!((left.len(), found.code, found.object.as_str()), (1, Code::RepairFailed, object));
        assert_eq!(failed.note("chain clamp", None), []);
    }
}
