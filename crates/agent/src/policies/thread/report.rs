//! Conditions and metrics of the policy thread.

use model::ObjectError;
use policy::{PolicyProblem, ProblemReason};
use tracing::info;
use types::{Code, Finding};

use super::PolicyThread;
use crate::conditions::Source;
use crate::metrics::PolicyUsage;
use crate::policies::enforced::Enforced;
use crate::policies::objects::restrict_flows;

impl PolicyThread {
    pub(super) fn repaired(&self, changes: &[String]) {
        if changes.is_empty() {
            return;
        }
        let message = format!("table podwire-policy: {}", changes.join(", "));
        info!(kind = "policy", "repaired: {message}");
        self.parts.metrics.repaired("policy", 1);
        self.parts.agent_status.repaired(1, &[message]);
    }

    pub(super) fn count(&mut self) {
        let Some(enforced) = &self.enforced else {
            return self.parts.metrics.count_policies(&PolicyUsage::default());
        };
        let counts = enforced.counts();
        let usage = PolicyUsage {
            classes: counts.classes,
            elements: counts.total(),
            pods: enforced.pods.iter().count(),
            profiles: counts.profiles,
            // The counters of a missing table are not known.
            denied: self.kernel.denied().unwrap_or_default(),
        };
        self.parts.metrics.count_policies(&usage);
    }

    pub(super) fn report(&self) {
        let restricts = self.objects.as_ref().is_some_and(|objects| restrict_flows(objects));
        let not_enforced = |reason: &str| {
            Finding::new(
                Code::PolicyNotEnforced,
                "policies",
                format_args!("policies are not enforced: {reason}"),
            )
        };
        let obstacle = self.obstacle().filter(|_| restricts).map(not_enforced);
        let failure = self.failure.as_deref().map(not_enforced);
        let problems =
            self.enforced.iter().flat_map(Enforced::problems).map(|problem| problem_finding(&problem));
        let references =
            self.objects.iter().flat_map(|objects| objects.problems()).map(|error| reference_finding(&error));
        let unlogged = (self.enforced.is_some() && !self.kernel.can_log()).then(|| {
            let message = "denied packets are counted, but the kernel cannot log them: it lacks nft_log or nfnetlink_log";
            Finding::new(Code::DeniedLogFailed, "policies", message)
        });
        let findings = obstacle
            .into_iter()
            .chain(failure)
            .chain(unlogged)
            .chain(self.nft.finding())
            .chain(problems)
            .chain(references);
        self.parts.agent_status.set(Source::Policies, findings.collect());
    }
}

fn problem_finding(problem: &PolicyProblem) -> Finding {
    let code = match problem.reason {
        ProblemReason::TooLarge { .. } | ProblemReason::TooManyTenants => Code::PolicyTooLarge,
        ProblemReason::Missing | ProblemReason::DomainNames { .. } | ProblemReason::UnknownPeer { .. } => {
            Code::PolicyInvalid
        }
    };
    Finding::new(code, &problem.object, &problem.reason)
}

/// An object that does not fit to the others, for example because another program wrote it to the store.
fn reference_finding(error: &ObjectError) -> Finding {
    let object = error.object.as_ref().map_or_else(|| "policies".to_owned(), ToString::to_string);
    Finding::new(Code::PolicyInvalid, object, &error.cause)
}
