//! Which way a packet takes from one node to an address: what the kernel's routes say.

use std::net::IpAddr;

use anyhow::Result;
use ipnet::IpNet;

use super::underlay::UPLINK;
use crate::Ns;
use crate::inspect::{self, Family};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// Both are on one node.
    Local,
    Direct,
    Vxlan,
    /// No route leads there, or none but the default.
    None,
}

/// The routes of one node.
pub(super) struct Ways {
    routes: Vec<(IpNet, Way)>,
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
                    Some(dev) if dev == UPLINK => Way::Direct,
                    Some(dev) if tunnels.contains(&dev) => Way::Vxlan,
                    Some(_) => Way::Local,
                    None => Way::None,
                };
                routes.push((net, way));
            }
        }
        Ok(Self { routes })
    }

    pub(super) fn to(&self, address: IpAddr) -> Way {
        let fitting = self.routes.iter().filter(|(net, _)| net.contains(&address));
        fitting.max_by_key(|(net, _)| net.prefix_len()).map_or(Way::None, |(_, way)| *way)
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
                (net("10.42.0.0/16"), Way::None),
                (net("10.42.1.0/24"), Way::Vxlan),
                (net("10.42.1.7"), Way::Local),
                (net("fd42::/72"), Way::Direct),
            ],
        };
        for (to, way) in [
            ("10.42.1.7", Way::Local),
            ("10.42.1.8", Way::Vxlan),
            ("10.42.2.8", Way::None),
            ("fd42::9", Way::Direct),
            ("10.43.0.1", Way::None),
        ] {
            assert_eq!(ways.to(to.parse().unwrap()), way, "{to}");
        }
        assert_eq!(parse("default"), None);
    }
}
