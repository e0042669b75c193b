//! Output of `podwire policy test`.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PolicyTestAnswer {
    pub cases: Vec<PolicyCaseResult>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PolicyCaseResult {
    /// File and line of the document, and the number of the case there.
    pub origin: String,
    pub from: String,
    pub to: String,
    /// For example `tcp/80`.
    pub traffic: String,
    /// `allow` or `deny`.
    pub expected: String,
    /// `allow` or `deny`.
    pub verdict: String,
    /// Why the verdict is not the expected one. Null if it is.
    pub explanation: Option<String>,
}
