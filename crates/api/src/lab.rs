//! The output of `podwire lab ls -o json`, `podwire lab status -o json` and `podwire lab test -o json`.

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
    /// The number of the subnet, starting with 1.
    pub subnet: usize,
    pub addresses: Vec<IpAddr>,
    pub link: LabLink,
    pub agent: LabAgent,
    /// The process of the agent. Null if it is not running.
    pub pid: Option<u32>,
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub blocks: Vec<IpNet>,
    /// Codes of the conditions that the agent reports.
    pub conditions: Vec<String>,
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
    /// The process runs and does not answer.
    NotAnswering,
    NotRunning,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LabMember {
    pub name: String,
    pub endpoint: String,
    pub state: LabMemberState,
    /// Null if it is not running.
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

/// The result of pings from every pod to every other pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LabTest {
    /// All paths are reachable in all families, and no node is killed.
    pub ok: bool,
    pub paths: Vec<LabPath>,
    /// Killed nodes. Their pods do not exist any more and have no paths.
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
    /// Both pods are on the same node.
    Local,
    Direct,
    Vxlan,
    /// There is no route of Podwire.
    None,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LabReach {
    Reached {
        duration_us: u64,
    },
    /// The packet arrived with this source address instead of the pod's address.
    Rewritten {
        source: IpAddr,
    },
    Unreached {
        /// Null if there was neither an answer nor an error.
        reason: Option<String>,
    },
    /// At least one of the pods has no address of the family.
    NotUsed,
}
