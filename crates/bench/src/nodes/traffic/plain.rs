//! The same topology created by `ip`: two hosts on the same underlay, a veth to a pod on each, routes, and optionally a tunnel.

use std::fs;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use testkit::{Cluster, LabStore, Ns, Plan, Pod, TransportMode, ping};

use super::NamespacePair;

const FORWARDING: [&str; 2] = ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"];
/// MTU inside the tunnel for an underlay MTU of 1500 over IPv4.
const INSIDE: u32 = 1450;
/// Numbers of the hosts.
const HOSTS: [usize; 2] = [1, 2];

/// Whether the hosts track connections. The kernel does so if a rule matches on the connection state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tracking {
    On,
    Off,
}

const ONE_RULE: &str = "table inet tracked { chain forward { type filter hook forward priority 0; ct state established accept; }; }";

pub(super) struct Plain {
    pods: Vec<Pod>,
    _hosts: Cluster,
}

impl Plain {
    pub(super) fn make(transport: TransportMode, tracking: Tracking) -> Result<Self> {
        let plan = Plan { nodes: HOSTS.len(), store: LabStore::Alone, ..Plan::default() };
        let hosts = Cluster::hosts(&format!("plain-{transport:?}").to_lowercase(), &plan)?;
        let mtu = if transport == TransportMode::Vxlan { INSIDE } else { plan.mtu };
        let mut pods = Vec::new();
        for (here, there) in [(HOSTS[0], HOSTS[1]), (HOSTS[1], HOSTS[0])] {
            let node = hosts.node(&format!("n{here}"))?;
            let forwarding = node.enter(|| FORWARDING.iter().try_for_each(|path| fs::write(path, "1")))?;
            forwarding.with_context(|| format!("cannot turn on forwarding in {}", node.name()))?;
            let pod = node.pod("pod")?;
            wire(node, &pod, (here, mtu))?;
            match transport {
                TransportMode::Vxlan => tunnel(node, here, there)?,
                TransportMode::Direct | TransportMode::Auto => route(node, there)?,
            }
            if tracking == Tracking::On {
                node.sh(&["nft", ONE_RULE])?;
            }
            pods.push(pod);
        }
        let plain = Self { pods, _hosts: hosts };
        for v4 in [true, false] {
            let pair = plain.pair(v4)?;
            // The first packet waits for neighbour resolution.
            ping(&pair.from, pair.address, 2)?;
        }
        Ok(plain)
    }

    pub(super) fn pair(&self, v4: bool) -> Result<NamespacePair> {
        let [from, to] = self.pods.as_slice() else { anyhow::bail!("two pods are needed") };
        let text = if v4 { format!("10.42.{}.2", HOSTS[1]) } else { format!("fd42:0:0:{}::2", HOSTS[1]) };
        let address: IpAddr = text.parse()?;
        Ok(NamespacePair { from: (**from).clone(), to: (**to).clone(), address, port: 0 })
    }
}

fn ip(ns: &Ns, line: &str) -> Result<()> {
    let argv: Vec<&str> = ["ip"].into_iter().chain(line.split(' ')).collect();
    ns.sh(&argv).map(drop)
}

fn wire(node: &Ns, pod: &Pod, (here, mtu): (usize, u32)) -> Result<()> {
    let inside = pod.name();
    ip(node, &format!("link add pod0 mtu {mtu} type veth peer name eth0 mtu {mtu} netns {inside}"))?;
    for (ns, dev, host) in [(node, "pod0", 1), (&**pod, "eth0", 2)] {
        ip(ns, &format!("addr add 10.42.{here}.{host}/24 dev {dev}"))?;
        ip(ns, &format!("addr add fd42:0:0:{here}::{host}/64 dev {dev} nodad"))?;
        ip(ns, &format!("link set {dev} up"))?;
    }
    ip(pod, &format!("route add default via 10.42.{here}.1"))?;
    ip(pod, &format!("route add default via fd42:0:0:{here}::1"))
}

fn route(node: &Ns, there: usize) -> Result<()> {
    ip(node, &format!("route add 10.42.{there}.0/24 via 10.199.1.{there}"))?;
    ip(node, &format!("route add fd42:0:0:{there}::/64 via fd99:1::{there}"))
}

/// Without learning; the forwarding entries are static.
fn tunnel(node: &Ns, here: usize, there: usize) -> Result<()> {
    let mac = |host: usize| format!("02:00:00:00:42:{host:02x}");
    let (local_mac, remote_mac) = (mac(here), mac(there));
    ip(
        node,
        &format!(
            "link add vx0 address {local_mac} mtu {INSIDE} type vxlan id 42 local 10.199.1.{here} dstport 4789 nolearning"
        ),
    )?;
    ip(node, &format!("addr add fe80::{here}/64 dev vx0 nodad"))?;
    ip(node, "link set vx0 up")?;
    let remote = format!("10.199.1.{there}");
    node.sh(&["bridge", "fdb", "add", &remote_mac, "dev", "vx0", "dst", &remote])?;
    ip(node, &format!("neigh add 10.42.{there}.0 lladdr {remote_mac} dev vx0 nud permanent"))?;
    ip(node, &format!("route add 10.42.{there}.0/24 via 10.42.{there}.0 dev vx0 onlink"))?;
    ip(node, &format!("neigh add fe80::{there} lladdr {remote_mac} dev vx0 nud permanent"))?;
    ip(node, &format!("route add fd42:0:0:{there}::/64 via fe80::{there} dev vx0"))
}
