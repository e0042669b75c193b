//! A pod of the floor measurement (`floor.rs`), and the netlink messages of its ADD.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use netlink::{AddAddress, LinkRef, Mode, NetNs, Op, Route, RtSocket, SetLink, Veth};
use types::{AttachmentKey, IfName};

pub(crate) const MTU: u32 = 1500;

pub(crate) struct FloorPod {
    pub(crate) key: AttachmentKey,
    host_link: IfName,
    alias: String,
    netns: NetNs,
    pub(crate) socket: RtSocket,
    /// Addresses with the subnet's prefix length, and their gateways.
    pub(crate) addresses: Vec<(IpNet, IpAddr)>,
    /// Index of the host end while the pod is attached.
    pub(crate) attached: Option<u32>,
}

impl FloorPod {
    pub(crate) fn open(key: AttachmentKey, netns: &Path, addresses: Vec<(IpNet, IpAddr)>) -> Result<Self> {
        let netns = NetNs::open(netns)?;
        let socket = RtSocket::open_in(&netns)?;
        let (host_link, alias) = (key.host_link(0), key.alias());
        Ok(Self { key, host_link, alias, netns, socket, addresses, attached: None })
    }

    pub(crate) fn add(&mut self, host: &mut RtSocket, bridge: u32) -> Result<Duration> {
        let start = Instant::now();
        host.run_every(&[
            Op::AddVeth(Veth {
                host: &self.host_link,
                host_mac: self.key.host_mac(),
                mtu: MTU,
                master: Some(bridge),
                group: 0,
                peer: &self.key.ifname,
                peer_mac: self.key.pod_mac(),
                peer_ns: self.netns.fd(),
                up: false,
            }),
            Op::SetLink(SetLink {
                alias: Some(&self.alias),
                no_link_local: true,
                hairpin: Some(true),
                ..SetLink::of(LinkRef::Name(&self.host_link))
            }),
            Op::SetLink(SetLink { up: Some(true), ..SetLink::of(LinkRef::Name(&self.host_link)) }),
        ])?;
        let link = self.socket.link(&self.key.ifname)?.context("the new link is missing")?;
        self.socket.run_every(&pod_ops(&self.addresses, link.index))?;
        let took = start.elapsed();
        self.attached = link.peer;
        Ok(took)
    }
}

/// The operations in the namespace of the pod: addresses, link up, default routes.
fn pod_ops(addresses: &[(IpNet, IpAddr)], link: u32) -> Vec<Op<'static>> {
    let address = |&(addr, _): &(IpNet, IpAddr)| {
        let broadcast = match addr {
            IpNet::V4(v4) => Some(v4.broadcast()),
            IpNet::V6(_) => None,
        };
        Op::AddAddress(AddAddress {
            link,
            addr,
            nodad: true,
            broadcast,
            no_subnet_route: false,
            mode: Mode::Exclusive,
        })
    };
    let default = |&(_, gateway): &(IpNet, IpAddr)| {
        let any = match gateway {
            IpAddr::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
            IpAddr::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
        };
        let route = Route { gateway: Some(gateway), link: Some(link), ..Route::to(any) };
        Op::AddRoute { route, mode: Mode::Replace }
    };
    let up = Op::SetLink(SetLink { up: Some(true), ..SetLink::of(LinkRef::Index(link)) });
    addresses.iter().map(address).chain([up]).chain(addresses.iter().map(default)).collect()
}
