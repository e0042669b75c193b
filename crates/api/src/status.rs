//! What the agent says of itself.

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
    /// No condition keeps the node from being ready.
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
    /// What is installed for runtimes; empty when the agent does not install.
    pub installed: Vec<InstalledFile>,
    pub inactive_ports: Vec<InactivePort>,
    /// Those that keep the node from being ready come first.
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    pub name: String,
    pub mode: String,
    pub bridge: String,
    /// Null: that of the bridge.
    pub mtu: Option<u32>,
    pub masquerade: bool,
    /// All of it, of which `blocks` is this node's share.
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
    /// Addresses in use; null if the records cannot be read.
    pub used: Option<u64>,
    /// Null where `used` is.
    pub free: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    pub ready: u64,
    pub pending: u64,
    /// Records that cannot be read; their addresses stay taken until they are removed.
    pub unreadable: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReconcileStatus {
    /// When the last round ended; null before the first one.
    pub last_round_at: Option<Timestamp>,
    /// Of the last round.
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
    /// What is wrong with it; null if it is in place.
    pub message: Option<String>,
}

/// A published port whose hostIP is no address of this node now. No problem: the address may move between nodes.
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
            "host port {port} of {network}/{container_id}/{interface}: the hostIP is no address of this node"
        )
    }
}

/// What `podwire status -o json` prints where no agent answers: the state in files and kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StatusWithoutAgent {
    pub mode: NodeMode,
    /// No condition keeps the node from being ready.
    pub ready: bool,
    pub run_dir: PathBuf,
    /// None: the run directory cannot be read.
    pub attachments: Option<Counts>,
    /// DELs that an agent will serve. None: the run directory cannot be read.
    pub tombstones: Option<u64>,
    pub inactive_ports: Vec<InactivePort>,
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum NodeMode {
    /// An agent serves pods.
    Agent,
    /// The plugin serves pods itself, and no agent is missing.
    Standalone,
}
