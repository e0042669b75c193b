//! Views of the cluster: the state of the store, the state of the kernel, and differences.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::timestamp::Timestamp;

/// Whether an answer shows the current state of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Freshness {
    /// When the store had this state. Null if it is unknown, because a clock was wrong.
    pub as_of: Option<Timestamp>,
    /// The age of this state, by the clock of the agent.
    pub age_seconds: Option<u64>,
    /// The store could not be read: this is the last state that the agent knows.
    pub stale: bool,
    /// Why the store could not be read. Null if it could be read.
    pub reason: Option<String>,
}

/// All nodes of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodesView {
    #[serde(flatten)]
    pub freshness: Freshness,
    pub nodes: Vec<NodeView>,
}

/// Whether the agent of a node is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum AgentState {
    Alive,
    Away,
    /// Unknown: the agent has not read the store since its start. Also stands for states that only newer agents have.
    #[serde(other)]
    Unknown,
}

/// A node, as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    pub name: String,
    /// Null if the record is unreadable, like the following fields.
    pub uid: Option<String>,
    pub addresses: Vec<IpAddr>,
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub blocks: Vec<IpNet>,
    pub tunnel_mac: Option<String>,
    pub version: Option<String>,
    pub agent: AgentState,
    /// The start time of its agent. Null if it is unknown.
    pub alive_since: Option<Timestamp>,
    /// Why only the name is known. Null if the record is readable.
    pub message: Option<String>,
    /// Parts of the record that other nodes do not use, with the reason. One sentence each.
    pub refused: Vec<String>,
    /// Whether this is the node that answers.
    pub local: bool,
}

/// A block, as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BlockView {
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub block: IpNet,
    pub node: String,
    /// Inconsistencies of the records. Null if there are none.
    pub message: Option<String>,
    /// Addresses in use. Null for blocks of other nodes, and if the records of this node cannot be read.
    pub used: Option<u64>,
    /// Free addresses. Null if `used` is null.
    pub free: Option<u64>,
    pub local: bool,
}

/// All blocks of all networks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BlocksView {
    #[serde(flatten)]
    pub freshness: Freshness,
    pub subnets: Vec<SubnetView>,
    pub blocks: Vec<BlockView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SubnetView {
    /// The tenant and the name of the network: `default.default-net`.
    pub network: String,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub subnet: IpNet,
    /// The number of blocks into which the subnet is divided.
    pub blocks: u64,
    pub claimed: u64,
}

/// A route to another node's block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RouteView {
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub block: IpNet,
    /// Null for a stale route: no node owns the block.
    pub node: Option<String>,
    pub transport: RouteTransport,
    /// Null if there is no route.
    pub gateway: Option<IpAddr>,
    /// The name of the link. Null if there is no route.
    pub link: Option<String>,
    pub state: RouteState,
    /// Why there is no route, or what differs in the kernel. Null if the state is ok.
    pub message: Option<String>,
}

/// All routes to blocks of other nodes. They are computed from the agent's copy of the store, which has this age.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RoutesView {
    #[serde(flatten)]
    pub freshness: Freshness,
    pub routes: Vec<RouteView>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum RouteTransport {
    Direct,
    Vxlan,
    /// The node is not reachable.
    None,
    /// A transport that only newer agents have.
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum RouteState {
    /// The kernel has the expected route.
    Ok,
    /// The route is missing in the kernel.
    Missing,
    /// The kernel has a different route.
    Different,
    /// The kernel has a route that should not exist.
    Stale,
    /// A state that only newer agents have.
    #[serde(other)]
    Unknown,
}

/// A node that was removed permanently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Removed {
    pub name: String,
    /// The released blocks.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub blocks: Vec<IpNet>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a1_states_of_a_newer_agent_can_be_read() {
        assert_eq!(serde_json::from_str::<AgentState>(r#""asleep""#).unwrap(), AgentState::Unknown);
        assert_eq!(serde_json::from_str::<RouteState>(r#""pending""#).unwrap(), RouteState::Unknown);
        assert_eq!(serde_json::from_str::<RouteTransport>(r#""geneve""#).unwrap(), RouteTransport::Unknown);
        assert_eq!(serde_json::from_str::<RouteTransport>(r#""vxlan""#).unwrap(), RouteTransport::Vxlan);
    }
}
