//! The output of `podwire doctor -o json`.

use serde::{Deserialize, Serialize};
use types::Severity;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DoctorReport {
    /// No check found a problem. Some checks may be unknown.
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
    /// The code of the condition. Null if there is none.
    pub code: Option<String>,
    /// The severity of the condition: `notReady` or `degraded`. Null if there is none.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub severity: Option<Severity>,
    /// The object of the condition. Null if there is none.
    pub object: Option<String>,
    pub message: String,
    /// A command that fixes the cause. Null if there is none.
    pub fix: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    Ok,
    Problem,
    /// The check could not run here. This says nothing about the node.
    Unknown,
}
