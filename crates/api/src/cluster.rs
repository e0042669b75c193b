//! What the agent says of the other nodes: what the store has, what the kernel has, and the difference.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::when::Timestamp;

/// Whether an answer is what the store has now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Freshness {
    /// When the store had this.
    pub as_of: Timestamp,
    /// The same as an age, by the clock of the agent.
    pub age_seconds: u64,
    /// The store could not be asked: this is the last state that the agent knows.
    pub stale: bool,
    /// Why the store could not be asked.
    pub reason: Option<String>,
}

/// All nodes of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodesView {
    #[serde(flatten)]
    pub freshness: Freshness,
    pub nodes: Vec<NodeView>,
}

/// Whether a node's agent works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentState {
    Alive,
    Away,
    /// The store has not been asked since the agent that answers was started.
    Unknown,
}

/// A node as the store has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    pub name: String,
    pub uid: String,
    pub addresses: Vec<IpAddr>,
    pub blocks: Vec<IpNet>,
    pub tunnel_mac: String,
    pub version: String,
    pub agent: AgentState,
    /// Since when its agent works, in seconds since 1970, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alive_since: Option<u64>,
    /// Why nothing but its name is known, if its record is of no use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Parts of its record that other nodes do not use, and why: a sentence for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// The one that was asked.
    pub here: bool,
}

/// A block as the store has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockView {
    pub block: IpNet,
    pub node: String,
    /// What does not fit together, if something does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Of this node's blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<u64>,
    pub here: bool,
}

/// All blocks of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlocksView {
    #[serde(flatten)]
    pub freshness: Freshness,
    pub subnets: Vec<SubnetView>,
    pub blocks: Vec<BlockView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubnetView {
    pub subnet: IpNet,
    /// How many blocks it is cut into.
    pub blocks: u64,
    pub claimed: u64,
}

/// A route to another node's block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteView {
    pub block: IpNet,
    pub node: String,
    pub transport: RouteTransport,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The link's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    pub state: RouteState,
    /// Why there is no way, or what the kernel has instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteTransport {
    Direct,
    Vxlan,
    /// There is no way to it.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteState {
    /// The kernel has it as it should be.
    Ok,
    /// It should be there.
    Missing,
    /// It leads elsewhere.
    Different,
    /// The kernel has it, and it should not.
    Stale,
}

/// A node that was removed for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    pub name: String,
    /// They are free for others now.
    pub blocks: Vec<IpNet>,
}
