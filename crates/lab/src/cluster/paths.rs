//! The path of a packet from a node to an address, according to the node's routes.

use std::net::IpAddr;

use anyhow::Result;
use ipnet::IpNet;

use super::underlay::UPLINK;
use crate::Ns;
use crate::inspect::{self, Family};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PodPath {
    /// Both pods are on one node.
    Local,
    Direct,
    Vxlan,
    /// No route matches, or only the default route.
    None,
}

/// The routes of one node.
pub(super) struct NodeRoutes {
    routes: Vec<(IpNet, PodPath)>,
}

impl NodeRoutes {
    pub(super) fn of(node: &Ns) -> Result<Self> {
        let tunnels: Vec<String> = inspect::links(node)?
            .into_iter()
            .filter(|link| link.kind() == Some("vxlan"))
            .map(|link| link.name)
            .collect();
        let mut routes = Vec::new();
        for family in [Family::V4, Family::V6] {
            for route in inspect::routes(node, family)? {
                let Some(net) = parse(&route.dst) else { continue };
                let path = match route.dev {
                    Some(dev) if dev == UPLINK => PodPath::Direct,
                    Some(dev) if tunnels.contains(&dev) => PodPath::Vxlan,
                    Some(_) => PodPath::Local,
                    None => PodPath::None,
                };
                routes.push((net, path));
            }
        }
        Ok(Self { routes })
    }

    pub(super) fn path_to(&self, address: IpAddr) -> PodPath {
        let matching = self.routes.iter().filter(|(net, _)| net.contains(&address));
        matching.max_by_key(|(net, _)| net.prefix_len()).map_or(PodPath::None, |(_, path)| *path)
    }
}

/// Parses a route's destination. `default` is not a path to a pod and returns `None`.
fn parse(dst: &str) -> Option<IpNet> {
    dst.parse().ok().or_else(|| dst.parse::<IpAddr>().ok().map(IpNet::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins() {
        let net = |text| parse(text).unwrap();
        let routes = NodeRoutes {
            routes: vec![
                (net("10.42.0.0/16"), PodPath::None),
                (net("10.42.1.0/24"), PodPath::Vxlan),
                (net("10.42.1.7"), PodPath::Local),
                (net("fd42::/72"), PodPath::Direct),
            ],
        };
        for (to, path) in [
            ("10.42.1.7", PodPath::Local),
            ("10.42.1.8", PodPath::Vxlan),
            ("10.42.2.8", PodPath::None),
            ("fd42::9", PodPath::Direct),
            ("10.43.0.1", PodPath::None),
        ] {
            assert_eq!(routes.path_to(to.parse().unwrap()), path, "{to}");
        }
        assert_eq!(parse("default"), None);
    }
}
