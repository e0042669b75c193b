//! Paths to the pod networks of other nodes. The gateway address of a peer's block is asked from this node's gateway address, and
//! from a pod of this node if there is one: its packets also pass the forward chains.

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
use crate::commands::nodes::ask;

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
    /// With the device's own address, where it could be listed.
    Vxlan {
        link: String,
        port: Option<u16>,
        outer: Option<IpAddr>,
    },
}

/// One path for each of the peers and each family. A peer without a route has none: the agent reports why.
pub(super) fn to(node: &CheckedNode, peers: &[&str]) -> anyhow::Result<Vec<Path>> {
    if peers.is_empty() {
        return Ok(Vec::new());
    }
    let RoutesView { routes, .. } = ask::read(&node.client.get(api::ROUTES, ask::TIMEOUT)?)?;
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
    /// Bytes that the path adds to a packet. None if its packets do not go to addresses of this family.
    pub(super) fn header_to(&self, address: IpAddr) -> Option<u32> {
        let (outer, header) = match self.transport {
            PathTransport::Direct { .. } => (self.target, 0),
            PathTransport::Vxlan { outer, .. } => (outer?, mtu::overhead(outer?)),
        };
        (outer.is_ipv4() == address.is_ipv4()).then_some(header)
    }

    /// What is wrong with it. An error means that it could not be probed.
    pub(super) fn probe(&self, node: &CheckedNode) -> io::Result<Option<Finding>> {
        let ping = Ping { target: self.target, source: Some(self.source), size: None };
        match ping.echo() {
            PingResult::NotAsked(why) => return Err(why),
            PingResult::NotSent(why) => {
                let Self { peer, target, .. } = self;
                let what = format!("this node cannot send packets to {target} of node {peer}: {why}");
                return Err(io::Error::other(what));
            }
            PingResult::Silence => return Ok(Some(self.broken(&ping))),
            PingResult::Answered => {}
        }
        let Some((pod, netns)) = self.pod(node) else { return Ok(None) };
        let ping = Ping { source: None, ..ping };
        Ok(match netns.run(|| ping.echo()) {
            Ok(PingResult::Silence) => Some(self.not_forwarded(pod)),
            // The pod may have ended meanwhile.
            Ok(PingResult::Answered | PingResult::NotSent(_) | PingResult::NotAsked(_)) | Err(_) => None,
        })
    }

    /// A pod of this node with an address of the family, in a block of this node.
    fn pod<'a>(&self, node: &'a CheckedNode) -> Option<(&'a Attachment, NetNs)> {
        let is_own = |ip: IpAddr| {
            ip.is_ipv4() == self.source.is_ipv4() && node.blocks().any(|block| block.contains(&ip))
        };
        node.attachments.iter().filter(|pod| pod.ips().any(is_own)).find_map(|pod| {
            let netns = NetNs::open(FilePath::new(&pod.netns)).ok()?;
            // The path may lead to the namespace of another pod by now.
            (netns.cookie().ok() == pod.netns_cookie).then_some((pod, netns))
        })
    }

    fn broken(&self, ping: &Ping) -> Finding {
        let (how, check) = match &self.transport {
            PathTransport::Direct { link } => (
                format!("by the direct route over {link}"),
                "firewalls of both nodes and the network between them accept the subnets of pods".to_owned(),
            ),
            PathTransport::Vxlan { link, port, .. } => {
                let port =
                    port.map_or("the UDP port of the tunnel".to_owned(), |port| format!("UDP port {port}"));
                (
                    format!("through VXLAN tunnel {link}"),
                    format!("firewalls of both nodes and the network between them accept {port}"),
                )
            }
        };
        let Self { peer, target, .. } = self;
        self.finding(format!(
            "node {peer} answers, but its pod network does not: no answer from {target} {how}; check that {check}"
        ))
        .fix(ping.command())
    }

    fn not_forwarded(&self, pod: &Attachment) -> Finding {
        let (Self { peer, target, .. }, key) = (self, &pod.key);
        self.finding(format!(
            "the pod network of node {peer} answers this node, but not its pods: no answer from {target} to pod {key}; \
             check that the forward chains of this node accept the traffic of pods"
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
