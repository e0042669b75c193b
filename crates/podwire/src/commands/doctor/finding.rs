use serde::Serialize;

/// What one look found.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    /// What was looked at.
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    pub(super) what: String,
    /// What helps, ready to paste.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    Problem,
    /// It could not be looked at from here; that says nothing about the node.
    Unknown,
}

impl Verdict {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Problem => "PROBLEM",
            Self::Unknown => "unknown",
        }
    }
}

impl Finding {
    pub(super) fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, what: what.into(), command: None }
    }

    pub(super) fn problem(check: &'static str, what: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Problem, what: what.into(), command: None }
    }

    pub(super) fn unknown(check: &'static str, what: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Unknown, what: what.into(), command: None }
    }

    pub(super) fn helps(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), ..self }
    }
}
