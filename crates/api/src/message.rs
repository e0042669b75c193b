//! A call of the plugin, as it is passed to the agent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use types::RequestId;

/// The runtime's input to the plugin, unchanged. The agent parses it like the plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CniCall {
    pub request_id: RequestId,
    /// The `CNI_*` variables.
    pub env: BTreeMap<String, String>,
    /// Stdin.
    pub config: String,
}

/// The output of the plugin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CniAnswer {
    /// None for commands without output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}

/// The answer of `/v1/version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VersionAnswer {
    pub version: String,
    /// The version of the API.
    pub api: u32,
    pub cni_versions: Vec<String>,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ErrorAnswer {
    pub error: String,
}
