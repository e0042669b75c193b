//! Objects of the cluster: tenants, networks, groups, policies, profiles and shares, as documents.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Documents in the order in which they can be applied.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ObjectList {
    pub items: Vec<Value>,
    /// Listed objects that are invalid. Agents before this version do not report them.
    #[serde(default)]
    pub problems: Vec<ObjectProblem>,
}

/// An object in the store that cannot be read, or that does not fit to the other objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ObjectProblem {
    #[serde(flatten)]
    pub object: ObjectName,
    /// Such as `spec.rules[2].priority`. Null if the value is no object at all.
    pub field: Option<String>,
    pub reason: String,
    pub in_force: VersionInForce,
}

/// Which version of an invalid object is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum VersionInForce {
    /// The version in the store, except for the field.
    Stored,
    /// The last version that this agent could read.
    LastValid,
    /// The agent never knew a valid version.
    None,
    /// Only newer agents have it.
    #[serde(other)]
    Unknown,
}

/// One object with everything that concerns it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ObjectDetails {
    /// The document in force. Null if no version could be read.
    pub document: Option<Value>,
    pub problems: Vec<ObjectProblem>,
    /// The objects that refer to it. All objects of a tenant refer to the tenant.
    pub users: Vec<ObjectName>,
    /// Rules in the order in which they are evaluated: of a policy, or of all policies of a group.
    pub rules: Vec<RuleView>,
    /// The pods of all nodes to which it applies.
    pub pods: Vec<ObjectPod>,
    /// Why pods of other nodes are missing. Null if they are listed.
    pub pods_missing: Option<String>,
    /// The blocks of a network. Null for other kinds, and if the blocks are not known.
    pub blocks: Option<Vec<crate::BlockView>>,
}

/// The output of `podwire policy rule ls -o json`, in the order of evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PolicyRules {
    pub rules: Vec<RuleView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuleView {
    pub policy: String,
    pub id: u32,
    /// `in` or `out`.
    pub direction: String,
    pub priority: u8,
    /// `any`, `group:NAME`, `network:NAME` or a CIDR.
    pub peer: String,
    /// `any`, a protocol, or protocol and port: `tcp/5432`.
    pub traffic: String,
    /// `allow` or `deny`.
    pub action: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ObjectPod {
    pub node: String,
    /// Null for pods of other nodes.
    pub container_id: Option<String>,
    /// Null for pods of other nodes.
    pub interface: Option<String>,
    /// `NAMESPACE/NAME`. Null if the runtime passed no pod name.
    pub pod: Option<String>,
    pub addresses: Vec<std::net::IpAddr>,
    pub placement: crate::PlacementView,
}

/// A change of several objects. All of it is checked before the first change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectChange {
    /// Objects to create or replace.
    #[serde(default)]
    pub apply: Vec<ObjectDocument>,
    /// Objects to create, which must not exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub create: Vec<ObjectDocument>,
    /// Changes of single rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleChange>,
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

/// A change of the rules of one policy. Rules that another writer adds or removes meanwhile stay as they are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RuleChange {
    pub tenant: String,
    pub policy: String,
    /// Rules as in a document, without an id.
    #[serde(default)]
    pub add: Vec<Value>,
    /// Ids of rules.
    #[serde(default)]
    pub remove: Vec<u32>,
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
    /// The ids of a policy's rules that did not exist before.
    #[serde(default)]
    pub new_rules: Vec<u32>,
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
