//! The tunnel devices: one for each outer family that is needed. Made when the first peer needs one, kept as they should
//! be, and never taken from somebody else.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink::{AddAddress, AddVxlan, Ethtool, Link, LinkRef, Mode, Op, RtSocket, SetLink};
use tracing::{info, warn};
use types::{IfName, Mac, NetworkName};

/// Outer Ethernet, IP, UDP and VXLAN headers, as the underlay's MTU counts them.
pub(crate) const OVERHEAD_V4: u32 = 50;
pub(crate) const OVERHEAD_V6: u32 = 70;
/// A link with less has no IPv6, and the kernel refuses to be told how it is to be.
const IPV6_LEAST: u32 = 1280;

/// What a device should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tunnel {
    pub(crate) name: IfName,
    pub(crate) network: NetworkName,
    pub(crate) mac: Mac,
    pub(crate) mtu: u32,
    pub(crate) vni: u32,
    pub(crate) port: u16,
    pub(crate) local: IpAddr,
    /// Its own, by which others call it in their routes; none while the node has no block of IPv4.
    pub(crate) address: Option<IpNet>,
    /// Of the network: other addresses of it on the device are left from blocks that were ours.
    pub(crate) subnets: Vec<IpNet>,
    /// Whether checksums of what is sent through it are left to the interface. None: as it is.
    pub(crate) checksum: Option<bool>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TunnelError {
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    #[error(
        "there is a link {name} that is not ours, where a tunnel is wanted: rename or remove it, or set network.tunnel to \
         another name"
    )]
    Foreign { name: IfName, index: u32 },
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

    /// The device, made or repaired; `done` lists the changes. Without `may_make` one that is there is adjusted as far as
    /// that needs no new device, and one that is missing stays so: None.
    pub(crate) fn keep(
        &self,
        socket: &mut RtSocket,
        may_make: bool,
        done: &mut Vec<String>,
    ) -> Result<Option<u32>, TunnelError> {
        let index = match socket.link(&self.name)? {
            Some(link) if !self.is_ours(&link) => {
                return Err(TunnelError::Foreign { name: self.name.clone(), index: link.index });
            }
            Some(link) if self.is_made_alike(&link) => {
                self.adjust(socket, &link, done)?;
                link.index
            }
            Some(link) if !may_make => link.index,
            None if !may_make => return Ok(None),
            Some(link) => {
                socket.run(&Op::DelLink(link.index))?;
                self.make_room(socket, done)?;
                let index = self.make(socket)?;
                done.push(format!("tunnel {} was made for another place or size: made anew", self.name));
                index
            }
            None => {
                self.make_room(socket, done)?;
                let index = self.make(socket)?;
                done.push(format!("tunnel {} made: VXLAN {} from {}", self.name, self.vni, self.local));
                index
            }
        };
        self.keep_address(socket, index, done)?;
        Ok(Some(index))
    }

    /// Those that got their names from another config are in the way: the kernel has only one device for a tunnel's numbers,
    /// and with other numbers nobody would ever remove them.
    fn make_room(&self, socket: &mut RtSocket, done: &mut Vec<String>) -> Result<(), TunnelError> {
        let is_left = |link: &&Link| {
            let is_alike = |local: IpAddr| local.is_ipv4() == self.local.is_ipv4();
            let leads_there = link.vxlan.and_then(|vxlan| vxlan.local).is_some_and(is_alike);
            leads_there && link.name != self.name.as_str() && self.is_ours(link)
        };
        for link in socket.links()?.iter().filter(is_left) {
            socket.run(&Op::DelLink(link.index))?;
            done.push(format!("tunnel {} removed: it is called {} now", link.name, self.name));
        }
        Ok(())
    }

    /// Marked, or made by us and not marked: the MAC is made of this machine's uid, and nobody else has it.
    fn is_ours(&self, link: &Link) -> bool {
        let is_made_here = || {
            let place = link.vxlan.map(|vxlan| (vxlan.vni, vxlan.port));
            link.mac == Some(self.mac) && place == Some((self.vni, self.port))
        };
        link.alias.as_ref().map_or_else(is_made_here, |alias| *alias == self.alias())
    }

    /// With a link that has no address the kernel is strict, whatever rp_filter says, and drops what would be answered by
    /// another way. An address of a block that is another node's now would keep us from reaching it.
    fn keep_address(
        &self,
        socket: &mut RtSocket,
        link: u32,
        done: &mut Vec<String>,
    ) -> Result<(), TunnelError> {
        let carried: Vec<IpNet> = socket.addresses(Some(link))?.iter().map(|address| address.addr).collect();
        let is_left = |addr: &&IpNet| {
            self.address != Some(**addr) && self.subnets.iter().any(|subnet| subnet.contains(&addr.addr()))
        };
        for &addr in carried.iter().filter(is_left) {
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

    /// None of this can be changed while the device lives. One that was too small for IPv6 gets it back with a link-local
    /// address that nobody wants.
    fn is_made_alike(&self, link: &Link) -> bool {
        let was_too_small = link.mtu < IPV6_LEAST && self.mtu >= IPV6_LEAST;
        link.vxlan.is_some_and(|vxlan| {
            let place = (vxlan.vni, vxlan.port, vxlan.local, vxlan.learning, vxlan.group);
            place == (self.vni, self.port, Some(self.local), false, None) && !was_too_small
        })
    }

    fn make(&self, socket: &mut RtSocket) -> Result<u32, TunnelError> {
        let Self { name, mac, mtu, vni, port, local, .. } = self;
        // Without a lower link: the device outlives one that is made anew, and follows the routes.
        let room = (*mtu).max(IPV6_LEAST);
        let add = AddVxlan { name, mac: *mac, mtu: room, vni: *vni, port: *port, local: *local, link: None };
        let index = socket.create_vxlan(&add, Some(&self.alias()))?;
        if room != *mtu {
            socket.run(&Op::SetLink(SetLink { mtu: Some(*mtu), ..SetLink::of(LinkRef::Index(index)) }))?;
        }
        self.prepare(index)?;
        Ok(index)
    }

    fn prepare(&self, index: u32) -> Result<(), TunnelError> {
        engine::tunnel::prepare(&self.name)
            .map_err(|source| TunnelError::Sysctl { name: self.name.clone(), source: source.into() })?;
        self.set_checksum(index);
        Ok(())
    }

    fn adjust(&self, socket: &mut RtSocket, link: &Link, done: &mut Vec<String>) -> Result<(), TunnelError> {
        let (mut set, alias) = (SetLink::of(LinkRef::Index(link.index)), self.alias());
        if link.alias.is_none() {
            done.push(format!("tunnel {}: marked as ours", self.name));
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
            if link.mtu >= IPV6_LEAST {
                // One that was never up may not know it yet.
                let still = SetLink { no_link_local: true, ..SetLink::of(LinkRef::Index(link.index)) };
                socket.run(&Op::SetLink(still))?;
            }
        }
        if set.mtu.is_some() || set.mac.is_some() || set.up.is_some() || set.alias.is_some() {
            socket.run(&Op::SetLink(set))?;
        }
        self.prepare(link.index)
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
            warn!("tunnel {}: checksum offload cannot be switched {what}: {error}", self.name);
        }
    }
}
