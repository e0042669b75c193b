use netlink_packet_route::link::{LinkFlags, LinkHeader};
use types::Mac;

use super::after;
use crate::kernel::IFLA_BRPORT_MODE;
use crate::wire::{attribute, attribute_at, attributes, read_text, read_u32};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// `None` for links without one, such as `lo`.
    pub mac: Option<Mac>,
    pub mtu: u32,
    pub up: bool,
    /// Up, and the other end is up too.
    pub running: bool,
    /// As set by an operator; a packet capture does not count.
    pub promisc: bool,
    pub master: Option<u32>,
    /// The other end of a veth, as numbered in *its* namespace.
    pub peer: Option<u32>,
    pub alias: Option<String>,
    pub kind: Option<String>,
    /// Of a bridge port.
    pub hairpin: Option<bool>,
}

impl Link {
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let header = LinkHeader::parse(message).ok()?;
        let mut link = Self {
            index: header.index,
            name: String::new(),
            mac: None,
            mtu: 0,
            up: header.flags.contains(LinkFlags::Up),
            running: header.flags.contains(LinkFlags::Running),
            promisc: header.flags.contains(LinkFlags::Promisc),
            master: None,
            peer: None,
            alias: None,
            kind: None,
            hairpin: None,
        };
        for (kind, value) in attributes(after::<16>(message)) {
            match kind {
                libc::IFLA_IFNAME => link.name = read_text(value),
                libc::IFLA_ADDRESS => link.mac = read_mac(value),
                libc::IFLA_MTU => link.mtu = read_u32(value)?,
                libc::IFLA_MASTER => link.master = read_u32(value).filter(|m| *m != 0),
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
        let slave_kind = attribute(info, libc::IFLA_INFO_SLAVE_KIND).map(read_text);
        if slave_kind.as_deref() == Some("bridge") {
            let mode = attribute_at(info, &[libc::IFLA_INFO_SLAVE_DATA, IFLA_BRPORT_MODE]);
            self.hairpin = mode.and_then(<[u8]>::first).map(|mode| *mode != 0);
        }
    }
}

pub(super) fn read_mac(value: &[u8]) -> Option<Mac> {
    Mac::try_from(<[u8; 6]>::try_from(value).ok()?).ok()
}
