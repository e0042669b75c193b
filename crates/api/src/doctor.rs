//! What `podwire doctor -o json` prints.

use serde::{Deserialize, Serialize};
use types::Severity;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DoctorReport {
    /// No check found a problem. Some may be unknown.
    pub ok: bool,
    pub checks: Vec<DoctorCheck>,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DoctorCheck {
    pub check: String,
    pub verdict: Verdict,
    /// Of the condition; null if there is none.
    pub code: Option<String>,
    /// Of the condition: `notReady` or `degraded`; null if there is none.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub severity: Option<Severity>,
    /// What the condition is about; null if there is none.
    pub object: Option<String>,
    pub message: String,
    /// The command that helps, ready to paste; null if there is none.
    pub fix: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    Ok,
    Problem,
    /// It could not be checked from here; that says nothing about the node.
    Unknown,
}
