//! Objects of the cluster: tenants, networks, groups, policies, profiles and shares, as documents.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Documents in the order in which they can be applied.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ObjectList {
    pub items: Vec<Value>,
}

/// A change of several objects. All of it is checked before the first change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectChange {
    /// Objects to create or replace.
    #[serde(default)]
    pub apply: Vec<ObjectDocument>,
    /// Objects to remove.
    #[serde(default)]
    pub remove: Vec<ObjectName>,
    /// Only check.
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ObjectDocument {
    /// File and line, for messages. May be empty.
    #[serde(default)]
    pub origin: String,
    pub body: Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ObjectName {
    /// As in documents: `Tenant`.
    pub kind: String,
    /// Empty for a tenant.
    #[serde(default)]
    pub tenant: String,
    pub name: String,
}

/// The steps of a change, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ObjectSteps {
    pub steps: Vec<ObjectStep>,
    /// Nothing was changed.
    pub dry_run: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ObjectStep {
    pub action: ObjectAction,
    #[serde(flatten)]
    pub object: ObjectName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ObjectAction {
    Create,
    Update,
    /// The object already is as requested.
    Keep,
    Remove,
    /// An action that only newer agents have.
    #[serde(other)]
    Unknown,
}
