//! Conditions as the agent reports them.

use std::fmt;

use serde::{Deserialize, Serialize};
use types::condition::summary;
use types::{Code, Finding, Severity};

use crate::Timestamp;

/// A [`Finding`] with its start time. Code and object identify it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub code: ConditionCode,
    /// `notReady` or `degraded`.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub severity: Severity,
    pub object: String,
    /// When it started. Null if no agent observes the node.
    pub since: Option<Timestamp>,
    pub message: String,
    /// A command that fixes the cause. Null if there is none.
    pub fix: Option<String>,
}

impl Condition {
    pub fn new(finding: Finding, since: impl Into<Option<Timestamp>>) -> Self {
        let since = since.into();
        let Finding { code, severity, object, message, fix } = finding;
        let fix = fix.map(|fix| fix.to_string());
        Self { code: ConditionCode::Known(code), severity, object, since, message, fix }
    }

    pub fn prevents_ready(&self) -> bool {
        self.severity == Severity::NotReady
    }

    /// Code and fix in one line, for the details of a CNI error.
    pub fn summary(&self) -> String {
        summary(&self.code, self.fix.as_deref())
    }
}

/// A code, or the name of a code that only a newer agent knows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ConditionCode {
    Known(Code),
    Unknown(String),
}

impl ConditionCode {
    /// General advice, for a condition without a fix.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::Known(code) => Some(code.advice()),
            Self::Unknown(_) => None,
        }
    }
}

impl fmt::Display for ConditionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Known(code) => code.as_str(),
            Self::Unknown(name) => name,
        })
    }
}

impl PartialEq<Code> for ConditionCode {
    fn eq(&self, other: &Code) -> bool {
        matches!(self, Self::Known(code) if code == other)
    }
}

/// The answer of `/v1/ready`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Readiness {
    pub ready: bool,
    /// The conditions that prevent readiness, the most important one first.
    pub conditions: Vec<Condition>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a1_a_condition_of_a_newer_agent_can_be_read() {
        let text = r#"{"code":"NewCode","severity":"severe","object":"node n1","since":"2026-11-15T21:13:04Z",
    "message":"a message","phase":"new field"}"#;
        let read: Condition = serde_json::from_str(text).unwrap();
        assert_eq!(read.code, ConditionCode::Unknown("NewCode".to_owned()));
        assert_eq!((read.severity, read.fix), (Severity::Degraded, None));
        assert_ne!(read.code, Code::NftMissing);
    }

    #[test]
    fn a1_a_condition_has_the_documented_json_form() {
        let finding = Finding::new(Code::NftMissing, "program nft", "it is not installed");
        let condition = Condition::new(finding.fix("apt install nftables"), Timestamp(1_763_241_184));
        let text = serde_json::to_string(&condition).unwrap();
        let expected = r#"{"code":"NftMissing","severity":"notReady","object":"program nft","since":"2025-11-15T21:13:04Z","message":"it is not installed","fix":"apt install nftables"}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Condition>(&text).unwrap(), condition);
        assert_eq!(condition.summary(), "NftMissing: apt install nftables");
    }
}
