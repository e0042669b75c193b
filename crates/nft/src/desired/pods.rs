//! The tables of pods: `inet podwire` and `bridge podwire`.

use std::sync::LazyLock;

use ipnet::IpNet;

use super::ChainType::{Filter, Nat};
use super::HookPoint::{Input, Output, Postrouting, Prerouting};
use super::Type::{Ip4, Ip6, Link, Mac, Port, Protocol};
use super::{Chain, Name, Set, TABLE, Table, TableFamily, Type};
use crate::pod::{AttachMode, FirewallPod, Guard, NetworkChain};

const RAW: i32 = -300;
const DSTNAT: i32 = -100;
const SRCNAT: i32 = 100;

/// The wanted tables of pods, and the networks with a chain in them.
#[derive(Debug, Clone, Default)]
pub struct Structure<'a> {
    inet: bool,
    bridge: bool,
    networks: Vec<&'a NetworkChain>,
}

impl<'a> Structure<'a> {
    /// The structure that these pods need.
    pub fn of(pods: &[FirewallPod<'a>]) -> Self {
        pods.iter().fold(Self::default(), |all, pod| all.with(pod.mode, pod.guard, pod.masquerade))
    }

    /// Adds the structure for pods with this mode, guard and network, whether there are such pods or not.
    #[must_use]
    pub fn with(mut self, mode: AttachMode, guard: Guard, masquerade: Option<&'a NetworkChain>) -> Self {
        for family in families(mode, guard) {
            match family {
                TableFamily::Inet => self.inet = true,
                TableFamily::Bridge => self.bridge = true,
            }
        }
        self.networks.extend(masquerade);
        self.networks.sort_by_key(|chain| chain.id());
        self.networks.dedup_by_key(|chain| chain.id());
        self
    }

    pub(crate) fn needs(&self, family: TableFamily) -> bool {
        match family {
            TableFamily::Inet => self.inet,
            TableFamily::Bridge => self.bridge,
        }
    }

    pub(crate) fn table(&self, family: TableFamily) -> Table {
        let mut table = base(family).clone();
        if family == TableFamily::Inet {
            for network in &self.networks {
                table.sets.extend(network_sets(network));
                table.chains.push(network_chain(network));
            }
        }
        table
    }
}

/// The tables that such a pod needs. Without a guarded bridge port, the kernel needs no bridge family.
pub(crate) fn families(mode: AttachMode, guard: Guard) -> &'static [TableFamily] {
    match (mode, guard) {
        (AttachMode::Bridge, Guard::On | Guard::Dhcp | Guard::Mac) => {
            &[TableFamily::Inet, TableFamily::Bridge]
        }
        (AttachMode::Bridge, Guard::Off) | (AttachMode::Routed, _) => &[TableFamily::Inet],
    }
}

/// The table without chains of networks.
pub(crate) fn base(family: TableFamily) -> &'static Table {
    static INET: LazyLock<Table> = LazyLock::new(inet);
    static BRIDGE: LazyLock<Table> = LazyLock::new(bridge);
    match family {
        TableFamily::Inet => &INET,
        TableFamily::Bridge => &BRIDGE,
    }
}

/// [`Table::revision`] of the base structure. It is a constant because every ADD needs it. A test compares it.
pub(crate) fn revision(family: TableFamily) -> u32 {
    match family {
        TableFamily::Inet => 0xd73b_49db,
        TableFamily::Bridge => 0xd9fb_ac5e,
    }
}

/// The names of the sets of one address family.
pub(crate) struct SetNames {
    pub(crate) pods: &'static str,
    pub(crate) own: &'static str,
    /// In the table `bridge`.
    pub(crate) addr: &'static str,
    pub(crate) source: &'static str,
    pub(crate) bound: &'static str,
    pub(crate) via: &'static str,
    pub(crate) hostport: &'static str,
    pub(crate) hostport_any: &'static str,
    pub(crate) hairpin: &'static str,
}

pub(crate) const SETS4: SetNames = SetNames {
    pods: "pods4",
    own: "self4",
    addr: "addr4",
    source: "source4",
    bound: "bound4",
    via: "via4",
    hostport: "hostport4",
    hostport_any: "hostport4_any",
    hairpin: "hairpin4",
};

pub(crate) const SETS6: SetNames = SetNames {
    pods: "pods6",
    own: "self6",
    addr: "addr6",
    source: "source6",
    bound: "bound6",
    via: "via6",
    hostport: "hostport6",
    hostport_any: "hostport6_any",
    hairpin: "hairpin6",
};

/// The sets that bind addresses to links. A packet from such an address is dropped if another link receives it.
pub(crate) const BINDINGS: [&str; 4] = [SETS4.bound, SETS6.bound, SETS4.via, SETS6.via];

/// Host ends of guarded pods, in both tables.
pub(crate) const PORTS: &str = "ports";
pub(crate) const MACS: &str = "macs";
pub(crate) const DHCP_PORTS: &str = "dhcp_ports";
pub(crate) const MAC_PORTS: &str = "mac_ports";
/// The same addresses as `addr6`, for the target of neighbour discovery.
pub(crate) const TARGETS: &str = "targets6";
const TARGET: Type = Type::Bits { start: 64, length: 128 };

fn inet_sets() -> Vec<Set> {
    let mut sets = Vec::new();
    for (names, ip) in [(SETS4, Ip4), (SETS6, Ip6)] {
        sets.extend([
            // Every pod of this node.
            Set::expiring(names.pods, &[ip]),
            // The same address as source and destination, for a pod that reaches itself through DNAT.
            Set::expiring(names.own, &[ip, ip]),
            // [Host address,] protocol and host port map to pod and port.
            Set::expiring(names.hostport, &[ip, Protocol, Port]).to(&[ip, Port]),
            Set::expiring(names.hostport_any, &[Protocol, Port]).to(&[ip, Port]),
            // Pod on a bridge, protocol, pod port, host port.
            Set::expiring(names.hairpin, &[ip, Protocol, Port, Port]),
            // The addresses and MACs that routed pods send from.
            Set::expiring(names.source, &[Link, ip, Mac]),
            // Pods with only one link to the host, and that link if the guard does not check it.
            Set::expiring(names.bound, &[ip]),
            Set::expiring(names.via, &[ip, Link]),
        ]);
    }
    // Packets with a bridge port as input interface are dropped: those of pods on a bridge have the bridge as input interface.
    sets.push(Set::expiring(PORTS, &[Link]));
    sets
}

fn inet() -> Table {
    let chains = vec![
        // Every packet of the host passes this chain. Packets of other hosts cost one lookup of their source.
        Chain::plain(
            "guard",
            &[
                r#"iifname "pw*" goto from-pod"#,
                "ip saddr @bound4 goto pod-source",
                "ip6 saddr @bound6 goto pod-source",
            ],
        )
        .at(Filter, Prerouting, RAW),
        // Links with names of pods' links. Nearly all packets come from guarded pods and are accepted.
        Chain::plain(
            "from-pod",
            &[
                r#"iifname "pwvx*" iifname != @ports accept"#,
                "iifname . ip saddr . ether saddr @source4 ip daddr != 127.0.0.0/8 accept",
                "meta nfproto ipv6 goto from-pod6",
                "iifname @ports drop",
                "ip saddr @bound4 goto pod-source",
            ],
        ),
        Chain::plain(
            "from-pod6",
            &[
                "meta l4proto icmpv6 goto from-pod-icmp6",
                "iifname . ip6 saddr . ether saddr @source6 accept",
                "iifname @ports drop",
                "ip6 saddr @bound6 goto pod-source",
            ],
        ),
        // Both ends of a pod's link have permanent neighbours, so neighbour discovery is dropped.
        Chain::plain(
            "from-pod-icmp6",
            &[
                "icmpv6 type 133-137 iifname @ports drop",
                "iifname . ip6 saddr . ether saddr @source6 accept",
                "iifname @ports drop",
                "ip6 saddr @bound6 goto pod-source",
            ],
        ),
        // Packets with a pod's source address on another link: other hosts of the underlay could send them. On the loopback
        // device there are only packets of the host.
        Chain::plain(
            "pod-source",
            &[
                "iiftype loopback accept",
                "ip saddr . iifname @via4 accept",
                "ip6 saddr . iifname @via6 accept",
                "drop",
            ],
        ),
        // route_localnet, which hostPorts on 127.0.0.1 need, would open the host's loopback to other hosts. Forwarded packets do
        // not pass this chain. Packets of the host to a hostPort got another source address: their replies are accepted.
        Chain::plain(
            "to-host",
            &[
                "ip saddr 127.0.0.0/8 iiftype != loopback drop",
                "ip daddr 127.0.0.0/8 iiftype != loopback ct status snat accept",
                "ip daddr 127.0.0.0/8 iiftype != loopback drop",
            ],
        )
        .at(Filter, Input, RAW),
        // Packets to 127.0.0.0/8 from other hosts do not reach hostPorts either.
        Chain::plain("nat-prerouting", &["ip daddr 127.0.0.0/8 iiftype != loopback drop", "jump hostports"])
            .at(Nat, Prerouting, DSTNAT),
        Chain::plain("nat-output", &["jump hostports"]).at(Nat, Output, DSTNAT),
        Chain::plain("nat-postrouting", &["ct status dnat jump dnat-return"]).at(Nat, Postrouting, SRCNAT),
        // Packets to a hostIP that is no address of the node are only forwarded. The kernel forwards neither ::1 nor link-local
        // addresses.
        Chain::plain(
            "hostports",
            &[
                "meta l4proto != { tcp, udp, sctp } return",
                "fib daddr type != local return",
                "dnat ip to ip daddr . meta l4proto . th dport map @hostport4",
                "dnat ip6 to ip6 daddr . meta l4proto . th dport map @hostport6",
                "ip6 daddr { ::1, fe80::/10 } return",
                "dnat ip to meta l4proto . th dport map @hostport4_any",
                "dnat ip6 to meta l4proto . th dport map @hostport6_any",
            ],
        ),
        // Connections with a translated destination, by Podwire or by another program. A pod that reaches itself by another
        // address needs a reply from that address. A pod that reaches another pod of its bridge through a hostPort needs a reply
        // through the host.
        Chain::plain(
            "dnat-return",
            &[
                "ip saddr . ip daddr @self4 masquerade",
                "ip6 saddr . ip6 daddr @self6 masquerade",
                "ip saddr 127.0.0.0/8 ip daddr @pods4 masquerade",
                "meta l4proto tcp ip saddr @pods4 ip daddr . meta l4proto . th dport . ct original proto-dst @hairpin4 masquerade",
                "meta l4proto udp ip saddr @pods4 ip daddr . meta l4proto . th dport . ct original proto-dst @hairpin4 masquerade",
                "meta l4proto sctp ip saddr @pods4 ip daddr . meta l4proto . th dport . ct original proto-dst @hairpin4 masquerade",
                "meta l4proto tcp ip6 saddr @pods6 ip6 daddr . meta l4proto . th dport . ct original proto-dst @hairpin6 masquerade",
                "meta l4proto udp ip6 saddr @pods6 ip6 daddr . meta l4proto . th dport . ct original proto-dst @hairpin6 masquerade",
                "meta l4proto sctp ip6 saddr @pods6 ip6 daddr . meta l4proto . th dport . ct original proto-dst @hairpin6 masquerade",
            ],
        ),
    ];
    let shared = Some(NetworkChain::PREFIX);
    Table { shared, ..Table::new(TableFamily::Inet, TABLE, inet_sets(), chains) }
}

fn bridge() -> Table {
    let sets = vec![
        // The bridge port of a pod, and its permitted source addresses.
        Set::expiring(PORTS, &[Link]),
        Set::expiring(MACS, &[Link, Mac]),
        Set::expiring(SETS4.addr, &[Link, Ip4]),
        Set::expiring(SETS6.addr, &[Link, Ip6]),
        Set::expiring(TARGETS, &[Link, TARGET]),
        // Ports that may send DHCP requests, and ports with only a known MAC (layer 2 only).
        Set::expiring(DHCP_PORTS, &[Link]),
        Set::expiring(MAC_PORTS, &[Link]),
    ];
    let chains = vec![
        // Other frames, such as those with a VLAN tag, could contain another source.
        Chain::plain(
            "guard",
            &[
                "iifname != @ports accept",
                "iifname . ether saddr != @macs drop",
                "ether type vmap { ip : jump from4, ip6 : jump from6, arp : jump from-arp }",
                "iifname @mac_ports goto from-mac",
                "drop",
            ],
        )
        .at(Filter, Prerouting, RAW),
        // DHCP requests are broadcasts. A release may be sent to the server's address.
        Chain::plain(
            "from4",
            &[
                "iifname . ip saddr @addr4 accept",
                "iifname @dhcp_ports ip saddr 0.0.0.0 udp sport 68 udp dport 67 accept",
            ],
        ),
        Chain::plain(
            "from6",
            &[
                "icmpv6 type { nd-router-advert, nd-redirect } return",
                "icmpv6 type nd-neighbor-advert goto advert6",
                "iifname . ip6 saddr @addr6 accept",
                "ip6 saddr :: icmpv6 type nd-neighbor-solicit iifname . @th,64,128 @targets6 accept",
            ],
        ),
        Chain::plain(
            "from-arp",
            &[
                "arp htype 1 arp ptype ip arp hlen 6 arp plen 4 iifname . arp saddr ether @macs iifname . arp saddr ip @addr4 accept",
                "arp htype 1 arp ptype ip arp hlen 6 arp plen 4 iifname . arp saddr ether @macs arp saddr ip 0.0.0.0 arp operation request accept",
            ],
        ),
        Chain::plain("advert6", &["iifname . ip6 saddr @addr6 iifname . @th,64,128 @targets6 accept"]),
        // A frame with a VLAN tag could contain ARP of another sender.
        Chain::plain(
            "from-mac",
            &[
                "ether type { 8021q, 8021ad } drop",
                "ether type != arp accept",
                "arp htype 1 arp ptype ip arp hlen 6 arp plen 4 iifname . arp saddr ether @macs accept",
                "drop",
            ],
        ),
    ];
    Table::new(TableFamily::Bridge, TABLE, sets, chains)
}

/// Each masqueraded network has a chain and two sets. Adding a pod to a set takes constant time. In a map of jumps, the kernel
/// would walk the whole map each time.
fn network_sets(network: &NetworkChain) -> [Set; 2] {
    [(network.set4(), Ip4), (network.set6(), Ip6)].map(|(name, ip)| Set::expiring(name.to_owned(), &[ip]))
}

/// Link-local IPv4 is masqueraded, because metadata services of clouds are there and reply only to the node's address.
fn network_chain(network: &NetworkChain) -> Chain {
    let mut rules: Vec<Name> = vec![
        format!("ip saddr != @{} return", network.set4()).into(),
        format!("ip6 saddr != @{} return", network.set6()).into(),
        "ip daddr { 224.0.0.0/4, 255.255.255.255 } return".into(),
        "ip6 daddr { fe80::/10, ff00::/8 } return".into(),
        "ip daddr @pods4 return".into(),
        "ip6 daddr @pods6 return".into(),
    ];
    for (word, is_v4) in [("ip", true), ("ip6", false)] {
        let nets = network.cidrs().iter().filter(|net| matches!(net, IpNet::V4(_)) == is_v4);
        let nets: Vec<String> = nets.map(ToString::to_string).collect();
        if !nets.is_empty() {
            rules.push(format!("{word} daddr {{ {} }} return", nets.join(", ")).into());
        }
    }
    rules.push("masquerade".into());
    Chain { rules, ..Chain::plain("", &[]).at(Nat, Postrouting, SRCNAT + 1) }.named(network.id())
}

impl Chain {
    fn named(self, name: &str) -> Self {
        Self { name: name.to_owned().into(), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::{AppliedObject, Base, HookPoint};

    #[test]
    fn tables_are_rendered_as_text_of_nft() {
        let network = NetworkChain::new(&"blue".try_into().unwrap(), &["10.0.0.0/24".parse().unwrap()]);
        let text = Structure::default()
            .with(AttachMode::Routed, Guard::On, Some(&network))
            .table(TableFamily::Inet)
            .text();
        for line in [
            "\tset source6 { type ifname . ipv6_addr . ether_addr; flags timeout; }",
            "\tmap hostport4_any { type inet_proto . inet_service : ipv4_addr . inet_service; flags timeout; }",
            "\tmap applied { type mark : mark; }",
            "\tchain guard { type filter hook prerouting priority -300; policy accept; }",
            "\tchain dnat-return { }",
            "flush chain inet podwire dnat-return",
            "\t\tip daddr { 10.0.0.0/24 } return",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
        let set = format!("\tset {} {{ type ipv6_addr; flags timeout; }}", network.set6());
        assert!(text.contains(&set), "{text}");
        let targets = "set targets6 { typeof iifname . @th,64,128; flags timeout; }";
        assert!(base(TableFamily::Bridge).text().contains(targets));
    }

    #[test]
    fn the_stated_revision_is_that_of_the_base_structure() {
        let network = NetworkChain::new(&"blue".try_into().unwrap(), &[]);
        let with = Structure::default().with(AttachMode::Bridge, Guard::On, Some(&network));
        let revisions = [TableFamily::Inet, TableFamily::Bridge].map(|family| with.table(family).revision());
        let stated = [revision(TableFamily::Inet), revision(TableFamily::Bridge)];
        assert_eq!(stated, revisions, "the structure changed: use {revisions:#010x?} in `revision`");
        let changed = |change: &dyn Fn(&mut Table)| {
            let mut table = base(TableFamily::Inet).clone();
            change(&mut table);
            table.revision()
        };
        let is_other = |change: &dyn Fn(&mut Table)| changed(change) != revision(TableFamily::Inet);
        assert!(is_other(&|table| table.chains[2].rules[0] = "accept".into()));
        assert!(is_other(&|table| table.sets.truncate(3)));
        let base = Base { kind: Filter, hook: HookPoint::Forward, priority: 0 };
        assert!(is_other(&|table| table.chains[0].base = Some(base)));
        assert_ne!(AppliedObject::Set("guard").key(), AppliedObject::Chain("guard").key());
    }

    #[test]
    fn the_guard_identifies_links_of_pods_by_name() {
        let key = types::AttachmentKey {
            network: "blue".try_into().unwrap(),
            container: "a".try_into().unwrap(),
            ifname: "eth0".try_into().unwrap(),
        };
        assert!(key.host_link(0).as_str().starts_with("pw"));
        assert!(base(TableFamily::Inet).chains[0].rules[0].starts_with(r#"iifname "pw*""#));
    }
}
