//! How all networks are divided into blocks, and what they are on this node. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use model::objects::{TenantGroup, TenantNetwork};
use model::{BlockAllocation, BlockLayout, BlockLayoutError, Catalog, NetworkSpec, ObjectId};
use netconf::{GroupPools, Network, NetworkSettings, NodeAllocation, NodeNetwork};
use types::{AttachMode, NetworkRef};

/// The networks of the cluster. The settings of the default network are in the configuration of the agents, those of other networks
/// are objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NetworkLayouts(BTreeMap<NetworkRef, NetworkLayout>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum NetworkLayout {
    /// One per family.
    Known(Vec<BlockLayout>),
    /// The object exists, but cannot be read. Nodes keep their blocks and claim no others.
    Unreadable,
}

/// What a network says about a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockFit {
    Fits,
    /// The network exists, but cannot be read.
    Unknown,
    /// The network does not exist, or is divided differently.
    Outside,
}

impl NetworkLayouts {
    pub(crate) fn of_default(spec: &NetworkSpec) -> Result<Self, BlockLayoutError> {
        let layouts = NetworkLayout::Known(divide(&spec.subnets, spec.margin)?);
        Ok(Self(BTreeMap::from([(NetworkRef::default(), layouts)])))
    }

    /// Replaces all networks except the default one.
    pub(crate) fn with_objects(&self, objects: &Catalog) -> Self {
        let unreadable = objects.invalid().filter_map(|(id, _)| ObjectId::network_ref(id));
        let unreadable = unreadable.map(|network| (network, NetworkLayout::Unreadable));
        let known = objects.networks().filter_map(|network| {
            let layouts = divide(&network.subnets, network.margin).ok()?;
            Some((NetworkRef::new(&network.tenant, &network.id), NetworkLayout::Known(layouts)))
        });
        let others = unreadable.chain(known).filter(|(network, _)| !network.is_default());
        let default = self.0.iter().filter(|(network, _)| network.is_default());
        Self(default.map(|(network, layout)| (network.clone(), layout.clone())).chain(others).collect())
    }

    /// The layouts of a network. Empty if it does not exist or cannot be read.
    pub(crate) fn of(&self, network: &NetworkRef) -> &[BlockLayout] {
        match self.0.get(network) {
            Some(NetworkLayout::Known(layouts)) => layouts,
            Some(NetworkLayout::Unreadable) | None => &[],
        }
    }

    /// The layouts of all networks.
    pub(crate) fn all(&self) -> Vec<BlockLayout> {
        self.0.keys().flat_map(|network| self.of(network)).copied().collect()
    }

    /// The default network first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&NetworkRef, &BlockLayout)> {
        let (default, others): (Vec<_>, Vec<_>) = self.0.keys().partition(|network| network.is_default());
        let all = default.into_iter().chain(others);
        all.flat_map(|network| self.of(network).iter().map(move |layout| (network, layout)))
    }

    pub(crate) fn fit(&self, network: &NetworkRef, block: &IpNet) -> BlockFit {
        match self.0.get(network) {
            Some(NetworkLayout::Known(layouts)) if layouts.iter().any(|layout| layout.owns(block)) => {
                BlockFit::Fits
            }
            Some(NetworkLayout::Unreadable) => BlockFit::Unknown,
            Some(NetworkLayout::Known(_)) | None => BlockFit::Outside,
        }
    }

    /// The network with the subnet that contains this block.
    pub(crate) fn network_of(&self, block: &IpNet) -> Option<&NetworkRef> {
        let contains =
            |network: &&NetworkRef| self.of(network).iter().any(|one| one.subnet().contains(block));
        self.0.keys().find(contains)
    }
}

fn divide(subnets: &[IpNet], margin: u8) -> Result<Vec<BlockLayout>, BlockLayoutError> {
    subnets.iter().map(|subnet| BlockLayout::new(*subnet, margin)).collect()
}

/// The pools of the groups of a network.
fn group_pools(objects: &Catalog, network: &NetworkRef) -> GroupPools {
    let is_in = |group: &&TenantGroup| {
        group.group.tenant == network.tenant && group.network == network.network && !group.pools.is_empty()
    };
    let groups = objects.groups().filter(is_in);
    groups.map(|group| (group.group.name.clone(), group.pools.clone())).collect()
}

/// All pools of a network.
pub(crate) fn pools_in(objects: &Catalog, network: &NetworkRef) -> Vec<IpNet> {
    group_pools(objects, network).into_values().flatten().collect()
}

/// Everything that determines the networks of this node, besides the objects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeNetworkInputs<'a> {
    /// Those of the default network.
    pub(crate) settings: &'a NetworkSettings,
    pub(crate) node: &'a str,
    pub(crate) blocks: &'a BlockAllocation,
    /// The MTU of the node's links.
    pub(crate) mtu: Option<u32>,
    /// A node that no other node can join owns the subnets of all networks.
    pub(crate) is_alone: bool,
}

impl NodeNetworkInputs<'_> {
    /// The networks of this node. Without objects, only the default network is known.
    pub(crate) fn allocation(self, objects: Option<&Catalog>) -> Result<NodeAllocation, cni::Error> {
        let blocks = self.blocks.of(&NetworkRef::default()).to_vec();
        let default = Network::new(self.settings, blocks, self.mtu)?;
        let Some(objects) = objects else { return Ok(NodeAllocation::of_default(Arc::new(default))) };
        let others = || objects.networks().filter(|network| !network.is_default());
        let own = self.settings.subnets.iter();
        let cluster: Vec<IpNet> = own.chain(others().flat_map(|network| &network.subnets)).copied().collect();
        let default =
            default.with_cluster(&cluster).with_pools(group_pools(objects, &NetworkRef::default()))?;
        let default = Arc::new(default);
        let unreadable = objects
            .invalid()
            .filter_map(|(id, error)| Some((id.network_ref()?, NodeNetwork::Invalid(error.to_string()))));
        let known = others().map(|network| {
            (NetworkRef::new(&network.tenant, &network.id), self.on_node(objects, network, &cluster))
        });
        Ok(NodeAllocation::of_default(default).with_networks(unreadable.chain(known).collect()))
    }

    fn on_node(self, objects: &Catalog, network: &TenantNetwork, cluster: &[IpNet]) -> NodeNetwork {
        if self.settings.mode == AttachMode::Bridge {
            return NodeNetwork::ModeBridge;
        }
        if !network.nodes.is_empty() && !network.nodes.iter().any(|node| node.as_str() == self.node) {
            return NodeNetwork::OtherNodes(network.nodes.clone());
        }
        let layouts = match divide(&network.subnets, network.margin) {
            Ok(layouts) => layouts,
            Err(error) => return NodeNetwork::Invalid(error.to_string()),
        };
        let owned = self.blocks.of(&NetworkRef::new(&network.tenant, &network.id)).iter().copied();
        let blocks: Vec<IpNet> = match self.is_alone {
            true => network.subnets.clone(),
            false => owned.filter(|block| layouts.iter().any(|layout| layout.owns(block))).collect(),
        };
        let has_block = |subnet: &IpNet| blocks.iter().any(|block| subnet.contains(block));
        if !network.subnets.iter().all(has_block) {
            return NodeNetwork::NoBlock;
        }
        let settings = NetworkSettings {
            subnets: network.subnets.clone(),
            mtu: network.mtu.or(self.settings.mtu),
            masquerade: network.masquerade,
            ..self.settings.clone()
        };
        let pools = group_pools(objects, &NetworkRef::new(&network.tenant, &network.id));
        let complete = |network: Network| network.with_cluster(cluster).on_shared_bridge().with_pools(pools);
        match Network::new(&settings, blocks, self.mtu).and_then(complete) {
            Ok(network) => NodeNetwork::Ready(Arc::new(network)),
            Err(error) => NodeNetwork::Invalid(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{ClusterObject, ObjectRecord};
    use serde_json::{Value, json};

    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn network_ref(text: &str) -> NetworkRef {
        NetworkRef::try_from(text.to_owned()).unwrap()
    }

    fn objects() -> Catalog {
        let mut catalog = Catalog::new(TenantNetwork::default_net(nets(&["10.2.0.0/16"]), 8));
        for (name, spec) in [
            ("front", json!({ "subnets": ["10.5.0.0/16", "fd05::/64"], "masquerade": false, "mtu": 1300 })),
            ("far", json!({ "subnets": ["10.6.0.0/16"], "nodes": ["n7"] })),
        ] {
            let object = ClusterObject::from_document(document(name, &spec)).unwrap();
            catalog.observe(&object.id(), &ObjectRecord::from(object).encode()).unwrap();
        }
        let unreadable = ObjectId::network(&"blue".try_into().unwrap(), &"newer".try_into().unwrap());
        assert!(catalog.observe(&unreadable, br#"{"schema":99,"network":{}}"#).is_err());
        catalog
    }

    fn document(name: &str, spec: &Value) -> Value {
        let metadata = json!({ "name": name, "tenant": "blue" });
        json!({ "apiVersion": model::API_VERSION, "kind": "Network", "metadata": metadata, "spec": spec })
    }

    fn settings() -> NetworkSettings {
        NetworkSettings {
            name: "podwire".try_into().unwrap(),
            mode: AttachMode::Routed,
            bridge: "pw0".try_into().unwrap(),
            subnets: nets(&["10.2.0.0/16"]),
            mtu: None,
            connections_per_pod: None,
            masquerade: true,
        }
    }

    #[test]
    fn d_blocks_of_a_network_that_cannot_be_read_are_kept() {
        let spec = NetworkSpec { subnets: nets(&["10.2.0.0/16"]), margin: 8, vni: 1, vxlan_port: 4789 };
        let layouts = NetworkLayouts::of_default(&spec).unwrap().with_objects(&objects());
        for (network, block, expected) in [
            ("default.default-net", "10.2.3.0/24", BlockFit::Fits),
            ("blue.front", "10.5.3.0/24", BlockFit::Fits),
            ("blue.front", "10.2.3.0/24", BlockFit::Outside),
            ("blue.front", "10.5.3.0/25", BlockFit::Outside),
            ("red.front", "10.5.3.0/24", BlockFit::Outside),
            ("blue.newer", "10.9.3.0/24", BlockFit::Unknown),
        ] {
            assert_eq!(layouts.fit(&network_ref(network), &nets(&[block])[0]), expected, "{network} {block}");
        }
        assert_eq!(layouts.network_of(&nets(&["fd05::/72"])[0]), Some(&network_ref("blue.front")));
        assert_eq!(layouts.all().len(), 4);
        // A network that was removed has no blocks any more.
        let none = Catalog::new(TenantNetwork::default_net(nets(&["10.2.0.0/16"]), 8));
        let layouts = layouts.with_objects(&none);
        assert_eq!(layouts.fit(&network_ref("blue.front"), &nets(&["10.5.3.0/24"])[0]), BlockFit::Outside);
        assert_eq!(layouts.all().len(), 1);
    }

    #[test]
    fn d_the_networks_of_a_node_follow_its_blocks_and_the_objects() {
        let (settings, mut blocks) = (settings(), BlockAllocation::of_default(nets(&["10.2.1.0/24"])));
        blocks.add(&network_ref("blue.front"), nets(&["10.5.7.0/24"])[0]);
        let allocation = |blocks: &BlockAllocation, is_alone| {
            let inputs =
                NodeNetworkInputs { settings: &settings, node: "n1", blocks, mtu: Some(1450), is_alone };
            inputs.allocation(Some(&objects())).unwrap()
        };
        let front = network_ref("blue.front");
        assert!(allocation(&blocks, false).ready(&front).is_none(), "a block of each family is needed");
        blocks.add(&front, nets(&["fd05:0:0:0:100::/72"])[0]);
        let complete = allocation(&blocks, false);
        let network = complete.ready(&front).unwrap();
        assert_eq!(network.blocks(), nets(&["10.5.7.0/24", "fd05:0:0:0:100::/72"]));
        assert_eq!((network.mtu(), network.conf().ip_masq), (Some(1300), false));
        let default = complete.default_network().unwrap();
        assert_eq!((default.mtu(), default.conf().ip_masq), (Some(1450), true));
        assert_eq!(default.conf().cluster, network.conf().cluster, "all networks share a chain");
        assert_eq!(complete.networks().count(), 2);
        // In mode bridge, no block of another network is claimed.
        let in_bridge = NetworkSettings { mode: AttachMode::Bridge, ..settings.clone() };
        let inputs = NodeNetworkInputs {
            settings: &in_bridge,
            node: "n1",
            blocks: &blocks,
            mtu: None,
            is_alone: false,
        };
        assert_eq!(inputs.allocation(Some(&objects())).unwrap().networks().count(), 1);
        // A node that no other node can join needs no blocks.
        let whole = allocation(&BlockAllocation::of_default(nets(&["10.2.0.0/16"])), true);
        assert_eq!(whole.ready(&front).unwrap().blocks(), nets(&["10.5.0.0/16", "fd05::/64"]));
    }
}
