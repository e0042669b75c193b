use ipnet::IpNet;
use types::{DEFAULT_NETWORK, Family, NetworkId, NodeName, TenantName};

/// A network of a tenant. It is divided into blocks, from which nodes take the addresses of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantNetwork {
    pub tenant: TenantName,
    pub id: NetworkId,
    /// At most one per family. No other network of any tenant overlaps them.
    pub subnets: Vec<IpNet>,
    /// The number of bits by which the prefix of a block is longer than its subnet's.
    pub margin: u8,
    /// None: the agent's setting.
    pub mtu: Option<u32>,
    /// Whether packets that leave the cluster get the node's address as source.
    pub masquerade: bool,
    /// The nodes that can have pods in this network. Empty: all nodes.
    pub nodes: Vec<NodeName>,
}

impl TenantNetwork {
    /// A subnet of /16 is divided into 256 blocks of 254 addresses.
    pub const DEFAULT_MARGIN: u8 = 8;

    /// The network that exists from the first start.
    pub fn default_net(subnets: Vec<IpNet>, margin: u8) -> Self {
        Self {
            tenant: TenantName::default(),
            id: NetworkId::default(),
            subnets,
            margin,
            mtu: None,
            masquerade: true,
            nodes: Vec::new(),
        }
    }

    pub fn is_default(&self) -> bool {
        self.tenant == TenantName::default() && self.id.as_str() == DEFAULT_NETWORK
    }

    pub fn subnet(&self, family: Family) -> Option<IpNet> {
        self.subnets.iter().copied().find(|subnet| Family::of(subnet.network()) == family)
    }

    pub fn includes_node(&self, node: &NodeName) -> bool {
        self.nodes.is_empty() || self.nodes.contains(node)
    }
}
