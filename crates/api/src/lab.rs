//! What `podwire lab ls -o json`, `podwire lab status -o json` and `podwire lab test -o json` print.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LabList {
    pub labs: Vec<LabEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LabEntry {
    pub name: String,
    /// Number of nodes; null if there is no readable state file.
    pub nodes: Option<usize>,
    pub state: LabEntryState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum LabEntryState {
    Up,
    /// `podwire lab up` is running or was killed.
    Unfinished,
    /// The host was booted since the lab was created.
    Stale,
    /// Namespaces of the lab exist, but its directory does not.
    Orphaned,
    /// The state file is missing or damaged.
    Unreadable,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LabStatus {
    pub name: String,
    pub nodes: Vec<LabNode>,
    /// Empty with the embedded store.
    pub etcd: Vec<LabMember>,
    pub pods: Vec<LabPod>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LabNode {
    pub name: String,
    /// Counted from 1.
    pub subnet: usize,
    pub addresses: Vec<IpAddr>,
    pub link: LabLink,
    pub agent: LabAgent,
    /// Of the agent; null if it does not run.
    pub pid: Option<u32>,
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub blocks: Vec<IpNet>,
    pub namespace: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum LabLink {
    Up,
    /// `podwire lab cut`.
    Cut,
    /// `podwire lab kill node`.
    NoPower,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum LabAgent {
    Ready,
    NotReady,
    NotRunning,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LabMember {
    pub name: String,
    pub endpoint: String,
    pub state: LabMemberState,
    /// Null if it does not run.
    pub pid: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum LabMemberState {
    Leader,
    Healthy,
    NotHealthy,
    NotRunning,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LabPod {
    pub name: String,
    pub node: String,
    pub addresses: Vec<IpAddr>,
    pub namespace: String,
}

/// Every pod to every other pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LabTest {
    /// Every path is reached in every family, and no node is killed.
    pub ok: bool,
    pub paths: Vec<LabPath>,
    /// Their pods are gone, and have no path.
    pub killed_nodes: Vec<LabKilledNode>,
    pub duration_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LabKilledNode {
    pub name: String,
    pub pods: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LabPath {
    pub from: String,
    pub to: String,
    pub transport: LabTransport,
    pub ipv4: LabReach,
    pub ipv6: LabReach,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum LabTransport {
    /// Both pods are on one node.
    Local,
    Direct,
    Vxlan,
    /// No route of Podwire leads there.
    None,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LabReach {
    Reached {
        duration_us: u64,
    },
    /// The packet arrived from this address instead of the pod's own.
    Rewritten {
        source: IpAddr,
    },
    Unreached {
        /// Null: no answer, and no error.
        reason: Option<String>,
    },
    /// The pods do not both have an address of the family.
    NotUsed,
}
