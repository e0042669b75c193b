//! The objects that decide which flows are allowed: tenants, groups, policies and shares of Podwire, and the policies of
//! Kubernetes in parsed form. The policy engine takes them as they are; the store, the API and files are parsed into them.

mod cluster_policy;
mod group_policy;
mod identity;
mod network;
mod network_policy;
mod profile;
mod share;
mod tenant;
mod tenant_group;
mod traffic;

pub use cluster_policy::{
    ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterProtocol, ClusterRule, ClusterSubject,
    ClusterTier,
};
pub use group_policy::{Group, GroupPeer, GroupPolicy, GroupRule, RuleAction, RuleProtocol};
pub use identity::{Identity, NamedPort, NamespacedName};
pub use network::TenantNetwork;
pub use network_policy::{
    NamespaceScope, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicyRule,
};
pub use profile::{TrafficLimit, TrafficProfile};
pub use share::{Share, SharedPart};
pub use tenant::{NodeAccess, Tenant};
pub use tenant_group::TenantGroup;
pub use traffic::{Direction, PortMatch, PortRange};
