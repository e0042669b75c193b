//! What `podwire doctor -o json` prints: a list of these.

use serde::{Deserialize, Serialize};

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DoctorCheck {
    pub check: String,
    pub verdict: Verdict,
    /// Of the condition; null if there is none.
    pub code: Option<String>,
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
