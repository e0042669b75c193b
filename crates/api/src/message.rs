//! A run of the plugin, as it is passed to the agent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use types::RequestId;

/// What the runtime gave the plugin, unchanged: the agent parses it as the plugin would.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CniCall {
    pub request_id: RequestId,
    /// The `CNI_*` variables.
    pub env: BTreeMap<String, String>,
    /// Stdin.
    pub config: String,
}

/// What the plugin prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CniAnswer {
    /// None for the verbs that print nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}

/// The answer of `/v1/version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VersionAnswer {
    pub version: String,
    /// Of the API.
    pub api: u32,
    pub cni_versions: Vec<String>,
}

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ErrorAnswer {
    pub error: String,
}
