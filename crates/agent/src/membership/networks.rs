//! How all networks are divided into blocks.

use std::collections::BTreeMap;

use ipnet::IpNet;
use model::{BlockLayout, BlockLayoutError, Catalog, NetworkSpec, ObjectId};
use types::NetworkRef;

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
