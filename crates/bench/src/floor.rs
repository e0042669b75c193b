//! The raw netlink floor: the kernel's part of an ADD in mode `bridge` and of a DEL, with everything around it gone. No
//! process starts, sockets are open, nothing is recorded, filtered or protected.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use netlink::{AddAddress, AddBridge, LinkRef, Mode, NetNs, Op, Route, RtSocket, SetLink, Veth};
use types::{AttachmentKey, Digest, IfName, Mac};

use crate::networks::Network;
use crate::site::Seat;

const MTU: u32 = 1500;

pub(crate) struct Floor {
    host: RtSocket,
    bridge: u32,
    pods: Vec<FloorPod>,
}

struct FloorPod {
    key: AttachmentKey,
    host_link: IfName,
    alias: String,
    netns: NetNs,
    socket: RtSocket,
    /// With the subnet's prefix length, and the gateway of each.
    addresses: Vec<(IpNet, IpAddr)>,
    /// The host end, while it is attached.
    attached: Option<u32>,
}

impl Floor {
    pub(crate) fn make(seat: &Seat, network: Network) -> Result<Self> {
        let node = NetNs::open(seat.node.path())?;
        let mut host = RtSocket::open_in(&node)?;
        let bridge = make_bridge(&mut host, network)?;
        let gateways = network.gateways()?;
        let mut pods = Vec::with_capacity(seat.pods.len());
        for (number, pod) in seat.pods.iter().enumerate() {
            let key = AttachmentKey {
                network: network.name()?,
                container: pod.id().try_into()?,
                ifname: IfName::try_from("eth0")?,
            };
            let netns = NetNs::open(pod.netns_path())?;
            let socket = RtSocket::open_in(&netns)?;
            let addresses =
                gateways.iter().map(|gateway| (nth_after(*gateway, number), gateway.addr())).collect();
            let (host_link, alias) = (key.host_link(0), key.alias());
            pods.push(FloorPod { key, host_link, alias, netns, socket, addresses, attached: None });
        }
        Ok(Self { host, bridge, pods })
    }

    pub(crate) fn add(&mut self, number: usize) -> Result<Duration> {
        let pod = &mut self.pods[number];
        let start = Instant::now();
        self.host.run_every(&[
            Op::AddVeth(Veth {
                host: &pod.host_link,
                host_mac: pod.key.host_mac(),
                mtu: MTU,
                master: Some(self.bridge),
                peer: &pod.key.ifname,
                peer_mac: pod.key.pod_mac(),
                peer_ns: pod.netns.fd(),
            }),
            Op::SetLink(SetLink {
                alias: Some(&pod.alias),
                no_link_local: true,
                hairpin: Some(true),
                ..SetLink::of(LinkRef::Name(&pod.host_link))
            }),
        ])?;
        let link = pod.socket.link(&pod.key.ifname)?.context("the new link is not there")?;
        pod.socket.run_every(&inside(&pod.addresses, link.index))?;
        let took = start.elapsed();
        pod.attached = link.peer;
        Ok(took)
    }

    pub(crate) fn del(&mut self, number: usize) -> Result<Duration> {
        let link = self.pods[number].attached.take().context("the pod was not attached")?;
        let start = Instant::now();
        self.host.run(&Op::DelLink(link))?;
        Ok(start.elapsed())
    }
}

/// Addresses, up, default routes, in one send.
fn inside(addresses: &[(IpNet, IpAddr)], link: u32) -> Vec<Op<'static>> {
    let address = |&(addr, _): &(IpNet, IpAddr)| {
        let broadcast = match addr {
            IpNet::V4(v4) => Some(v4.broadcast()),
            IpNet::V6(_) => None,
        };
        Op::AddAddress(AddAddress { link, addr, nodad: true, broadcast, mode: Mode::Exclusive })
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

fn make_bridge(host: &mut RtSocket, network: Network) -> Result<u32> {
    let name = network.bridge()?;
    let mac = Mac::local(Digest::of(&["bridge mac", name.as_str()]).first5());
    host.run(&Op::AddBridge(AddBridge { name: &name, mac, mtu: MTU, up: true }))?;
    let bridge = host.link(&name)?.context("the new bridge is not there")?.index;
    for addr in network.gateways()? {
        let mode = Mode::Exclusive;
        host.run(&Op::AddAddress(AddAddress { link: bridge, addr, nodad: true, broadcast: None, mode }))?;
    }
    Ok(bridge)
}

/// The address so many places after the gateway, not counting its next neighbour.
fn nth_after(gateway: IpNet, number: usize) -> IpNet {
    let offset = u32::try_from(number).unwrap_or(0) + 1;
    match gateway {
        IpNet::V4(net) => {
            let address = net.addr().to_bits().wrapping_add(offset).into();
            ipnet::Ipv4Net::new(address, net.prefix_len()).map_or(gateway, IpNet::V4)
        }
        IpNet::V6(net) => {
            let address = net.addr().to_bits().wrapping_add(u128::from(offset)).into();
            ipnet::Ipv6Net::new(address, net.prefix_len()).map_or(gateway, IpNet::V6)
        }
    }
}
