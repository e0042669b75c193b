use types::{GroupName, NetworkId, Protocol, TenantName};

use super::PortRange;

/// Lets pods of other tenants open flows to pods of its owner. It passes the tenant tier only: policies still apply. The owner's
/// pods cannot open flows to the other tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The owner.
    pub tenant: TenantName,
    pub name: String,
    pub part: SharedPart,
    /// The tenants that may open flows. Empty: all tenants.
    pub with: Vec<TenantName>,
    /// Empty: all protocols and ports.
    pub ports: Vec<(Protocol, PortRange)>,
}

/// The owner's pods that can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharedPart {
    AllPods,
    Network(NetworkId),
    Group(GroupName),
}
