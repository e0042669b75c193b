//! The raw netlink floor: the kernel's part of an ADD in mode `bridge` and of a DEL, with everything around it gone. No
//! process starts, sockets are open, nothing is recorded, filtered or protected. In a burst every worker has a socket of
//! its own, and a DEL ends when the link is gone.

use std::net::IpAddr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use ipnet::IpNet;
use netlink::{AddAddress, AddBridge, LinkRef, Mode, NetNs, Op, Route, RtSocket, SetLink, Veth};
use testkit::wait_until;
use types::{AttachmentKey, Digest, IfName, Mac};

use crate::lane::Deleted;
use crate::networks::BenchNetwork;
use crate::site::Seat;

const MTU: u32 = 1500;
/// Much longer than the kernel takes.
const GRACE: Duration = Duration::from_secs(10);

pub(crate) struct Floor {
    node: NetNs,
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
    pub(crate) fn make(seat: &Seat, network: BenchNetwork) -> Result<Self> {
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
        Ok(Self { node, host, bridge, pods })
    }

    pub(crate) fn add(&mut self, number: usize) -> Result<Duration> {
        self.pods[number].add(&mut self.host, self.bridge)
    }

    pub(crate) fn del(&mut self, number: usize) -> Result<Deleted> {
        let link = self.pods[number].detached()?;
        let start = Instant::now();
        let (deleted, gone) = self.host.delete_link(link, || start.elapsed());
        deleted?;
        Ok(Deleted { took: start.elapsed(), gone: Some(gone) })
    }

    /// All pods at once, by so many workers: ADDs a second, then DELs a second.
    pub(crate) fn burst(&mut self, workers: usize) -> Result<(f64, f64)> {
        let bridge = self.bridge;
        let add = self.in_parallel(workers, |pod, host| pod.add(host, bridge).map(drop))?;
        let del = self.in_parallel(workers, |pod, _| Ok(netlink::delete_link_early(pod.detached()?)?))?;
        // The threads that sit out the kernel's grace periods would disturb whoever is next.
        wait_until("the end of all deletions", GRACE, || Ok(netlink::pending_deletions() == 0))?;
        Ok((add, del))
    }

    /// Pods per second.
    fn in_parallel(
        &mut self,
        workers: usize,
        work: impl Fn(&mut FloorPod, &mut RtSocket) -> Result<()> + Sync,
    ) -> Result<f64> {
        let count = self.pods.len();
        let shares: Vec<_> = self.pods.chunks_mut(count.div_ceil(workers)).collect();
        let (node, work, ready) = (&self.node, &work, &Barrier::new(shares.len() + 1));
        let worker = |share: &mut [FloorPod]| -> Result<()> {
            let host = RtSocket::open_in(node);
            // The others wait for everybody, also for one who cannot begin.
            ready.wait();
            let mut host = host?;
            node.run(|| share.iter_mut().try_for_each(|pod| work(pod, &mut host)))?
        };
        let (took, ended) = std::thread::scope(|scope| {
            let threads: Vec<_> = shares.into_iter().map(|share| scope.spawn(|| worker(share))).collect();
            ready.wait();
            let start = Instant::now();
            let ended: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            (start.elapsed(), ended)
        });
        for thread in ended {
            thread.map_err(|_| anyhow!("a worker panicked"))??;
        }
        Ok(count as f64 / took.as_secs_f64())
    }
}

impl FloorPod {
    fn add(&mut self, host: &mut RtSocket, bridge: u32) -> Result<Duration> {
        let start = Instant::now();
        host.run_every(&[
            Op::AddVeth(Veth {
                host: &self.host_link,
                host_mac: self.key.host_mac(),
                mtu: MTU,
                master: Some(bridge),
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
        let link = self.socket.link(&self.key.ifname)?.context("the new link is not there")?;
        self.socket.run_every(&inside(&self.addresses, link.index))?;
        let took = start.elapsed();
        self.attached = link.peer;
        Ok(took)
    }

    /// The link to delete.
    fn detached(&mut self) -> Result<u32> {
        self.attached.take().context("the pod was not attached")
    }
}

/// Addresses, up, default routes, in one send.
fn inside(addresses: &[(IpNet, IpAddr)], link: u32) -> Vec<Op<'static>> {
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

/// Or finds it: a network may have more than one case.
fn make_bridge(host: &mut RtSocket, network: BenchNetwork) -> Result<u32> {
    let name = network.bridge()?;
    if let Some(bridge) = host.link(&name)? {
        return Ok(bridge.index);
    }
    let mac = Mac::local(Digest::of(&["bridge mac", name.as_str()]).first5());
    host.run(&Op::AddBridge(AddBridge { name: &name, mac, mtu: MTU, up: true }))?;
    let bridge = host.link(&name)?.context("the new bridge is not there")?.index;
    for addr in network.gateways()? {
        let mode = Mode::Exclusive;
        host.run(&Op::AddAddress(AddAddress {
            link: bridge,
            addr,
            nodad: true,
            broadcast: None,
            no_subnet_route: false,
            mode,
        }))?;
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
