use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use types::Mac;

use crate::header::{Header as _, LinkHeader};
use crate::kernel::{
    IFF_NOARP, IFF_PROMISC, IFF_RUNNING, IFF_UP, IFLA_BR_MCAST_SNOOPING, IFLA_BRPORT_MODE, IFLA_VXLAN_GROUP,
    IFLA_VXLAN_GROUP6, IFLA_VXLAN_ID, IFLA_VXLAN_LEARNING, IFLA_VXLAN_LINK, IFLA_VXLAN_LOCAL,
    IFLA_VXLAN_LOCAL6, IFLA_VXLAN_PORT,
};
use crate::wire::{attribute, attribute_at, attributes, read_text, read_u32};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// `None` for links without a MAC, such as `lo`.
    pub mac: Option<Mac>,
    pub mtu: u32,
    pub up: bool,
    /// The link is up and has a carrier.
    pub running: bool,
    /// As set by an operator. Packet captures do not count.
    pub promisc: bool,
    /// Whether ARP is enabled.
    pub arp: bool,
    pub master: Option<u32>,
    pub group: u32,
    /// The index of the other end of a veth, in the *peer's* namespace.
    pub peer: Option<u32>,
    pub alias: Option<String>,
    pub kind: Option<String>,
    /// Set for bridge ports.
    pub hairpin: Option<bool>,
    /// Set for VXLAN devices.
    pub vxlan: Option<Vxlan>,
}

/// The properties of a tunnel device. The kernel cannot change them after creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vxlan {
    pub vni: u32,
    pub port: u16,
    pub local: Option<IpAddr>,
    pub learning: bool,
    /// The destination of frames without an FDB entry: a multicast group, or a single node.
    pub group: Option<IpAddr>,
    /// The lower link.
    pub link: Option<u32>,
}

impl Link {
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let header = LinkHeader::parse(message)?;
        let mut link = Self {
            index: header.index,
            name: String::new(),
            mac: None,
            mtu: 0,
            up: header.flags & IFF_UP != 0,
            running: header.flags & IFF_RUNNING != 0,
            promisc: header.flags & IFF_PROMISC != 0,
            arp: header.flags & IFF_NOARP == 0,
            master: None,
            group: 0,
            peer: None,
            alias: None,
            kind: None,
            hairpin: None,
            vxlan: None,
        };
        for (kind, value) in attributes(LinkHeader::attributes(message)) {
            match kind {
                libc::IFLA_IFNAME => link.name = read_text(value),
                libc::IFLA_ADDRESS => link.mac = read_mac(value),
                libc::IFLA_MTU => link.mtu = read_u32(value)?,
                libc::IFLA_MASTER => link.master = read_u32(value).filter(|m| *m != 0),
                libc::IFLA_GROUP => link.group = read_u32(value)?,
                libc::IFLA_LINK => link.peer = read_u32(value).filter(|p| *p != 0),
                libc::IFLA_IFALIAS => link.alias = Some(read_text(value)).filter(|a| !a.is_empty()),
                libc::IFLA_LINKINFO => link.read_info(value),
                _ => {}
            }
        }
        Some(link)
    }

    fn read_info(&mut self, info: &[u8]) {
        self.kind = attribute(info, libc::IFLA_INFO_KIND).map(read_text);
        if self.kind.as_deref() == Some("vxlan") {
            self.vxlan = attribute(info, libc::IFLA_INFO_DATA).and_then(read_vxlan);
        }
        let slave_kind = attribute(info, libc::IFLA_INFO_SLAVE_KIND).map(read_text);
        if slave_kind.as_deref() == Some("bridge") {
            let mode = attribute_at(info, &[libc::IFLA_INFO_SLAVE_DATA, IFLA_BRPORT_MODE]);
            self.hairpin = mode.and_then(<[u8]>::first).map(|mode| *mode != 0);
        }
    }
}

/// Parses the message of a bridge.
pub(crate) fn snooping_of(message: &[u8]) -> Option<bool> {
    let info = attribute(LinkHeader::attributes(message), libc::IFLA_LINKINFO)?;
    if read_text(attribute(info, libc::IFLA_INFO_KIND)?) != "bridge" {
        return None;
    }
    let snooping = attribute_at(info, &[libc::IFLA_INFO_DATA, IFLA_BR_MCAST_SNOOPING])?;
    snooping.first().map(|on| *on != 0)
}

fn read_vxlan(data: &[u8]) -> Option<Vxlan> {
    let mut vxlan = Vxlan { vni: 0, port: 0, local: None, learning: false, group: None, link: None };
    let v4 = |value: &[u8]| Some(IpAddr::V4(Ipv4Addr::from(*value.first_chunk::<4>()?)));
    let v6 = |value: &[u8]| Some(IpAddr::V6(Ipv6Addr::from(*value.first_chunk::<16>()?)));
    for (kind, value) in attributes(data) {
        match kind {
            IFLA_VXLAN_ID => vxlan.vni = read_u32(value)?,
            IFLA_VXLAN_PORT => vxlan.port = u16::from_be_bytes(*value.first_chunk()?),
            IFLA_VXLAN_LOCAL => vxlan.local = v4(value),
            IFLA_VXLAN_LOCAL6 => vxlan.local = v6(value),
            IFLA_VXLAN_GROUP => vxlan.group = v4(value),
            IFLA_VXLAN_GROUP6 => vxlan.group = v6(value),
            IFLA_VXLAN_LEARNING => vxlan.learning = value.first().is_some_and(|on| *on != 0),
            IFLA_VXLAN_LINK => vxlan.link = read_u32(value).filter(|link| *link != 0),
            _ => {}
        }
    }
    Some(vxlan)
}

pub(super) fn read_mac(value: &[u8]) -> Option<Mac> {
    Mac::try_from(<[u8; 6]>::try_from(value).ok()?).ok()
}
