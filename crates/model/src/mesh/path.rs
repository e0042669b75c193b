//! How a block is reached, or why it is unreachable.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use types::{Family, Mac, NodeName};

use super::local_node::{LocalNode, Transport};
use crate::admission::{BlockRefusal, check_address};
use crate::object::NodeRecord;

/// The path to a block of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerPath {
    /// The node of the block is on the same link.
    Direct {
        gateway: IpAddr,
        link: u32,
    },
    /// Through the tunnel device `link` to the node at `remote`.
    Vxlan {
        link: u32,
        gateway: IpAddr,
        remote: IpAddr,
    },
    None(NoPath),
}

/// Why a block is unreachable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPath {
    /// The node does not own the block.
    Refused(BlockRefusal),
    OverlapsOwnBlock(IpNet),
    /// The block contains a network that is directly reachable on a link of this node, for example with the router or the store.
    HoldsLink(IpNet),
    /// The block contains this node's address, so packets to it would come back.
    HoldsNode(IpAddr),
    /// The transport is direct, but the node is not on the same link.
    NotOnLink(IpAddr),
    /// The transport is direct, but the node publishes no address of the block's family.
    NoAddress(Family),
    /// The transport is direct, but this node has no address of the block's family.
    NoUnderlay(Family),
    /// The nodes have no address of a common family.
    NoCommonFamily,
    /// The node publishes an address of this node.
    HasOwnAddress(IpAddr),
    /// The tunnel device has the same MAC as another node's.
    SameMac {
        name: NodeName,
        mac: Mac,
    },
    /// The tunnel device does not exist yet.
    NoTunnel(Family),
}

impl fmt::Display for PeerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct { gateway, link } => write!(f, "direct via {gateway} on link {link}"),
            Self::Vxlan { link, remote, .. } => write!(f, "vxlan to {remote} on link {link}"),
            Self::None(reason) => write!(f, "none: {reason}"),
        }
    }
}

impl fmt::Display for NoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::OverlapsOwnBlock(block) => write!(f, "it overlaps block {block} of this node"),
            Self::HoldsLink(net) => write!(f, "it contains {net}, which is on a link of this node"),
            Self::HoldsNode(address) => write!(f, "it contains this node's address {address}"),
            Self::NotOnLink(address) => {
                write!(
                    f,
                    "the transport is direct, but {address} is not on-link; use transport auto or vxlan"
                )
            }
            Self::NoAddress(family) => {
                write!(f, "the transport is direct, but the node publishes no {family} address")
            }
            Self::NoUnderlay(family) => {
                write!(f, "the transport is direct, but this node has no {family} address")
            }
            Self::NoCommonFamily => f.write_str("it and this node have no addresses of a common family"),
            Self::HasOwnAddress(address) => write!(f, "it publishes this node's address {address}"),
            Self::SameMac { name, mac } => write!(f, "its tunnel MAC {mac} is also used by node {name}"),
            Self::NoTunnel(family) => write!(f, "the {family} tunnel device does not exist yet"),
        }
    }
}

/// The first usable address of a node in one family.
pub(super) fn address_of(local_node: &LocalNode, record: &NodeRecord, family: Family) -> Option<IpAddr> {
    record.named_addresses().find(|address| Family::of(*address) == family && is_usable(local_node, *address))
}

/// The kernel accepts no broadcast or network address as a gateway. Addresses that admission refuses cannot be those of a node.
pub(super) fn is_usable(local_node: &LocalNode, address: IpAddr) -> bool {
    let is_edge_of = |net: &IpNet| match (net, address) {
        (IpNet::V4(net), IpAddr::V4(address)) => {
            net.prefix_len() < 31 && (address == net.network() || address == net.broadcast())
        }
        (_, _) => false,
    };
    let is_edge = local_node.underlays.iter().flat_map(|underlay| &underlay.on_link).any(is_edge_of);
    !is_edge && check_address(&local_node.block_layouts, address).is_ok()
}

/// The outer family and address of the tunnel to a node. The device may not exist yet.
pub(super) fn outer(local_node: &LocalNode, record: &NodeRecord) -> Option<(Family, IpAddr)> {
    [Family::V4, Family::V6].into_iter().find_map(|family| {
        local_node.underlay(family)?;
        address_of(local_node, record, family).map(|address| (family, address))
    })
}

/// The path to a block that its node owns. `mac_conflict` is another node that holds the same tunnel MAC.
pub(super) fn choose(
    local_node: &LocalNode,
    record: &NodeRecord,
    block: IpNet,
    mac_conflict: Option<&NodeName>,
) -> PeerPath {
    match direct(local_node, record, block) {
        Ok(path) if local_node.transport != Transport::Vxlan => path,
        Err(reason) if local_node.transport == Transport::Direct => PeerPath::None(reason),
        Ok(_) | Err(_) => vxlan(local_node, record, block, mac_conflict).unwrap_or_else(PeerPath::None),
    }
}

fn direct(local_node: &LocalNode, record: &NodeRecord, block: IpNet) -> Result<PeerPath, NoPath> {
    let family = Family::of(block.addr());
    let gateway = address_of(local_node, record, family).ok_or(NoPath::NoAddress(family))?;
    let underlay = local_node.underlay(family).ok_or(NoPath::NoUnderlay(family))?;
    if gateway == underlay.address {
        return Err(NoPath::HasOwnAddress(gateway));
    }
    if !underlay.on_link.iter().any(|net| net.contains(&gateway)) {
        return Err(NoPath::NotOnLink(gateway));
    }
    Ok(PeerPath::Direct { gateway, link: underlay.link })
}

fn vxlan(
    local_node: &LocalNode,
    record: &NodeRecord,
    block: IpNet,
    mac_conflict: Option<&NodeName>,
) -> Result<PeerPath, NoPath> {
    let mac = record.tunnel_mac;
    let (family, remote) = outer(local_node, record).ok_or(NoPath::NoCommonFamily)?;
    if local_node.is_own_address(remote) {
        return Err(NoPath::HasOwnAddress(remote));
    }
    if let Some(name) = mac_conflict {
        return Err(NoPath::SameMac { name: name.clone(), mac });
    }
    let link = local_node.tunnels.of(family).ok_or(NoPath::NoTunnel(family))?;
    // For IPv6 the kernel accepts no gateway inside the block while another route to the block exists.
    let gateway = match block {
        IpNet::V4(block) => block.network().into(),
        IpNet::V6(_) => link_local(mac).into(),
    };
    Ok(PeerPath::Vxlan { link, gateway, remote })
}

/// RFC 4291, appendix A.
fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.octets();
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
