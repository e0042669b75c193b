use types::{NetworkId, TenantName};

/// Owner of networks, groups and pods. Pods of different tenants cannot communicate unless a share allows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    pub name: TenantName,
    /// Whether nodes and pods of this tenant can open flows to each other. With `Allow`, node ports and host ports connect tenants.
    /// A pod and its own node are not judged.
    pub nodes: NodeAccess,
    /// The network of its pods without a network in their placement.
    pub default_network: Option<NetworkId>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeAccess {
    #[default]
    Allow,
    Deny,
}
