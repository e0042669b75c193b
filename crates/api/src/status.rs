//! What the agent says of itself.

use std::path::PathBuf;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Condition;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub node: String,
    pub version: String,
    pub pid: u32,
    /// Seconds since 1970.
    pub started: u64,
    /// No condition keeps the node from being ready.
    pub ready: bool,
    /// `embedded` or `etcd`.
    pub store: String,
    pub run_dir: PathBuf,
    pub socket: PathBuf,
    pub rss_bytes: u64,
    pub network: NetworkStatus,
    pub attachments: Counts,
    pub reconcile: ReconcileStatus,
    /// What is installed for runtimes; empty when the agent does not install.
    pub installed: Vec<InstalledFile>,
    /// Published ports whose hostIP is no address of this node now, each as a sentence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inactive_ports: Vec<String>,
    /// Those that keep the node from being ready come first.
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkStatus {
    pub name: String,
    pub mode: String,
    pub bridge: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    pub masquerade: bool,
    /// All of it, of which `blocks` is this node's share.
    #[serde(default)]
    pub subnets: Vec<IpNet>,
    pub blocks: Vec<BlockUse>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockUse {
    pub cidr: IpNet,
    pub used: u64,
    pub free: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub ready: u64,
    pub pending: u64,
    /// Records that cannot be read; their addresses stay taken until they are removed.
    pub unreadable: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReconcileStatus {
    /// When the last one ended, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<u64>,
    pub took_ms: u64,
    pub rounds: u64,
    pub repairs: u64,
    /// The latest repairs, oldest first.
    pub recent: Vec<Repair>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    /// Seconds since 1970.
    pub time: u64,
    pub what: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledFile {
    pub path: PathBuf,
    pub ok: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
