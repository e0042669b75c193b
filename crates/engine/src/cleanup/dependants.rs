//! Detects other programs that need settings which Podwire changed. If forwarding was already enabled, such a program did not
//! have to enable it. Then only its links and rules in the kernel show that it needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use ipnet::IpNet;
use netlink::{Link, RouteFilter, RtSocket};
use nft::ChainFamily;

use crate::Error;
use crate::alias::LinkMark;
use crate::state::{Sysctl, SysctlChange, SysctlUse};

/// Virtual links of these kinds belong to the node. Links of all other kinds connect containers, virtual machines or networks
/// for which the host may be a router.
const NODE_KINDS: [&str; 5] = ["dummy", "bond", "team", "vlan", "ifb"];

/// Descriptions of objects that need a setting.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Dependants {
    forwarding4: Option<String>,
    forwarding6: Option<String>,
    /// DNAT rules to another host.
    translation4: Option<String>,
    /// An IPv6 address of each link, by link name.
    addresses6: BTreeMap<String, String>,
}

impl Dependants {
    /// Called after all of Podwire's objects were removed.
    pub(super) fn observe(host: &mut RtSocket) -> Result<Self, Error> {
        let mut dependants = Self::of_links(&host.links()?, &routed_nets(host)?);
        for chain in nft::forwarding_chains()? {
            let description =
                format!("chain {} of the firewall's table {} {}", chain.chain, chain.family, chain.table);
            let (is_v4, is_v6) = match chain.family {
                ChainFamily::Ip => (true, false),
                ChainFamily::Ip6 => (false, true),
                ChainFamily::Inet => (true, true),
            };
            if is_v4 && chain.translates {
                dependants.translation4.get_or_insert_with(|| description.clone());
            }
            dependants.add(description, is_v4, is_v6);
        }
        // Legacy iptables rules are not visible in nftables and cannot be listed here.
        for (file, is_v4) in [("ip_tables_names", true), ("ip6_tables_names", false)] {
            let tables = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
            if tables.lines().any(|table| table == "nat") {
                dependants.add("table nat of iptables-legacy".to_owned(), is_v4, !is_v4);
            }
        }
        Ok(dependants)
    }

    fn add(&mut self, description: String, is_v4: bool, is_v6: bool) {
        if is_v4 {
            self.forwarding4.get_or_insert_with(|| description.clone());
        }
        if is_v6 {
            self.forwarding6.get_or_insert(description);
        }
    }

    /// Pure.
    fn of_links(links: &[Link], nets: &BTreeSet<(u32, IpNet)>) -> Self {
        // Links with a default route, also if the node is itself a container or a virtual machine on a bridge.
        let uplinks: BTreeSet<u32> =
            nets.iter().filter(|(_, net)| net.prefix_len() == 0).map(|(link, _)| *link).collect();
        let mut dependants = Self::default();
        for link in links.iter().filter(|link| LinkMark::of(link).is_none()) {
            let of_link = || nets.iter().filter(|(index, _)| *index == link.index).map(|(_, net)| net);
            if let Some(net) = of_link().find(|net| net.addr().is_ipv6()) {
                dependants.addresses6.insert(link.name.clone(), net.to_string());
            }
            let kind = link.kind.as_deref().filter(|kind| !NODE_KINDS.contains(kind));
            let Some(kind) = kind.filter(|_| link.up && !uplinks.contains(&link.index)) else { continue };
            for net in of_link() {
                let is_v4 = net.addr().is_ipv4();
                dependants.add(format!("{kind} {} ({net})", link.name), is_v4, !is_v4);
            }
        }
        dependants
    }

    /// The object that needs the current value of the setting.
    pub(super) fn of(&self, sysctl: &Sysctl, change: &SysctlChange) -> Option<&str> {
        match sysctl.purpose() {
            SysctlUse::Forwarding4 => self.forwarding4.as_deref(),
            SysctlUse::Forwarding6 => self.forwarding6.as_deref(),
            // 2: a forwarding host with 1 would ignore router advertisements and lose its default route.
            SysctlUse::Advertisements if change.after == "2" => self.forwarding6.as_deref(),
            SysctlUse::Advertisements => None,
            SysctlUse::LoopbackSource => self.translation4.as_deref(),
            // Disabling IPv6 removes the IPv6 addresses of the link.
            SysctlUse::Ipv6(link) => self.addresses6.get(link).map(String::as_str),
        }
    }
}

/// Addresses and route destinations with their links, except link-local ones.
fn routed_nets(host: &mut RtSocket) -> Result<BTreeSet<(u32, IpNet)>, Error> {
    let (addresses, routes) = (host.addresses(None)?, host.routes(RouteFilter::default())?);
    let mut nets: BTreeSet<(u32, IpNet)> = addresses.iter().map(|a| (a.link, a.addr)).collect();
    nets.extend(routes.iter().filter_map(|route| Some((route.link?, route.dst))));
    nets.retain(|(_, net)| !is_not_routed(net));
    Ok(nets)
}

/// Loopback, link-local and multicast addresses.
fn is_not_routed(net: &IpNet) -> bool {
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

    /// Observes a new namespace after these commands.
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
    fn b13_unmanaged_links_and_rules_need_forwarding_of_their_family() {
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
            // A host route, as Calico adds it, and a node that is itself a container.
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
            let dependants = after(&commands);
            let needed = (dependants.forwarding4.is_some(), dependants.forwarding6.is_some());
            assert_eq!(needed, (v4, v6), "{commands:?}: {dependants:?}");
        }
    }

    /// Some kernels lack some of these kinds, so the links are not created.
    #[test]
    fn b13_virtual_links_need_forwarding_unless_they_belong_to_the_node() {
        let in_a_namespace = || {
            let command =
                "ip link add br7 type bridge && ip link set br7 up && ip addr add 10.1.0.1/24 dev br7";
            assert!(Command::new("sh").args(["-c", command]).status().unwrap().success());
            let mut host = RtSocket::open().unwrap();
            (host.links().unwrap(), routed_nets(&mut host).unwrap())
        };
        let (mut links, nets) = NetNs::create().unwrap().run(in_a_namespace).unwrap();
        let routing =
            ["ppp", "ipip", "gre", "sit", "ip6tnl", "xfrm", "macvlan", "ipvlan", "tun", "wireguard", "vrf"];
        let node = [Some("dummy"), Some("bond"), Some("team"), Some("vlan"), Some("ifb"), None];
        let all = routing.map(|kind| (Some(kind), true)).into_iter().chain(node.map(|kind| (kind, false)));
        for (kind, is_needed) in all {
            links.iter_mut().for_each(|link| link.kind = kind.map(str::to_owned));
            let dependants = Dependants::of_links(&links, &nets);
            let needed = (dependants.forwarding4.is_some(), dependants.forwarding6.is_some());
            assert_eq!(needed, (is_needed, false), "{kind:?}: {dependants:?}");
        }
    }

    #[test]
    fn b13_other_settings_stay_for_programs_that_need_them() {
        let setting = |path: &str, after: &str, before: &str| {
            let sysctl = Sysctl::parse(&format!("/proc/sys/net/{path}")).unwrap();
            (sysctl, SysctlChange { before: before.to_owned(), after: after.to_owned() })
        };
        let advertisements = setting("ipv6/conf/eth0/accept_ra", "2", "1");
        let refused = setting("ipv6/conf/br7/accept_ra", "0", "1");
        let loopback = setting("ipv4/conf/br7/route_localnet", "1", "0");
        let ipv6 = setting("ipv6/conf/br7/disable_ipv6", "0", "1");
        let all = [&advertisements, &refused, &loopback, &ipv6];
        let needed =
            |dependants: &Dependants| all.map(|(sysctl, change)| dependants.of(sysctl, change).is_some());
        assert_eq!(needed(&after(&[])), [false; 4]);
        let bridge =
            "ip link add br7 type bridge && ip link set br7 up && ip -6 addr add fd01::1/64 dev br7 nodad";
        assert_eq!(needed(&after(&[bridge])), [true, false, false, true]);
        let nat = chain("ip", "nat hook prerouting", "tcp dport 80 dnat to 10.1.0.2");
        assert_eq!(needed(&after(&[&nat])), [false, false, true, false]);
    }
}
