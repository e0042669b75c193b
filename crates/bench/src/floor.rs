//! The raw netlink floor: only the netlink messages of an ADD in mode `bridge` and of a DEL. No process is started, sockets are
//! open, and nothing is recorded, filtered or protected. In a burst each worker has one socket, and a DEL ends when the link is
//! removed.
//!
//! The spawned floor sends the same messages of an ADD from a process that is started for it, as a runtime starts a plugin: the
//! program `podwire-floor` (`floor/main.rs`).

mod pod;
mod spawned;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use ipnet::IpNet;
use netlink::{AddAddress, AddBridge, Mode, NetNs, Op, RtSocket};
use testkit::wait_until;
use types::{AttachmentKey, Digest, IfName, Mac};

use self::pod::{FloorPod, MTU};
use crate::contender::Deleted;
use crate::networks::BenchNetwork;
use crate::site::BenchNode;

/// Much longer than the kernel needs.
const GRACE: Duration = Duration::from_secs(10);

pub(crate) struct Floor {
    node: NetNs,
    host: RtSocket,
    bridge: u32,
    pods: Vec<FloorPod>,
}

impl Floor {
    pub(crate) fn make(bench_node: &BenchNode, network: BenchNetwork) -> Result<Self> {
        let node = NetNs::open(bench_node.node.path())?;
        let mut host = RtSocket::open_in(&node)?;
        let bridge = make_bridge(&mut host, network)?;
        let gateways = network.gateways()?;
        let mut pods = Vec::with_capacity(bench_node.pods.len());
        for (number, pod) in bench_node.pods.iter().enumerate() {
            let key = AttachmentKey {
                network: network.name()?,
                container: pod.id().try_into()?,
                ifname: IfName::try_from("eth0")?,
            };
            let addresses =
                gateways.iter().map(|gateway| (nth_after(*gateway, number), gateway.addr())).collect();
            pods.push(FloorPod::open(key, pod.netns_path(), addresses)?);
        }
        Ok(Self { node, host, bridge, pods })
    }

    pub(crate) fn add(&mut self, number: usize) -> Result<Duration> {
        self.pods[number].add(&mut self.host, self.bridge)
    }

    /// Like `add`, in a new process.
    pub(crate) fn add_spawned(&mut self, bench_node: &BenchNode, number: usize) -> Result<Duration> {
        let pod = &mut self.pods[number];
        let add = spawned::SpawnedAdd {
            key: pod.key.clone(),
            netns: bench_node.pods[number].netns_path().to_owned(),
            addresses: pod.addresses.clone(),
            bridge: self.bridge,
        };
        let took = bench_node.node.enter(|| add.run())??;
        let link = pod.socket.link(&pod.key.ifname)?.context("the new link is missing")?;
        pod.attached = link.peer;
        Ok(took)
    }

    pub(crate) fn del(&mut self, number: usize) -> Result<Deleted> {
        let link = detached(&mut self.pods[number])?;
        let start = Instant::now();
        let (deleted, gone) = self.host.delete_link(link, || start.elapsed());
        deleted?;
        Ok(Deleted { took: start.elapsed(), gone: Some(gone) })
    }

    /// Adds and removes all pods in parallel. Returns ADDs per second and DELs per second.
    pub(crate) fn burst(&mut self, workers: usize) -> Result<(f64, f64)> {
        let bridge = self.bridge;
        let add = self.in_parallel(workers, |pod, host| pod.add(host, bridge).map(drop))?;
        let del = self.in_parallel(workers, |pod, _| Ok(netlink::delete_link_early(detached(pod)?)?))?;
        // Threads that wait for the kernel's grace periods would disturb the next contender.
        wait_until("completion of all deletions", GRACE, || Ok(netlink::pending_deletions() == 0))?;
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
            // The other workers wait at the barrier, even if this one failed.
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

/// The link to delete.
fn detached(pod: &mut FloorPod) -> Result<u32> {
    pod.attached.take().context("the pod was not attached")
}

/// Creates the bridge or uses the existing one, because a network may have several cases.
fn make_bridge(host: &mut RtSocket, network: BenchNetwork) -> Result<u32> {
    let name = network.bridge()?;
    if let Some(bridge) = host.link(&name)? {
        return Ok(bridge.index);
    }
    let mac = Mac::local(Digest::of(&["bridge mac", name.as_str()]).first5());
    host.run(&Op::AddBridge(AddBridge { name: &name, mac, mtu: MTU, up: true }))?;
    let bridge = host.link(&name)?.context("the new bridge is missing")?.index;
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

/// The address with this offset after the gateway; the first one is skipped.
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
