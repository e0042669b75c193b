//! Do packets fit: pods' into the tunnel, the tunnel's onto the link below?

use std::net::IpAddr;

use netlink::{Link, RouteFilter, RtSocket};
use types::{Code, Finding, Fix};

use super::finding::Check;
use super::node::Node;

const CHECK: &str = "MTU";
/// What VXLAN puts around a packet: Ethernet 14, VXLAN 8, UDP 8, and the outer IP header.
const AROUND: u32 = 14 + 8 + 8;

pub(super) fn overhead(outer: IpAddr) -> u32 {
    AROUND + if outer.is_ipv4() { 20 } else { 40 }
}

pub(super) fn fits(node: &Node) -> Vec<Check> {
    let (largest, uplink) = (node.attachments.iter().map(|attachment| attachment.mtu).max(), uplink(node));
    let mut findings: Vec<Check> =
        node.tunnels().filter_map(|tunnel| too_large(node, tunnel, uplink)).collect();
    let narrowest = node.tunnels().map(|tunnel| (&tunnel.name, tunnel.mtu)).min_by_key(|(_, mtu)| *mtu);
    let narrowest = narrowest.or(uplink.map(|link| (&link.name, link.mtu)));
    if let (Some(pods), Some((name, mtu))) = (largest, narrowest)
        && pods > mtu
    {
        if node.has_condition(Code::NodeAddressMissing) {
            // The tunnel of the missing address may be the one that the pods fit.
            let message = format!(
                "pods send up to {pods} bytes, and {name} carries {mtu}, while an address of this node is missing"
            );
            findings.push(Check::unknown(CHECK, message));
            return findings;
        }
        let message = format!(
            "pods send up to {pods} bytes, and {name} carries {mtu}: network.mtu must be at most {mtu}"
        );
        findings.push(Check::problem(CHECK, Finding::new(Code::MtuTooLarge, "pods", message)));
    }
    if findings.is_empty() {
        let carried = narrowest.map_or(String::new(), |(name, mtu)| format!("; {name} carries {mtu}"));
        let pods = largest.map_or("no pods yet".to_owned(), |pods| format!("pods send up to {pods} bytes"));
        findings.push(Check::ok(CHECK, format!("{pods}{carried}")));
    }
    findings
}

fn too_large(node: &Node, tunnel: &Link, uplink: Option<&Link>) -> Option<Check> {
    let settings = tunnel.vxlan?;
    let below = settings.link.and_then(|index| node.links.iter().find(|link| link.index == index));
    let below = below.or(uplink)?;
    let most = below.mtu.saturating_sub(overhead(settings.local?));
    (tunnel.mtu > most).then(|| {
        let (name, mtu, link) = (&tunnel.name, tunnel.mtu, &below.name);
        let what =
            format!("tunnel {name} lets {mtu} bytes in, of which {most} fit on {link}: the rest is lost");
        let found = Finding::new(Code::MtuTooLarge, format_args!("link {name}"), what);
        Check::problem(
            CHECK,
            found.fix(Fix::words(["ip", "link", "set", "dev", name, "mtu", &most.to_string()])),
        )
    })
}

/// The link of the default route.
pub(super) fn uplink(node: &Node) -> Option<&Link> {
    let routes = RtSocket::open().and_then(|mut host| host.routes(RouteFilter::default())).ok()?;
    let index = routes.iter().filter(|route| route.dst.prefix_len() == 0).find_map(|route| route.link)?;
    node.links.iter().find(|link| link.index == index)
}
