//! The status of the agent.

use std::fmt;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Condition, PortView, Timestamp};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// `agent`.
    pub mode: NodeMode,
    pub node: String,
    pub version: String,
    pub pid: u32,
    pub started_at: Timestamp,
    /// No condition prevents readiness.
    pub ready: bool,
    /// `embedded` or `etcd`.
    pub store: String,
    pub run_dir: PathBuf,
    pub socket: PathBuf,
    pub rss_bytes: u64,
    pub network: NetworkStatus,
    /// Null if the records cannot be read.
    pub attachments: Option<Counts>,
    pub reconcile: ReconcileStatus,
    /// The files installed for runtimes. Empty if the agent does not install.
    pub installed: Vec<InstalledFile>,
    pub inactive_ports: Vec<InactivePort>,
    /// Conditions that prevent readiness come first.
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    pub name: String,
    pub mode: String,
    pub bridge: String,
    /// Null: the MTU of the bridge.
    pub mtu: Option<u32>,
    pub masquerade: bool,
    /// The subnets of the whole network. `blocks` are the blocks of this node.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub subnets: Vec<IpNet>,
    pub blocks: Vec<BlockUse>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BlockUse {
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub block: IpNet,
    /// Addresses in use. Null if the records cannot be read.
    pub used: Option<u64>,
    /// Free addresses. Null if `used` is null.
    pub free: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    pub ready: u64,
    pub pending: u64,
    /// Unreadable records. Their addresses stay reserved until they are removed.
    pub unreadable: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReconcileStatus {
    /// The end of the last round. Null before the first one.
    pub last_round_at: Option<Timestamp>,
    /// The duration of the last round.
    pub duration_ms: u64,
    pub rounds: u64,
    pub repairs: u64,
    /// The latest repairs, oldest first.
    pub recent_repairs: Vec<Repair>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Repair {
    pub at: Timestamp,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InstalledFile {
    pub path: PathBuf,
    pub ok: bool,
    /// The problem with the file. Null if it is correct.
    pub message: Option<String>,
}

/// A published port with a hostIP that this node does not have now. Not a problem: the address may move between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InactivePort {
    pub network: String,
    pub container_id: String,
    pub interface: String,
    pub port: PortView,
}

impl fmt::Display for InactivePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { network, container_id, interface, port } = self;
        write!(
            f,
            "host port {port} of {network}/{container_id}/{interface}: the hostIP is not an address of this node"
        )
    }
}

/// The output of `podwire status -o json` without an agent: the state of files and kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StatusWithoutAgent {
    pub mode: NodeMode,
    /// No condition prevents readiness.
    pub ready: bool,
    pub run_dir: PathBuf,
    /// Null if the run directory cannot be read.
    pub attachments: Option<Counts>,
    /// DEL requests that an agent will serve. Null if the run directory cannot be read.
    pub tombstones: Option<u64>,
    pub inactive_ports: Vec<InactivePort>,
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum NodeMode {
    /// An agent serves requests.
    Agent,
    /// The plugin serves requests itself. No agent is expected.
    Standalone,
}
