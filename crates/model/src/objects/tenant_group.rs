use ipnet::IpNet;
use types::NetworkId;

use super::Group;

/// A group with the settings that the policy engine does not use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantGroup {
    pub group: Group,
    /// The network of its pods, of the same tenant.
    pub network: NetworkId,
    /// Addresses of the network that only its pods get. Empty: its pods get addresses like pods without a group.
    pub pools: Vec<IpNet>,
    /// The name of a traffic profile of the same tenant.
    pub profile: Option<String>,
}
