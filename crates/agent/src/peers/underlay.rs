//! The links and addresses of this node in the underlay: the configured ones, or those of the default route. Ambiguities are reported.

use std::fmt::Display;
use std::net::IpAddr;

use ipnet::IpNet;
use model::Underlay;
use netlink::{Address, Link, Route};

use types::{Code, Finding, Fix, Mac};

use config::{Config, PathCheck};

/// The links, addresses and default routes to choose from.
#[derive(Debug, Default)]
pub(crate) struct UnderlayCandidates {
    pub(crate) links: Vec<Link>,
    pub(crate) addresses: Vec<Address>,
    /// The default route of each family.
    pub(crate) defaults: Vec<Route>,
}

/// The position of this node in the underlay: the chosen links and addresses, at most one of each family, and findings about the choice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) underlays: Vec<Underlay>,
    /// The smallest MTU of the links.
    pub(crate) mtu: Option<u32>,
    /// The MACs from which this node sends directly. Empty if they are not known: frames of bonds may have those of its ports.
    pub(crate) macs: Vec<Mac>,
    /// Former addresses of families in which this node has none now.
    pub(crate) lost: Vec<IpAddr>,
    /// Links with a lost address. Their changes may end the loss.
    pub(crate) lost_links: Vec<u32>,
    pub(crate) problems: Vec<Finding>,
}

impl Position {
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.underlays.iter().map(|underlay| underlay.address).collect()
    }

    /// The position before the first search, with the addresses of this node's saved record.
    pub(crate) fn saved(addresses: Vec<IpAddr>) -> Self {
        Self { lost: addresses, ..Self::default() }
    }

    /// The addresses that the next search prefers, and reports if they are missing.
    pub(crate) fn known_addresses(&self) -> Vec<IpAddr> {
        self.addresses().into_iter().chain(self.lost.iter().copied()).collect()
    }
}

/// `is_managed`: whether Podwire created a link. `before` are the addresses that were chosen last; they stay while they exist.
pub(crate) fn find(
    config: &Config,
    candidates: &UnderlayCandidates,
    is_managed: impl Fn(&Link) -> bool,
    before: &[IpAddr],
) -> Position {
    let mut position = Position::default();
    for v4 in [true, false] {
        let family = UnderlayFamily { v4, candidates, before };
        let fixed = config.node_addresses.iter().copied().find(|address| address.is_ipv4() == v4);
        let link = match (&config.node_interface, fixed) {
            (Some(name), _) => {
                candidates.links.iter().find(|link| link.name == name.as_str()).map(|link| link.index)
            }
            (None, Some(address)) => {
                family.link_with(address).or_else(|| family.by_route(&mut position.problems))
            }
            (None, None) => family
                .by_route(&mut position.problems)
                .or_else(|| family.only_one(&is_managed, &mut position.problems)),
        };
        if let Some(address) = fixed.filter(|address| family.link_with(*address).is_none()) {
            let message = format!(
                "node_addresses says {address}, but no link of this node has that address; packets of other nodes to \
                 its pods are lost"
            );
            let found = Finding::new(Code::NodeAddressMissing, format_args!("address {address}"), message);
            position.problems.push(found);
        }
        let address = link.and_then(|link| Some((link, fixed.or_else(|| family.address_on(link))?)));
        match (address, before.iter().find(|address| address.is_ipv4() == v4)) {
            (Some((link, address)), _) => {
                position.underlays.push(Underlay { link, address, on_link: family.subnets_on(link) });
            }
            (None, Some(lost)) => {
                position.lost.push(*lost);
                position.lost_links.extend(family.link_of(*lost).map(|link| link.index));
                position.problems.push(family.lost_address(*lost));
            }
            (None, None) => {}
        }
    }
    if let Some(name) = &config.node_interface
        && !candidates.links.iter().any(|link| link.name == name.as_str())
    {
        let message = format!("node_interface is {name}, but there is no such link");
        let found = Finding::new(Code::NodeAddressMissing, format_args!("interface {name}"), message);
        position.problems.push(found);
    }
    if position.underlays.is_empty() && position.lost.is_empty() {
        position.problems.push(node_finding("this node has no address at which other nodes could reach it"));
    }
    let links =
        position.underlays.iter().filter_map(|u| candidates.links.iter().find(|link| link.index == u.link));
    let links: Vec<&Link> = links.collect();
    position.mtu = links.iter().map(|link| link.mtu).min();
    position.macs = match config.cluster.path_check {
        PathCheck::Auto => link_macs(links),
        PathCheck::Off => Vec::new(),
    };
    position.problems.dedup();
    position
}

/// Empty if one of the links may send from other MACs than its own.
fn link_macs(links: Vec<&Link>) -> Vec<Mac> {
    let sends_from_ports = |link: &&Link| matches!(link.kind.as_deref(), Some("bond" | "team"));
    if links.iter().any(sends_from_ports) {
        return Vec::new();
    }
    let mut macs: Vec<Mac> = links.into_iter().filter_map(|link| link.mac).collect();
    macs.sort_unstable();
    macs.dedup();
    macs
}

fn node_finding(message: impl Display) -> Finding {
    Finding::new(Code::NodeAddressMissing, "node", message)
}

struct UnderlayFamily<'a> {
    v4: bool,
    candidates: &'a UnderlayCandidates,
    before: &'a [IpAddr],
}

impl UnderlayFamily<'_> {
    fn global(&self) -> impl Iterator<Item = &Address> {
        self.candidates.addresses.iter().filter(|address| {
            let ip = address.addr.addr();
            ip.is_ipv4() == self.v4 && is_global(ip) && !address.tentative && !address.duplicate
        })
    }

    /// Why this node cannot use its former address, and no other of this family.
    fn lost_address(&self, address: IpAddr) -> Finding {
        let family = self.name();
        let finding = |message: String| {
            Finding::new(Code::NodeAddressMissing, format_args!("address {address}"), message)
        };
        match self.link_of(address) {
            Some(Link { name, up: false, .. }) => finding(format!(
                "link {name}, which has address {address} of this node, is down; the kernel has also removed its routes \
                 and IPv6 addresses, which have to be added again"
            ))
            .fix(Fix::words(["ip", "link", "set", "dev", name, "up"])),
            Some(Link { name, .. }) if self.default_route().is_none() => finding(format!(
                "link {name} has address {address}, but there is no {family} default route, so the link to other nodes is \
                 not known: restore the route, or set node_interface and restart the agent"
            )),
            Some(Link { name, .. }) => finding(format!(
                "link {name} has address {address}, but the agent cannot use it: node_interface or the {family} default \
                 route selects another link, or the address is tentative or a duplicate"
            ))
            .fix("ip address show"),
            None => finding(format!(
                "address {address} of this node was removed, and it has no other {family} address for the pod network: \
                 add it again, with the routes that were removed with it, or restart the agent if that is intended"
            ))
            .fix("ip address show"),
        }
    }

    /// The link that has this address, also if the address cannot be used.
    fn link_of(&self, wanted: IpAddr) -> Option<&Link> {
        let address = self.candidates.addresses.iter().find(|address| address.addr.addr() == wanted)?;
        self.candidates.links.iter().find(|link| link.index == address.link)
    }

    fn default_route(&self) -> Option<&Route> {
        self.candidates.defaults.iter().find(|route| route.dst.addr().is_ipv4() == self.v4)
    }

    fn name(&self) -> &'static str {
        if self.v4 { "IPv4" } else { "IPv6" }
    }

    fn link_with(&self, wanted: IpAddr) -> Option<u32> {
        self.global().find(|address| address.addr.addr() == wanted).map(|address| address.link)
    }

    /// The link of the default route that the kernel takes.
    fn by_route(&self, problems: &mut Vec<Finding>) -> Option<u32> {
        let route = self.default_route()?;
        if route.link.is_none() {
            let family = self.name();
            problems.push(node_finding(format_args!(
                "the {family} default route uses several links; set node_interface to choose one"
            )));
        }
        route.link
    }

    /// Without a default route: the only link that has a global address.
    fn only_one(&self, is_managed: impl Fn(&Link) -> bool, problems: &mut Vec<Finding>) -> Option<u32> {
        let is_candidate = |index: u32| {
            self.candidates.links.iter().any(|link| link.index == index && link.up && !is_managed(link))
        };
        let mut links: Vec<u32> = self.global().map(|a| a.link).filter(|link| is_candidate(*link)).collect();
        links.sort_unstable();
        links.dedup();
        match links[..] {
            [link] => Some(link),
            [] => None,
            _ => {
                let names: Vec<String> = links.iter().map(|link| self.link_name(*link)).collect();
                problems.push(node_finding(format_args!(
                    "there is no default route, and several links have addresses ({}); set node_interface to choose",
                    names.join(", ")
                )));
                None
            }
        }
    }

    /// The address that was chosen before, else the first: the kernel lists the primary address first.
    fn address_on(&self, link: u32) -> Option<IpAddr> {
        let on_link = || self.global().filter(|a| a.link == link).map(|a| a.addr.addr());
        on_link().find(|ip| self.before.contains(ip)).or_else(|| on_link().next())
    }

    fn subnets_on(&self, link: u32) -> Vec<IpNet> {
        let mut nets: Vec<IpNet> = self.global().filter(|a| a.link == link).map(|a| a.addr.trunc()).collect();
        nets.sort_unstable();
        nets.dedup();
        nets
    }

    fn link_name(&self, index: u32) -> String {
        let link = self.candidates.links.iter().find(|link| link.index == index);
        link.map_or_else(|| format!("link {index}"), |link| link.name.clone())
    }
}

fn is_global(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !link_local && !ip.is_loopback() && !ip.is_unspecified() && !ip.is_multicast()
}
