//! The result of a check.

use api::DoctorCheck;
pub(super) use api::Verdict;
use types::{Code, Finding, Severity};

use crate::commands::lab::FixableCondition;
use crate::print;

#[derive(Debug, Clone)]
pub(super) struct Check {
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    /// Code of the condition. None if the check found no problem.
    pub(super) code: Option<String>,
    pub(super) severity: Option<Severity>,
    pub(super) object: Option<String>,
    pub(super) message: String,
    /// A shell command.
    pub(super) fix: Option<String>,
}

pub(super) fn word(verdict: Verdict) -> String {
    match verdict {
        Verdict::Ok => print::good("ok"),
        Verdict::Problem => print::bad("PROBLEM"),
        Verdict::Unknown => print::degraded("unknown"),
    }
}

impl From<Check> for DoctorCheck {
    fn from(check: Check) -> Self {
        let Check { check, verdict, code, severity, object, message, fix } = check;
        Self { check: check.to_owned(), verdict, code, severity, object, message, fix }
    }
}

impl<'a> From<&'a mut Check> for FixableCondition<'a> {
    fn from(check: &'a mut Check) -> Self {
        let Check { code, object, message, fix, .. } = check;
        Self { code: code.clone(), object: object.as_deref(), message, fix }
    }
}

impl Check {
    pub(super) fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self { verdict: Verdict::Ok, ..Self::unknown(check, message) }
    }

    pub(super) fn unknown(check: &'static str, message: impl Into<String>) -> Self {
        let (message, verdict) = (types::cause(message.into()), Verdict::Unknown);
        Self { check, verdict, code: None, severity: None, object: None, message, fix: None }
    }

    pub(super) fn problem(check: &'static str, found: Finding) -> Self {
        let Finding { code, severity, object, message, fix } = found;
        let (code, object, fix) = (Some(code.to_string()), Some(object), fix.map(|fix| fix.to_string()));
        Self { check, verdict: Verdict::Problem, code, severity: Some(severity), object, message, fix }
    }

    /// A problem that the agent reports.
    pub(super) fn condition(check: &'static str, found: &api::Condition) -> Self {
        Self {
            check,
            verdict: Verdict::Problem,
            code: Some(found.code.to_string()),
            severity: Some(found.severity),
            object: Some(found.object.clone()),
            message: found.message.clone(),
            fix: found.fix.clone(),
        }
    }

    /// Code, object and message. The object is omitted if the first clause of the message names it.
    pub(super) fn sentence(&self) -> String {
        let Self { code, object, message, .. } = self;
        let Some(code) = code else { return message.clone() };
        let name = object.as_deref().map(|object| object.split_once(' ').map_or(object, |(_, name)| name));
        match (object, name) {
            (Some(object), Some(name))
                if !message.split(';').next().is_some_and(|first| first.contains(name)) =>
            {
                format!("{code} {object}: {message}")
            }
            (_, _) => format!("{code}: {message}"),
        }
    }

    /// General advice for the code, if there is no fix.
    pub(super) fn advice(&self) -> Option<&'static str> {
        let code = self.code.as_deref().filter(|_| self.fix.is_none())?;
        Code::ALL.iter().find(|known| known.as_str() == code).map(|known| known.advice())
    }

    /// Whether this check reports the condition.
    pub(super) fn reports(&self, found: &api::Condition) -> bool {
        self.code == Some(found.code.to_string()) && self.object.as_ref() == Some(&found.object)
    }

    #[cfg(test)]
    pub(super) fn has(&self, code: Code) -> bool {
        self.code.as_deref() == Some(code.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a1_a_problem_without_a_fix_has_the_advice_of_its_code() {
        let moved = Finding::new(Code::PodLinkMoved, "attachment podwire/a/eth0", "it was moved");
        assert_eq!(Check::problem("conditions", moved.clone()).advice(), Some(Code::PodLinkMoved.advice()));
        assert_eq!(Check::problem("conditions", moved.fix("ip link set")).advice(), None);
        assert_eq!(Check::ok("conditions", "no further problems").advice(), None);
    }

    #[test]
    fn a_problem_names_its_object_once() {
        let of = |code, object: &str, message: &str| {
            Check::problem("conditions", Finding::new(code, object, message)).sentence()
        };
        assert_eq!(
            of(Code::PodMacChanged, "attachment podwire/a/eth0", "eth0 has another MAC"),
            "PodMacChanged attachment podwire/a/eth0: eth0 has another MAC"
        );
        assert_eq!(
            of(Code::PeerUnreachable, "node n2", "node n2 does not answer"),
            "PeerUnreachable: node n2 does not answer"
        );
        assert_eq!(
            of(Code::PeerAway, "node n2", "its lease ended; 'podwire node rm n2' removes it"),
            "PeerAway node n2: its lease ended; 'podwire node rm n2' removes it"
        );
        assert_eq!(Check::ok("agent", "is ready").sentence(), "is ready");
    }
}
