//! The structure of our tables, as nft text. It is applied whole, in one transaction, and may be applied again at any
//! time: sets, maps and their elements stay; the rules are flushed and written anew.

use std::net::IpAddr;

use ipnet::IpNet;
use types::{Digest, IfName};

use crate::pod::NetworkChain;

/// The name of our tables, in every family.
pub(crate) const TABLE: &str = "podwire";

/// The map that says which structure a table has: one element, `REVISION_KEY` to a number made from the text.
pub(crate) const REVISION: &str = "revision";
pub(crate) const REVISION_KEY: u32 = 1;
/// The set of devices that lead to other nodes and carry less than pods' links.
pub(crate) const TUNNELS: &str = "tunnels";

/// Who a table is for: `inet` sees packets at the host's IP layer, `bridge` frames between ports of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    Inet,
    Bridge,
}

impl Family {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Bridge => "bridge",
        }
    }

    fn structure(self) -> &'static Structure {
        match self {
            Self::Inet => &INET,
            Self::Bridge => &BRIDGE,
        }
    }

    /// The chains of the structure, without those of networks.
    pub(crate) fn chains(self) -> &'static [&'static str] {
        self.structure().chains
    }

    /// A number that changes with the text, so that a table of another version is seen and renewed.
    pub(crate) fn revision(self) -> u32 {
        let structure = self.structure();
        let mut texts = vec!["structure", structure.objects, structure.rules];
        if self == Self::Inet {
            texts.extend([CLAMP.objects, CLAMP.rules]);
        }
        let [a, b, c, d, _] = Digest::of(&texts).first5();
        u32::from_be_bytes([a, b, c, d])
    }
}

/// Whether connections through tunnels are to learn what fits. Every packet that is forwarded pays for it, so it is there
/// only while set `tunnels` has members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clamp {
    On,
    Off,
}

impl Clamp {
    /// By the members of set `tunnels`.
    pub(crate) fn of(tunnels: &[IfName]) -> Self {
        if tunnels.is_empty() { Self::Off } else { Self::On }
    }
}

struct Structure {
    /// Sets, maps and chains without rules: adding what is already there changes nothing. One that gets a hook, another hook
    /// or another type needs another name: over a table of the version before, the kernel would refuse all of it.
    objects: &'static str,
    /// The rules; they are added to chains that were flushed before, in the same transaction.
    rules: &'static str,
    chains: &'static [&'static str],
    /// Sets of earlier versions, name and definition, which no rule uses any more.
    retired: &'static [(&'static str, &'static str)],
}

impl Structure {
    fn write(&self, family: &str, out: &mut String) {
        out.push_str(self.objects);
        for chain in self.chains {
            out.push_str(&format!("flush chain {family} {TABLE} {chain}\n"));
        }
        for (set, definition) in self.retired {
            // Added first, because deleting one that is not there fails.
            out.push_str(&format!("add set {family} {TABLE} {set} {definition}\n"));
            out.push_str(&format!("delete set {family} {TABLE} {set}\n"));
        }
        out.push_str(self.rules);
    }
}

/// Removes the chains that clamp, whether they are there or not.
pub(crate) fn without_clamp() -> String {
    let mut out = CLAMP.objects.to_owned();
    for verb in ["flush", "delete"] {
        out.extend(CLAMP.chains.iter().map(|chain| format!("{verb} chain inet {TABLE} {chain}\n")));
    }
    out
}

/// What `families` and the chains of these networks look like, for `nft -f -`.
pub(crate) fn text(families: &[Family], networks: &[&NetworkChain], clamp: Clamp) -> String {
    let mut out = String::new();
    for family in families {
        let word = family.word();
        family.structure().write(word, &mut out);
        if (*family, clamp) == (Family::Inet, Clamp::On) {
            CLAMP.write(word, &mut out);
        }
        out.push_str(&format!(
            "flush map {word} {TABLE} {REVISION}\nadd element {word} {TABLE} {REVISION} {{ {REVISION_KEY} : {:#010x} }}\n",
            family.revision()
        ));
    }
    for network in networks {
        out.push_str(&network_text(network));
    }
    out
}

/// A network that is masqueraded has a chain and two sets of its own: adding a pod is then adding to a plain set, which takes
/// the same time whatever is in it (for a map of jumps the kernel walks the whole map each time).
fn network_text(network: &NetworkChain) -> String {
    let (chain, set4, set6) = (network.id(), network.set4(), network.set6());
    let list = |v4: bool| {
        let nets = network.cidrs().iter().filter(|net| matches!(net, IpNet::V4(_)) == v4);
        nets.map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    let inside = |word: &str, nets: String| match nets.as_str() {
        "" => String::new(),
        nets => format!("\t\t{word} daddr {{ {nets} }} return\n"),
    };
    format!(
        "table inet {TABLE} {{
\tset {set4} {{ type ipv4_addr; flags timeout; }}
\tset {set6} {{ type ipv6_addr; flags timeout; }}
\tchain {chain} {{ type nat hook postrouting priority srcnat + 1; policy accept; }}
}}
flush chain inet {TABLE} {chain}
table inet {TABLE} {{
\tchain {chain} {{
\t\tip saddr != @{set4} return
\t\tip6 saddr != @{set6} return
\t\t# not 169.254.0.0/16: clouds have their metadata service there, and it answers the node's own address only
\t\tip daddr {{ 224.0.0.0/4, 255.255.255.255 }} return
\t\tip6 daddr {{ fe80::/10, ff00::/8 }} return
\t\tip daddr @pods4 return
\t\tip6 daddr @pods6 return
{}{}\t\tmasquerade
\t}}
}}
",
        inside("ip", list(true)),
        inside("ip6", list(false)),
    )
}

/// Pods in the sets of their network.
pub(crate) fn members(network: &NetworkChain, pods: &[IpAddr]) -> String {
    let line = |ip: &IpAddr| {
        let set = if ip.is_ipv4() { network.set4() } else { network.set6() };
        format!("add element inet {TABLE} {set} {{ {ip} }}\n")
    };
    pods.iter().map(line).collect()
}

const INET: Structure = Structure {
    retired: &[
        ("addr4", "{ type ifname . ipv4_addr; flags timeout; }"),
        ("addr6", "{ type ifname . ipv6_addr; flags timeout; }"),
    ],
    chains: &[
        "guard",
        "from-pod",
        "from-pod6",
        "from-pod-icmp6",
        "pod-source",
        "to-host",
        "nat-prerouting",
        "nat-output",
        "nat-postrouting",
        "hostports",
        "bent",
    ],
    objects: r#"table inet podwire {
	comment "podwire"
	map revision { type mark : mark; }

	# every pod on this node
	set pods4 { type ipv4_addr; flags timeout; }
	set pods6 { type ipv6_addr; flags timeout; }
	# (pod, the same pod)
	set self4 { type ipv4_addr . ipv4_addr; flags timeout; }
	set self6 { type ipv6_addr . ipv6_addr; flags timeout; }
	# [host address,] protocol, host port -> pod, port
	map hostport4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; flags timeout; }
	map hostport6 { type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service; flags timeout; }
	map hostport4_any { type inet_proto . inet_service : ipv4_addr . inet_service; flags timeout; }
	map hostport6_any { type inet_proto . inet_service : ipv6_addr . inet_service; flags timeout; }
	# pod on a bridge, protocol, its port, host port
	set hairpin4 { type ipv4_addr . inet_proto . inet_service . inet_service; flags timeout; }
	set hairpin6 { type ipv6_addr . inet_proto . inet_service . inet_service; flags timeout; }

	# host ends of guarded pods, and the addresses and MACs that routed pods send from. Nothing may come from a bridge
	# port here: packets of pods on a bridge have the bridge as their input interface
	set ports { type ifname; flags timeout; }
	set source4 { type ifname . ipv4_addr . ether_addr; flags timeout; }
	set source6 { type ifname . ipv6_addr . ether_addr; flags timeout; }
	# pods whose packets reach the host only through one link; and that link, where the guard does not know it
	set bound4 { type ipv4_addr; flags timeout; }
	set bound6 { type ipv6_addr; flags timeout; }
	set via4 { type ipv4_addr . ifname; flags timeout; }
	set via6 { type ipv6_addr . ifname; flags timeout; }

	# devices that lead to other nodes and carry less than pods' links: with any, there are the chains `clamp`
	set tunnels { type ifname; }

	chain guard { type filter hook prerouting priority raw; policy accept; }
	chain from-pod { }
	chain from-pod6 { }
	chain from-pod-icmp6 { }
	chain pod-source { }
	chain to-host { type filter hook input priority raw; policy accept; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; }
	chain nat-output { type nat hook output priority -100; policy accept; }
	chain nat-postrouting { type nat hook postrouting priority srcnat; policy accept; }
	chain hostports { }
	chain bent { }
}
"#,
    rules: r#"table inet podwire {
	# every packet of the host comes through here, and most are of no pod: they pay for one lookup of their source
	chain guard {
		iifname "pw*" goto from-pod
		ip saddr @bound4 goto pod-source
		ip6 saddr @bound6 goto pod-source
	}
	# packets with a pod's source from a link that is not the pod's: other hosts of the underlay could send them. On the
	# loopback are only the host's own
	chain pod-source {
		iiftype loopback accept
		ip saddr . iifname @via4 accept
		ip6 saddr . iifname @via6 accept
		drop
	}
	# links that are named as those of pods are; nearly all packets are of a guarded pod and may pass
	chain from-pod {
		iifname "pwvx*" iifname != @ports accept
		iifname . ip saddr . ether saddr @source4 ip daddr != 127.0.0.0/8 accept
		meta nfproto ipv6 goto from-pod6
		iifname @ports drop
		ip saddr @bound4 goto pod-source
	}
	chain from-pod6 {
		meta l4proto icmpv6 goto from-pod-icmp6
		iifname . ip6 saddr . ether saddr @source6 accept
		iifname @ports drop
		ip6 saddr @bound6 goto pod-source
	}
	# both ends of a pod's link know each other for good: no neighbour discovery is needed, and none is let in
	chain from-pod-icmp6 {
		icmpv6 type 133-137 iifname @ports drop
		iifname . ip6 saddr . ether saddr @source6 accept
		iifname @ports drop
		ip6 saddr @bound6 goto pod-source
	}
	# route_localnet, which hostPorts on 127.0.0.1 need, would open the host's loopback to others. What is forwarded does not
	# come through here. What the host itself sent from there to a hostPort left with another source: its answers are let in
	chain to-host {
		ip saddr 127.0.0.0/8 iiftype != loopback drop
		ip daddr 127.0.0.0/8 iiftype != loopback ct status snat accept
		ip daddr 127.0.0.0/8 iiftype != loopback drop
	}
	chain hostports {
		meta l4proto != { tcp, udp, sctp } return
		# a hostIP that is no address of the node never matches: packets to it only pass through
		fib daddr type != local return
		dnat ip to ip daddr . meta l4proto . th dport map @hostport4
		dnat ip6 to ip6 daddr . meta l4proto . th dport map @hostport6
		# the kernel forwards neither ::1 nor link-local addresses
		ip6 daddr { ::1, fe80::/10 } return
		dnat ip to meta l4proto . th dport map @hostport4_any
		dnat ip6 to meta l4proto . th dport map @hostport6_any
	}
	# connections whose destination was changed, by us or by others
	chain bent {
		# a pod that reaches itself by another address must see an answer from that address
		ip saddr . ip daddr @self4 masquerade
		ip6 saddr . ip6 daddr @self6 masquerade
		# from the host's loopback to a hostPort
		ip saddr 127.0.0.0/8 ip daddr @pods4 masquerade
		# from a pod through a hostPort to its neighbour on a bridge: the answer must not take the short way
		meta l4proto tcp ip saddr @pods4 ip daddr . meta l4proto . th dport . ct original proto-dst @hairpin4 masquerade
		meta l4proto udp ip saddr @pods4 ip daddr . meta l4proto . th dport . ct original proto-dst @hairpin4 masquerade
		meta l4proto sctp ip saddr @pods4 ip daddr . meta l4proto . th dport . ct original proto-dst @hairpin4 masquerade
		meta l4proto tcp ip6 saddr @pods6 ip6 daddr . meta l4proto . th dport . ct original proto-dst @hairpin6 masquerade
		meta l4proto udp ip6 saddr @pods6 ip6 daddr . meta l4proto . th dport . ct original proto-dst @hairpin6 masquerade
		meta l4proto sctp ip6 saddr @pods6 ip6 daddr . meta l4proto . th dport . ct original proto-dst @hairpin6 masquerade
	}
	chain nat-prerouting {
		# nor do hostPorts lead anybody on who asks for them there
		ip daddr 127.0.0.0/8 iiftype != loopback drop
		jump hostports
	}
	chain nat-output {
		jump hostports
	}
	chain nat-postrouting {
		ct status dnat jump bent
	}
}
"#,
};

/// A tunnel carries less than a pod's link: a connection learns it with its first packets, without any "too big".
const CLAMP: Structure = Structure {
    retired: &[],
    chains: &["clamp", "clamp-syn"],
    objects: r#"table inet podwire {
	chain clamp { type filter hook forward priority -150; policy accept; }
	chain clamp-syn { }
}
"#,
    rules: r#"table inet podwire {
	chain clamp {
		tcp flags syn goto clamp-syn
	}
	chain clamp-syn {
		oifname @tunnels tcp option maxseg size set rt mtu
		iifname @tunnels tcp option maxseg size set rt mtu
	}
}
"#,
};

const BRIDGE: Structure = Structure {
    retired: &[],
    chains: &["guard", "from4", "from6", "from-arp", "advert6", "from-mac"],
    objects: r#"table bridge podwire {
	comment "podwire"
	map revision { type mark : mark; }

	# the bridge port of a pod, and what may come out of it
	set ports { type ifname; flags timeout; }
	set macs { type ifname . ether_addr; flags timeout; }
	set addr4 { type ifname . ipv4_addr; flags timeout; }
	set addr6 { type ifname . ipv6_addr; flags timeout; }
	# the same as addr6, for the target of neighbour discovery, to which older nft programs give no other type
	set targets6 { typeof iifname . @th,64,128; flags timeout; }
	# ports that may ask a DHCP server, and ports of which only the MAC is known (layer 2 only)
	set dhcp_ports { type ifname; flags timeout; }
	set mac_ports { type ifname; flags timeout; }

	chain guard { type filter hook prerouting priority -300; policy accept; }
	chain from4 { }
	chain from6 { }
	chain from-arp { }
	chain advert6 { }
	chain from-mac { }
}
"#,
    rules: r#"table bridge podwire {
	chain guard {
		iifname != @ports accept
		iifname . ether saddr != @macs drop
		# anything else, such as frames that carry a VLAN tag, could hide a foreign source
		ether type vmap { ip : jump from4, ip6 : jump from6, arp : jump from-arp }
		iifname @mac_ports goto from-mac
		drop
	}
	chain from4 {
		iifname . ip saddr @addr4 accept
		# requests are broadcasts, and a release may go to the server's own address
		iifname @dhcp_ports ip saddr 0.0.0.0 udp sport 68 udp dport 67 accept
	}
	chain from6 {
		icmpv6 type { nd-router-advert, nd-redirect } return
		icmpv6 type nd-neighbor-advert goto advert6
		iifname . ip6 saddr @addr6 accept
		ip6 saddr :: icmpv6 type nd-neighbor-solicit iifname . @th,64,128 @targets6 accept
	}
	chain advert6 {
		iifname . ip6 saddr @addr6 iifname . @th,64,128 @targets6 accept
	}
	chain from-mac {
		# a VLAN tag could hide another sender in ARP
		ether type { 8021q, 8021ad } drop
		ether type != arp accept
		arp htype 1 arp ptype ip arp hlen 6 arp plen 4 iifname . arp saddr ether @macs accept
		drop
	}
	chain from-arp {
		arp htype 1 arp ptype ip arp hlen 6 arp plen 4 iifname . arp saddr ether @macs iifname . arp saddr ip @addr4 accept
		arp htype 1 arp ptype ip arp hlen 6 arp plen 4 iifname . arp saddr ether @macs arp saddr ip 0.0.0.0 arp operation request accept
	}
}
"#,
};
