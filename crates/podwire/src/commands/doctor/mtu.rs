//! Checks that packets of pods fit the tunnel, and that packets of the tunnel fit the link below it.

use std::net::IpAddr;

use netlink::{Link, Route, RouteFilter, RtSocket};
use types::{Code, Finding, Fix, PEER_PROTOCOL};

use super::check::Check;
use super::node::CheckedNode;

const CHECK: &str = "MTU";
/// Headers of VXLAN without the outer IP header: Ethernet 14, VXLAN 8, UDP 8.
const VXLAN_HEADERS: u32 = 14 + 8 + 8;

pub(super) fn overhead(outer: IpAddr) -> u32 {
    VXLAN_HEADERS + if outer.is_ipv4() { 20 } else { 40 }
}

pub(super) fn check_mtu(node: &CheckedNode) -> Vec<Check> {
    let routes = match RtSocket::open().and_then(|mut host| host.routes(RouteFilter::default())) {
        Ok(routes) => routes,
        Err(error) => return vec![Check::unknown(CHECK, format!("cannot list routes: {error}"))],
    };
    let (largest, uplink) =
        (node.attachments.iter().map(|attachment| attachment.mtu).max(), uplink(node, &routes));
    let mut checks: Vec<Check> =
        node.tunnels().filter_map(|tunnel| too_large(node, tunnel, uplink)).collect();
    let narrowest = narrowest(node.tunnels(), &routes).or(uplink).map(|link| (&link.name, link.mtu));
    if let (Some(pods), Some((name, mtu))) = (largest, narrowest)
        && pods > mtu
    {
        if node.has_condition(Code::NodeAddressMissing) {
            // The packets may fit the tunnel of the missing address.
            let message = format!(
                "pods send up to {pods} bytes and {name} carries {mtu}, while an address of this node is missing"
            );
            checks.push(Check::unknown(CHECK, message));
            return checks;
        }
        let message = format!("pods send up to {pods} bytes and {name} carries {mtu}: {}", remedy(node, mtu));
        checks.push(Check::problem(CHECK, Finding::new(Code::MtuTooLarge, "pods", message)));
    }
    if checks.is_empty() {
        let carried = narrowest.map_or(String::new(), |(name, mtu)| format!("; link {name} carries {mtu}"));
        let pods = largest.map_or("no pods yet".to_owned(), |pods| format!("pods send up to {pods} bytes"));
        checks.push(Check::ok(CHECK, format!("{pods}{carried}")));
    }
    checks
}

/// New pods may already get a smaller MTU. Then only old pods have to be restarted.
fn remedy(node: &CheckedNode, most: u32) -> String {
    let old: Vec<String> = node
        .attachments
        .iter()
        .filter(|attachment| attachment.mtu > most)
        .map(|attachment| attachment.key.to_string())
        .collect();
    let pods = match old.as_slice() {
        [first, .., last] if old.len() > 3 => format!("{} pods, {first} to {last}", old.len()),
        few => few.join(", "),
    };
    match node.status().and_then(|status| status.network.mtu) {
        Some(mtu) if mtu <= most => format!("new pods get {mtu}; restart {pods}"),
        Some(_) | None => format!(
            "network.mtu must be at most {most}; set it, restart the agent (systemctl restart podwire), then restart {pods}"
        ),
    }
}

fn too_large(node: &CheckedNode, tunnel: &Link, uplink: Option<&Link>) -> Option<Check> {
    let settings = tunnel.vxlan?;
    let below = settings.link.and_then(|index| node.links.iter().find(|link| link.index == index));
    let below = below.or(uplink)?;
    let most = below.mtu.saturating_sub(overhead(settings.local?));
    (tunnel.mtu > most).then(|| {
        let (name, mtu, link) = (&tunnel.name, tunnel.mtu, &below.name);
        let message = format!(
            "the MTU of tunnel {name} is {mtu}, but {link} carries only {most}: larger packets are lost"
        );
        let found = Finding::new(Code::MtuTooLarge, format_args!("link {name}"), message);
        Check::problem(
            CHECK,
            found.fix(Fix::words(["ip", "link", "set", "dev", name, "mtu", &most.to_string()])),
        )
    })
}

/// The tunnel with the smallest MTU, of those that have routes to peers. A tunnel may remain unused after an address was missing.
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
