//! Other programs that need settings which Podwire changed. They found forwarding switched on and did not have to enable
//! it: only their links and rules in the kernel show that they need it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use ipnet::IpNet;
use netlink::{Link, RouteFilter, RtSocket};
use nft::ChainFamily;

use crate::Error;
use crate::alias::LinkMark;
use crate::state::{Changed, Sysctl, SysctlUse};

/// Virtual links of these kinds are the node's own. Those of all other kinds lead to containers, machines or networks for which
/// the host may be a router.
const OWN_KINDS: [&str; 5] = ["dummy", "bond", "team", "vlan", "ifb"];

/// Who needs a setting, in words.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Dependants {
    forwarding4: Option<String>,
    forwarding6: Option<String>,
    /// Rules that send connections to another host.
    translation4: Option<String>,
    /// By link, an IPv6 address that it has.
    addresses6: BTreeMap<String, String>,
}

impl Dependants {
    /// To be called when everything of Podwire is removed.
    pub(super) fn observe(host: &mut RtSocket) -> Result<Self, Error> {
        let mut found = Self::of_links(&host.links()?, &routed_nets(host)?);
        for chain in nft::forwarding_chains()? {
            let words =
                format!("chain {} of the firewall's table {} {}", chain.chain, chain.family, chain.table);
            let (is_v4, is_v6) = match chain.family {
                ChainFamily::Ip => (true, false),
                ChainFamily::Ip6 => (false, true),
                ChainFamily::Inet => (true, true),
            };
            if is_v4 && chain.translates {
                found.translation4.get_or_insert_with(|| words.clone());
            }
            found.note(words, is_v4, is_v6);
        }
        // Their rules are not in nftables, and cannot be listed here.
        for (file, is_v4) in [("ip_tables_names", true), ("ip6_tables_names", false)] {
            let tables = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
            if tables.lines().any(|table| table == "nat") {
                found.note("table nat of iptables-legacy".to_owned(), is_v4, !is_v4);
            }
        }
        Ok(found)
    }

    fn note(&mut self, words: String, is_v4: bool, is_v6: bool) {
        if is_v4 {
            self.forwarding4.get_or_insert_with(|| words.clone());
        }
        if is_v6 {
            self.forwarding6.get_or_insert(words);
        }
    }

    /// Pure.
    fn of_links(links: &[Link], nets: &BTreeSet<(u32, IpNet)>) -> Self {
        // The way to the rest of the world, also of a node that is itself a container or a machine on a bridge.
        let uplinks: BTreeSet<u32> =
            nets.iter().filter(|(_, net)| net.prefix_len() == 0).map(|(link, _)| *link).collect();
        let mut found = Self::default();
        for link in links.iter().filter(|link| LinkMark::of(link).is_none()) {
            let of_link = || nets.iter().filter(|(index, _)| *index == link.index).map(|(_, net)| net);
            if let Some(net) = of_link().find(|net| net.addr().is_ipv6()) {
                found.addresses6.insert(link.name.clone(), net.to_string());
            }
            let kind = link.kind.as_deref().filter(|kind| !OWN_KINDS.contains(kind));
            let Some(kind) = kind.filter(|_| link.up && !uplinks.contains(&link.index)) else { continue };
            for net in of_link() {
                let is_v4 = net.addr().is_ipv4();
                found.note(format!("{kind} {} ({net})", link.name), is_v4, !is_v4);
            }
        }
        found
    }

    /// Who needs the setting as it is.
    pub(super) fn of(&self, sysctl: &Sysctl, changed: &Changed) -> Option<&str> {
        match sysctl.purpose() {
            SysctlUse::Forwarding4 => self.forwarding4.as_deref(),
            SysctlUse::Forwarding6 => self.forwarding6.as_deref(),
            // 2: a host that forwards takes no other router advertisements, and would lose its default route.
            SysctlUse::Advertisements if changed.ours == "2" => self.forwarding6.as_deref(),
            SysctlUse::Advertisements => None,
            SysctlUse::LoopbackSource => self.translation4.as_deref(),
            // To switch IPv6 off removes the addresses of a link.
            SysctlUse::Ipv6(link) => self.addresses6.get(link).map(String::as_str),
        }
    }
}

/// Addresses and destinations of routes that are not of a link alone, with their links.
fn routed_nets(host: &mut RtSocket) -> Result<BTreeSet<(u32, IpNet)>, Error> {
    let (addresses, routes) = (host.addresses(None)?, host.routes(RouteFilter::default())?);
    let mut nets: BTreeSet<(u32, IpNet)> = addresses.iter().map(|a| (a.link, a.addr)).collect();
    nets.extend(routes.iter().filter_map(|route| Some((route.link?, route.dst))));
    nets.retain(|(_, net)| !is_of_link(net));
    Ok(nets)
}

/// An address that is not routed.
fn is_of_link(net: &IpNet) -> bool {
    match net {
        IpNet::V4(v4) => v4.addr().is_multicast() || v4.addr().is_loopback(),
        IpNet::V6(v6) => {
            v6.addr().is_unicast_link_local() || v6.addr().is_multicast() || v6.addr().is_loopback()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use netlink::NetNs;

    use super::*;

    /// What is observed after these commands, in a namespace of its own.
    fn after(commands: &[&str]) -> Dependants {
        let in_a_namespace = || {
            for line in commands {
                assert!(Command::new("sh").args(["-c", line]).status().unwrap().success(), "{line}");
            }
            Dependants::observe(&mut RtSocket::open().unwrap()).unwrap()
        };
        NetNs::create().unwrap().run(in_a_namespace).unwrap()
    }

    fn chain(family: &str, hook: &str, rule: &str) -> String {
        format!("nft 'table {family} t {{ chain c {{ type {hook} priority 0; {rule}; }}; }}'")
    }

    #[test]
    fn b13_links_and_rules_of_others_need_forwarding_of_their_family() {
        let bridge = "ip link add br7 type bridge && ip link set br7 up";
        let pair = "ip link add v1 type veth peer name v2 && ip link set v1 up && ip link set v2 up";
        let nat = "nat hook postrouting";
        let forward = "filter hook forward";
        for (commands, v4, v6) in [
            (vec![], false, false),
            (vec![pair], false, false),
            (vec!["ip link set lo up && ip addr add 10.1.0.1/24 dev lo"], false, false),
            (vec![bridge], false, false),
            (vec![bridge, "ip addr add 10.1.0.1/24 dev br7"], true, false),
            (vec![bridge, "ip -6 addr add fd01::1/64 dev br7 nodad"], false, true),
            (vec![bridge, "ip addr add 10.1.0.1/24 dev br7", "ip link set br7 down"], false, false),
            (
                vec![bridge, "ip addr add 10.1.0.1/24 dev br7", "ip link set br7 alias 'podwire bridge'"],
                false,
                false,
            ),
            (
                vec!["ip link add ifb7 type ifb && ip link set ifb7 up && ip addr add 10.1.0.1/24 dev ifb7"],
                false,
                false,
            ),
            // A route of its own, as Calico has it, and a node that is itself a container.
            (vec![pair, "ip route add 10.1.0.2/32 dev v1"], true, false),
            (vec![pair, "ip -6 route add fd01::2/128 dev v1"], false, true),
            (vec![pair, "ip addr add 10.1.0.2/24 dev v1", "ip route add default via 10.1.0.1"], false, false),
            (
                vec![pair, "ip route add 10.1.0.2/32 dev v1", "ip link set v1 alias podwire:n/c/eth0"],
                false,
                false,
            ),
            (vec![&chain("ip", nat, "oifname eth7 masquerade")], true, false),
            (vec![&chain("ip6", nat, "oifname eth7 masquerade")], false, true),
            (vec![&chain("inet", nat, "ip saddr 10.1.0.0/24 snat ip to 192.0.2.1")], true, true),
            (vec![&chain("ip", "nat hook prerouting", "tcp dport 80 dnat to 10.1.0.2")], true, false),
            (vec![&chain("ip", "nat hook prerouting", "tcp dport 80 redirect to :81")], false, false),
            (vec![&chain("ip", nat, "oifname eth7 counter")], false, false),
            (vec!["iptables -t nat -A POSTROUTING -s 10.1.0.0/24 -j MASQUERADE"], true, false),
            (
                vec![
                    "iptables -t nat -N x && iptables -t nat -A x -j DNAT --to 10.1.0.2 && iptables -t nat -A PREROUTING -j x",
                ],
                true,
                false,
            ),
            (vec![&chain("inet", forward, "iifname eth7 oifname eth8 accept")], true, true),
            (vec![&chain("ip", forward, "iifname { eth7, eth8 } accept")], true, false),
            (vec![&chain("ip", forward, "ct state established,related accept")], false, false),
            (vec![&chain("ip", forward, "meta l4proto icmp accept")], false, false),
            (vec![&chain("ip", forward, "iifname eth7 drop")], false, false),
            (vec![&chain("inet", forward, "iifname eth7 accept comment \"podwire blue\"")], false, false),
        ] {
            let found = after(&commands);
            let seen = (found.forwarding4.is_some(), found.forwarding6.is_some());
            assert_eq!(seen, (v4, v6), "{commands:?}: {found:?}");
        }
    }

    /// Not every kernel has all of these.
    #[test]
    fn b13_virtual_links_need_forwarding_whatever_their_kind_but_for_the_nodes_own() {
        let in_a_namespace = || {
            let words =
                "ip link add br7 type bridge && ip link set br7 up && ip addr add 10.1.0.1/24 dev br7";
            assert!(Command::new("sh").args(["-c", words]).status().unwrap().success());
            let mut host = RtSocket::open().unwrap();
            (host.links().unwrap(), routed_nets(&mut host).unwrap())
        };
        let (mut links, nets) = NetNs::create().unwrap().run(in_a_namespace).unwrap();
        let routing =
            ["ppp", "ipip", "gre", "sit", "ip6tnl", "xfrm", "macvlan", "ipvlan", "tun", "wireguard", "vrf"];
        let own = [Some("dummy"), Some("bond"), Some("team"), Some("vlan"), Some("ifb"), None];
        let all = routing.map(|kind| (Some(kind), true)).into_iter().chain(own.map(|kind| (kind, false)));
        for (kind, is_needed) in all {
            links.iter_mut().for_each(|link| link.kind = kind.map(str::to_owned));
            let found = Dependants::of_links(&links, &nets);
            let seen = (found.forwarding4.is_some(), found.forwarding6.is_some());
            assert_eq!(seen, (is_needed, false), "{kind:?}: {found:?}");
        }
    }

    #[test]
    fn b13_other_settings_stay_for_those_who_need_them() {
        let setting = |path: &str, ours: &str, before: &str| {
            let sysctl = Sysctl::parse(&format!("/proc/sys/net/{path}")).unwrap();
            (sysctl, Changed { before: before.to_owned(), ours: ours.to_owned() })
        };
        let advertisements = setting("ipv6/conf/eth0/accept_ra", "2", "1");
        let refused = setting("ipv6/conf/br7/accept_ra", "0", "1");
        let loopback = setting("ipv4/conf/br7/route_localnet", "1", "0");
        let ipv6 = setting("ipv6/conf/br7/disable_ipv6", "0", "1");
        let all = [&advertisements, &refused, &loopback, &ipv6];
        let needed = |found: &Dependants| all.map(|(sysctl, changed)| found.of(sysctl, changed).is_some());
        assert_eq!(needed(&after(&[])), [false; 4]);
        let bridge =
            "ip link add br7 type bridge && ip link set br7 up && ip -6 addr add fd01::1/64 dev br7 nodad";
        assert_eq!(needed(&after(&[bridge])), [true, false, false, true]);
        let nat = chain("ip", "nat hook prerouting", "tcp dport 80 dnat to 10.1.0.2");
        assert_eq!(needed(&after(&[&nat])), [false, false, true, false]);
    }
}
