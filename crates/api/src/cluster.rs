//! What the agent says of the other nodes: what the store has, what the kernel has, and the difference.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::when::Timestamp;

/// Whether an answer is what the store has now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Freshness {
    /// When the store had this; null if that is not known, because a clock was wrong.
    pub as_of: Option<Timestamp>,
    /// The same as an age, by the clock of the agent.
    pub age_seconds: Option<u64>,
    /// The store could not be asked: this is the last state that the agent knows.
    pub stale: bool,
    /// Why the store could not be asked; null if it could.
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

/// Whether a node's agent works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum AgentState {
    Alive,
    Away,
    /// The store has not been asked since the agent that answers was started; or a state that only newer agents have.
    #[serde(other)]
    Unknown,
}

/// A node as the store has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    pub name: String,
    /// Null if its record is unreadable, like the following.
    pub uid: Option<String>,
    pub addresses: Vec<IpAddr>,
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub blocks: Vec<IpNet>,
    pub tunnel_mac: Option<String>,
    pub version: Option<String>,
    pub agent: AgentState,
    /// Since when its agent works; null if that is not known.
    pub alive_since: Option<Timestamp>,
    /// Why nothing but its name is known; null if its record is readable.
    pub message: Option<String>,
    /// Parts of its record that other nodes do not use, and why: a sentence for each.
    pub refused: Vec<String>,
    /// The node that was asked.
    pub local: bool,
}

/// A block as the store has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BlockView {
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub block: IpNet,
    pub node: String,
    /// What does not fit together; null if all does.
    pub message: Option<String>,
    /// Addresses in use; null for blocks of other nodes, and if the records of this node cannot be read.
    pub used: Option<u64>,
    /// Null where `used` is.
    pub free: Option<u64>,
    pub local: bool,
}

/// All blocks of a network.
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
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub subnet: IpNet,
    /// How many blocks it is cut into.
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
    /// Null for a stale route: no node has the block.
    pub node: Option<String>,
    pub transport: RouteTransport,
    /// Null if there is no route.
    pub gateway: Option<IpAddr>,
    /// The link's name; null if there is no route.
    pub link: Option<String>,
    pub state: RouteState,
    /// Why there is no route, or what the kernel has instead; null if all is well.
    pub message: Option<String>,
}

/// All routes to other nodes' blocks. They follow the agent's copy of the store's contents, which has this age.
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
    /// There is no way to it.
    None,
    /// One that only newer agents have.
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum RouteState {
    /// The kernel has it as it should be.
    Ok,
    /// It should be there.
    Missing,
    /// It leads elsewhere.
    Different,
    /// The kernel has it, and it should not.
    Stale,
    /// One that only newer agents have.
    #[serde(other)]
    Unknown,
}

/// A node that was removed for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Removed {
    pub name: String,
    /// They are free for others now.
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
