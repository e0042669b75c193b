//! The tunnel devices, one for each outer family in use. They are created when the first peer needs one, and repaired. Unmanaged links
//! are never changed.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink::{AddAddress, AddVxlan, Ethtool, Link, LinkRef, Mode, Op, RtSocket, SetLink};
use tracing::{info, warn};
use types::{IfName, Mac, NetworkName};

/// Outer Ethernet, IP, UDP and VXLAN headers, as the underlay's MTU counts them.
pub(crate) const OVERHEAD_V4: u32 = 50;
pub(crate) const OVERHEAD_V6: u32 = 70;
/// A link with a smaller MTU has no IPv6, and the kernel refuses IPv6 settings of it.
const IPV6_MIN_MTU: u32 = 1280;

/// The desired device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tunnel {
    pub(crate) name: IfName,
    pub(crate) network: NetworkName,
    pub(crate) mac: Mac,
    pub(crate) mtu: u32,
    pub(crate) vni: u32,
    pub(crate) port: u16,
    pub(crate) local: IpAddr,
    /// Its address, which peers use in their routes. None while the node has no IPv4 block.
    pub(crate) address: Option<IpNet>,
    /// The subnets of the network. Other addresses of them on the device are from former blocks.
    pub(crate) subnets: Vec<IpNet>,
    /// Whether the interface computes checksums of tunnelled packets. None: not changed.
    pub(crate) checksum: Option<bool>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TunnelError {
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    #[error(
        "cannot create tunnel {name}: an unmanaged link has this name; rename or remove it, or set network.tunnel to another \
         name"
    )]
    Unmanaged { name: IfName, index: u32 },
    #[error("cannot prepare the tunnel {name}: {source}")]
    Sysctl { name: IfName, source: cni::Error },
}

pub(crate) fn overhead(outer: IpAddr) -> u32 {
    if outer.is_ipv4() { OVERHEAD_V4 } else { OVERHEAD_V6 }
}

impl Tunnel {
    fn alias(&self) -> String {
        engine::alias::of_tunnel(&self.network)
    }

    /// Creates or repairs the device and returns its index. `done` gets a sentence per change. Without `may_create`, no device is created:
    /// settings that need a new device stay as they are, and None is returned if there is no device.
    pub(crate) fn reconcile(
        &self,
        socket: &mut RtSocket,
        may_create: bool,
        done: &mut Vec<String>,
    ) -> Result<Option<u32>, TunnelError> {
        let index = match socket.link(&self.name)? {
            Some(link) if !self.is_managed(&link) => {
                return Err(TunnelError::Unmanaged { name: self.name.clone(), index: link.index });
            }
            Some(link) if self.has_settings(&link) => {
                self.adjust(socket, &link, done)?;
                link.index
            }
            Some(link) if !may_create => link.index,
            None if !may_create => return Ok(None),
            Some(link) => {
                socket.run(&Op::DelLink(link.index))?;
                self.remove_conflicting(socket, done)?;
                let index = self.make(socket)?;
                done.push(format!("tunnel {} created again (settings differed)", self.name));
                index
            }
            None => {
                self.remove_conflicting(socket, done)?;
                let index = self.make(socket)?;
                done.push(format!("tunnel {} created: VXLAN {} from {}", self.name, self.vni, self.local));
                index
            }
        };
        self.set_address(socket, index, done)?;
        Ok(Some(index))
    }

    /// Removes managed devices with names from another configuration: the kernel permits only one device per VNI and port, and with other
    /// numbers they would stay forever.
    fn remove_conflicting(&self, socket: &mut RtSocket, done: &mut Vec<String>) -> Result<(), TunnelError> {
        let is_former = |link: &&Link| {
            let has_same_family = |local: IpAddr| local.is_ipv4() == self.local.is_ipv4();
            let is_same_family = link.vxlan.and_then(|vxlan| vxlan.local).is_some_and(has_same_family);
            is_same_family && link.name != self.name.as_str() && self.is_managed(link)
        };
        for link in socket.links()?.iter().filter(is_former) {
            socket.run(&Op::DelLink(link.index))?;
            done.push(format!("tunnel {} removed (replaced by {})", link.name, self.name));
        }
        Ok(())
    }

    /// Whether the link has the alias, or no alias and the node's MAC. The MAC is unique, because it is derived from the node's uid.
    fn is_managed(&self, link: &Link) -> bool {
        let has_own_mac = || {
            let numbers = link.vxlan.map(|vxlan| (vxlan.vni, vxlan.port));
            link.mac == Some(self.mac) && numbers == Some((self.vni, self.port))
        };
        link.alias.as_ref().map_or_else(has_own_mac, |alias| *alias == self.alias())
    }

    /// On a link without an address, the kernel applies strict reverse path filtering whatever rp_filter is, and drops packets with
    /// another reverse path. An address of a block that belongs to a peer now would make that peer unreachable.
    fn set_address(
        &self,
        socket: &mut RtSocket,
        link: u32,
        done: &mut Vec<String>,
    ) -> Result<(), TunnelError> {
        let carried: Vec<IpNet> = socket.addresses(Some(link))?.iter().map(|address| address.addr).collect();
        let is_former = |addr: &&IpNet| {
            self.address != Some(**addr) && self.subnets.iter().any(|subnet| subnet.contains(&addr.addr()))
        };
        for &addr in carried.iter().filter(is_former) {
            match socket.run(&Op::DelAddress { link, addr }) {
                Err(error) if error.is_missing() => {}
                other => other?,
            }
            done.push(format!("tunnel {}: address {addr} removed", self.name));
        }
        let Some(addr) = self.address.filter(|addr| !carried.contains(addr)) else { return Ok(()) };
        let add = AddAddress {
            link,
            addr,
            nodad: true,
            broadcast: None,
            no_subnet_route: false,
            mode: Mode::Replace,
        };
        socket.run(&Op::AddAddress(add))?;
        done.push(format!("tunnel {}: address {addr}", self.name));
        Ok(())
    }

    /// These settings of a device cannot be changed. A device that was too small for IPv6 would get IPv6 with an unwanted link-local
    /// address.
    fn has_settings(&self, link: &Link) -> bool {
        let was_too_small = link.mtu < IPV6_MIN_MTU && self.mtu >= IPV6_MIN_MTU;
        link.vxlan.is_some_and(|vxlan| {
            let settings = (vxlan.vni, vxlan.port, vxlan.local, vxlan.learning, vxlan.group);
            settings == (self.vni, self.port, Some(self.local), false, None) && !was_too_small
        })
    }

    fn make(&self, socket: &mut RtSocket) -> Result<u32, TunnelError> {
        let Self { name, mac, mtu, vni, port, local, .. } = self;
        // Without a lower link: the device survives the loss of the link, and outer packets follow the routes.
        let first_mtu = (*mtu).max(IPV6_MIN_MTU);
        let add =
            AddVxlan { name, mac: *mac, mtu: first_mtu, vni: *vni, port: *port, local: *local, link: None };
        let index = socket.create_vxlan(&add, Some(&self.alias()))?;
        if first_mtu != *mtu {
            socket.run(&Op::SetLink(SetLink { mtu: Some(*mtu), ..SetLink::of(LinkRef::Index(index)) }))?;
        }
        self.prepare(index)?;
        Ok(index)
    }

    /// Returns the changed sysctls.
    fn prepare(&self, index: u32) -> Result<Vec<String>, TunnelError> {
        let changed = engine::tunnel::prepare(&self.name)
            .map_err(|source| TunnelError::Sysctl { name: self.name.clone(), source: source.into() })?;
        self.set_checksum(index);
        Ok(changed)
    }

    fn adjust(&self, socket: &mut RtSocket, link: &Link, done: &mut Vec<String>) -> Result<(), TunnelError> {
        let (mut set, alias) = (SetLink::of(LinkRef::Index(link.index)), self.alias());
        if link.alias.is_none() {
            done.push(format!("tunnel {}: alias restored", self.name));
            set.alias = Some(&alias);
        }
        if link.mtu != self.mtu {
            done.push(format!("tunnel {}: MTU {} instead of {}", self.name, self.mtu, link.mtu));
            set.mtu = Some(self.mtu);
        }
        if link.mac != Some(self.mac) {
            done.push(format!("tunnel {}: MAC {}", self.name, self.mac));
            set.mac = Some(self.mac);
        }
        if !link.up {
            done.push(format!("tunnel {}: up again", self.name));
            set.up = Some(true);
            if link.mtu >= IPV6_MIN_MTU {
                // A device that was never up may lack this setting, which must be set before it is up.
                let without_link_local =
                    SetLink { no_link_local: true, ..SetLink::of(LinkRef::Index(link.index)) };
                socket.run(&Op::SetLink(without_link_local))?;
            }
        }
        if set.mtu.is_some() || set.mac.is_some() || set.up.is_some() || set.alias.is_some() {
            socket.run(&Op::SetLink(set))?;
        }
        done.extend(self.prepare(link.index)?);
        Ok(())
    }

    fn set_checksum(&self, index: u32) {
        let Some(wanted) = self.checksum else { return };
        let set = Ethtool::open().and_then(|mut ethtool| {
            if ethtool.tx_checksum(index)? != wanted {
                ethtool.set_tx_checksum(index, wanted)?;
                info!("tunnel {}: checksum offload {}", self.name, if wanted { "on" } else { "off" });
            }
            Ok(())
        });
        if let Err(error) = set {
            let what = if wanted { "on" } else { "off" };
            warn!("tunnel {}: cannot switch checksum offload {what}: {error}", self.name);
        }
    }
}
