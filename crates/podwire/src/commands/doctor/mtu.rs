//! Do packets fit: pods' into the tunnel, the tunnel's onto the link below?

use std::net::IpAddr;

use netlink::{Link, Route, RouteFilter, RtSocket};
use types::{Code, Finding, Fix, PEER_PROTOCOL};

use super::finding::Check;
use super::node::CheckedNode;

const CHECK: &str = "MTU";
/// What VXLAN puts around a packet: Ethernet 14, VXLAN 8, UDP 8, and the outer IP header.
const AROUND: u32 = 14 + 8 + 8;

pub(super) fn overhead(outer: IpAddr) -> u32 {
    AROUND + if outer.is_ipv4() { 20 } else { 40 }
}

pub(super) fn fits(node: &CheckedNode) -> Vec<Check> {
    let routes = match RtSocket::open().and_then(|mut host| host.routes(RouteFilter::default())) {
        Ok(routes) => routes,
        Err(error) => return vec![Check::unknown(CHECK, format!("the routes cannot be listed: {error}"))],
    };
    let (largest, uplink) =
        (node.attachments.iter().map(|attachment| attachment.mtu).max(), uplink(node, &routes));
    let mut findings: Vec<Check> =
        node.tunnels().filter_map(|tunnel| too_large(node, tunnel, uplink)).collect();
    let narrowest = narrowest(node.tunnels(), &routes).or(uplink).map(|link| (&link.name, link.mtu));
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

fn too_large(node: &CheckedNode, tunnel: &Link, uplink: Option<&Link>) -> Option<Check> {
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

/// Of the tunnels that lead to peers now. One that was needed while an address was missing has no routes.
fn narrowest<'a>(tunnels: impl Iterator<Item = &'a Link>, routes: &[Route]) -> Option<&'a Link> {
    let is_used = |tunnel: &&Link| {
        routes.iter().any(|route| route.protocol == PEER_PROTOCOL && route.link == Some(tunnel.index))
    };
    tunnels.filter(is_used).min_by_key(|tunnel| tunnel.mtu)
}

/// The link of the default route.
fn uplink<'a>(node: &'a CheckedNode, routes: &[Route]) -> Option<&'a Link> {
    let index = routes.iter().filter(|route| route.dst.prefix_len() == 0).find_map(|route| route.link)?;
    node.links.iter().find(|link| link.index == index)
}
