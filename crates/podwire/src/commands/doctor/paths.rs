//! Paths to the pod networks of other nodes. The gateway address of a peer's block is pinged from this node's gateway address, and
//! from a pod of this node, because packets of pods also pass the forward chains.

use std::io;
use std::net::IpAddr;
use std::path::Path as FilePath;

use api::{RouteTransport, RouteView, RoutesView};
use engine::state::Attachment;
use ipam::block_gateway;
use netlink::NetNs;
use types::{Code, Finding};

use super::mtu;
use super::node::CheckedNode;
use super::ping::{Ping, PingResult};
use crate::commands::nodes::client;

/// The path to a block of a peer.
pub(super) struct Path {
    pub(super) peer: String,
    /// The peer's gateway address in the block.
    target: IpAddr,
    /// This node's gateway address of the same family.
    source: IpAddr,
    transport: PathTransport,
}

enum PathTransport {
    Direct {
        link: String,
    },
    /// Port and local address are None if the device could not be listed.
    Vxlan {
        link: String,
        port: Option<u16>,
        outer: Option<IpAddr>,
    },
}

/// One path for each peer and family. A peer without a route has no path; the agent reports the reason.
pub(super) fn to(node: &CheckedNode, peers: &[&str]) -> anyhow::Result<Vec<Path>> {
    if peers.is_empty() {
        return Ok(Vec::new());
    }
    let RoutesView { routes, .. } = client::read(&node.client.get(api::ROUTES, client::TIMEOUT)?)?;
    let mut paths: Vec<Path> = Vec::new();
    for route in routes {
        let is_known = |path: &Path| {
            Some(&path.peer) == route.node.as_ref() && path.target.is_ipv4() == route.block.addr().is_ipv4()
        };
        let is_wanted = route.node.as_deref().is_some_and(|name| peers.contains(&name));
        if is_wanted && !paths.iter().any(is_known) {
            paths.extend(path(node, route));
        }
    }
    Ok(paths)
}

fn path(node: &CheckedNode, route: RouteView) -> Option<Path> {
    let link = route.link?;
    let transport = match route.transport {
        RouteTransport::Direct => PathTransport::Direct { link },
        RouteTransport::Vxlan => {
            let device = node.tunnels().find(|tunnel| tunnel.name == link).and_then(|device| device.vxlan);
            let (port, outer) = (device.map(|vxlan| vxlan.port), device.and_then(|vxlan| vxlan.local));
            PathTransport::Vxlan { link, port, outer }
        }
        RouteTransport::None | RouteTransport::Unknown => return None,
    };
    let own = node.blocks().find(|block| block.addr().is_ipv4() == route.block.addr().is_ipv4())?;
    Some(Path {
        peer: route.node?,
        target: block_gateway(&route.block)?,
        source: block_gateway(&own)?,
        transport,
    })
}

impl Path {
    /// Bytes that the transport adds to a packet. None if the transport does not use addresses of this family.
    pub(super) fn header_to(&self, address: IpAddr) -> Option<u32> {
        let (outer, header) = match self.transport {
            PathTransport::Direct { .. } => (self.target, 0),
            PathTransport::Vxlan { outer, .. } => (outer?, mtu::overhead(outer?)),
        };
        (outer.is_ipv4() == address.is_ipv4()).then_some(header)
    }

    /// The problem of the path, if there is one. An error means that the probe failed.
    pub(super) fn probe(&self, node: &CheckedNode) -> io::Result<Option<Finding>> {
        let ping = Ping { target: self.target, source: Some(self.source), size: None };
        match ping.echo() {
            PingResult::NotRun(error) => return Err(error),
            PingResult::NotSent(reason) => {
                let Self { peer, target, .. } = self;
                let message = format!("this node cannot send packets to {target} of node {peer}: {reason}");
                return Err(io::Error::other(message));
            }
            PingResult::NoReply => return Ok(Some(self.unreachable(&ping))),
            PingResult::Replied => {}
        }
        let Some((pod, netns)) = self.pod(node) else { return Ok(None) };
        let ping = Ping { source: None, ..ping };
        Ok(match netns.run(|| ping.echo()) {
            Ok(PingResult::NoReply) => Some(self.not_forwarded(pod)),
            // The pod may have ended during the probe.
            Ok(PingResult::Replied | PingResult::NotSent(_) | PingResult::NotRun(_)) | Err(_) => None,
        })
    }

    /// A pod with an address of the family in a block of this node.
    fn pod<'a>(&self, node: &'a CheckedNode) -> Option<(&'a Attachment, NetNs)> {
        let is_own = |ip: IpAddr| {
            ip.is_ipv4() == self.source.is_ipv4() && node.blocks().any(|block| block.contains(&ip))
        };
        node.attachments.iter().filter(|pod| pod.ips().any(is_own)).find_map(|pod| {
            let netns = NetNs::open(FilePath::new(&pod.netns)).ok()?;
            // The path may name the namespace of a newer pod.
            (netns.cookie().ok() == pod.netns_cookie).then_some((pod, netns))
        })
    }

    fn unreachable(&self, ping: &Ping) -> Finding {
        let (transport, check) = match &self.transport {
            PathTransport::Direct { link } => (
                format!("over the direct route on {link}"),
                "the firewalls of both nodes and the network between them accept the pod subnets".to_owned(),
            ),
            PathTransport::Vxlan { link, port, .. } => {
                let port =
                    port.map_or("the UDP port of the tunnel".to_owned(), |port| format!("UDP port {port}"));
                (
                    format!("over VXLAN tunnel {link}"),
                    format!("the firewalls of both nodes and the network between them accept {port}"),
                )
            }
        };
        let Self { peer, target, .. } = self;
        self.finding(format!(
            "node {peer} is reachable, but its pod network is not: no reply from {target} {transport}; check that {check}"
        ))
        .fix(ping.command())
    }

    fn not_forwarded(&self, pod: &Attachment) -> Finding {
        let (Self { peer, target, .. }, key) = (self, &pod.key);
        self.finding(format!(
            "the pod network of node {peer} is reachable from this node, but not from its pods: no reply from {target} to \
             pod {key}; check that the forward chains of this node accept pod traffic"
        ))
        .fix("nft list ruleset")
    }

    fn finding(&self, message: String) -> Finding {
        Finding::new(Code::PeerUnreachable, format_args!("node {}", self.peer), message)
    }
}

#[cfg(test)]
pub(super) fn sample(peer: &str) -> Path {
    let [target, source] = [2, 1].map(|number| IpAddr::from([10, 83, number, 1]));
    let outer = Some(IpAddr::from([192, 0, 2, 1]));
    let transport = PathTransport::Vxlan { link: "pwvx4".to_owned(), port: Some(4789), outer };
    Path { peer: peer.to_owned(), target, source, transport }
}
