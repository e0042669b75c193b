//! Which way a packet takes from one node to an address: what the kernel's routes say.

use std::net::IpAddr;

use anyhow::Result;
use ipnet::IpNet;

use super::underlay::UPLINK;
use crate::Ns;
use crate::inspect::{self, Family};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PodPath {
    /// Both are on one node.
    Local,
    Direct,
    Vxlan,
    /// No route leads there, or none but the default.
    None,
}

/// The routes of one node.
pub(super) struct Ways {
    routes: Vec<(IpNet, PodPath)>,
}

impl Ways {
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
                let way = match route.dev {
                    Some(dev) if dev == UPLINK => PodPath::Direct,
                    Some(dev) if tunnels.contains(&dev) => PodPath::Vxlan,
                    Some(_) => PodPath::Local,
                    None => PodPath::None,
                };
                routes.push((net, way));
            }
        }
        Ok(Self { routes })
    }

    pub(super) fn to(&self, address: IpAddr) -> PodPath {
        let fitting = self.routes.iter().filter(|(net, _)| net.contains(&address));
        fitting.max_by_key(|(net, _)| net.prefix_len()).map_or(PodPath::None, |(_, way)| *way)
    }
}

/// `default` is no way to a pod.
fn parse(dst: &str) -> Option<IpNet> {
    dst.parse().ok().or_else(|| dst.parse::<IpAddr>().ok().map(IpNet::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_decides() {
        let net = |text| parse(text).unwrap();
        let ways = Ways {
            routes: vec![
                (net("10.42.0.0/16"), PodPath::None),
                (net("10.42.1.0/24"), PodPath::Vxlan),
                (net("10.42.1.7"), PodPath::Local),
                (net("fd42::/72"), PodPath::Direct),
            ],
        };
        for (to, way) in [
            ("10.42.1.7", PodPath::Local),
            ("10.42.1.8", PodPath::Vxlan),
            ("10.42.2.8", PodPath::None),
            ("fd42::9", PodPath::Direct),
            ("10.43.0.1", PodPath::None),
        ] {
            assert_eq!(ways.to(to.parse().unwrap()), way, "{to}");
        }
        assert_eq!(parse("default"), None);
    }
}
