//! Nodes, pods and an outside host as network namespaces. All of them are removed when the last file descriptor is closed.
//!
//! ```text
//! pods 0.. ── pw0.. ─ node 1 (192.168.0.1, 10.83.1.1) ─ up0 ─┐
//!                                                            outside (192.168.0.254, 203.0.113.5, …)
//! pods ..n ── pwn.. ─ node 2 (192.168.0.2, 10.83.2.1) ─ up0 ─┘
//! ```
//!
//! Each pod has the addresses of all networks, as random worlds number them, and a service address for each of them. The nodes
//! translate service addresses and ports, like kube-proxy.

use std::io::Write as _;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};

use netlink::NetNs;
use types::IfName;

/// The service port of port 80 is 10080.
pub(crate) const SERVICE_PORTS: u16 = 10_000;
pub(crate) const PORTS: [u16; 10] = [7, 80, 81, 1000, 8080, 8085, 8090, 8096, 9001, 9153];
/// Addresses of the outside host, also inside of networks.
pub(crate) const OUTSIDE: [&str; 8] = [
    "203.0.113.5",
    "203.0.113.200",
    "8.8.8.8",
    "10.84.9.9",
    "2001:db8::5",
    "2606::5",
    "fd00:89:9::9",
    "fd00:88:9::9",
];
const HOST_MAC: &str = "02:00:00:00:00:01";
const POD_MAC: &str = "02:00:00:00:00:02";

/// One of the namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum At {
    Pod(usize),
    /// 0 is the first node.
    Node(usize),
    Outside,
}

pub(crate) struct Site {
    /// The index of the node of each pod.
    pub(crate) node_of: Vec<usize>,
    pods: Vec<NetNs>,
    nodes: Vec<NetNs>,
    outside: NetNs,
}

impl Site {
    pub(crate) fn new(node_of: &[usize]) -> Self {
        let namespaces = |count| (0..count).map(|_| NetNs::create().unwrap()).collect();
        let site = Self {
            node_of: node_of.to_vec(),
            pods: namespaces(node_of.len()),
            nodes: namespaces(node_of.iter().max().unwrap() + 1),
            outside: NetNs::create().unwrap(),
        };
        site.all().for_each(|at| site.prepare(at));
        site.ip(At::Outside, &outside_links(site.nodes.len()));
        (0..site.nodes.len()).for_each(|index| site.node(index));
        (0..site.pods.len()).for_each(|number| site.pod(number));
        site
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = At> {
        let pods = (0..self.pods.len()).map(At::Pod);
        pods.chain((0..self.nodes.len()).map(At::Node)).chain([At::Outside])
    }

    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn namespace(&self, at: At) -> &NetNs {
        match at {
            At::Pod(number) => &self.pods[number],
            At::Node(index) => &self.nodes[index],
            At::Outside => &self.outside,
        }
    }

    pub(crate) fn inside<T: Send>(&self, at: At, body: impl FnOnce() -> T + Send) -> T {
        self.namespace(at).run(body).unwrap()
    }

    /// Packets are dropped by the table of policies only, and addresses are usable at once. A pod accepts packets from itself.
    fn prepare(&self, at: At) {
        self.inside(at, || {
            for of in ["all", "default"] {
                for (name, value) in [
                    (format!("ipv4/conf/{of}/rp_filter"), "0"),
                    (format!("ipv4/conf/{of}/accept_local"), "1"),
                    (format!("ipv4/conf/{of}/send_redirects"), "0"),
                    (format!("ipv6/conf/{of}/accept_dad"), "0"),
                ] {
                    std::fs::write(format!("/proc/sys/net/{name}"), value).unwrap();
                }
            }
        });
        self.ip(at, "link set lo up\n");
    }

    /// A batch of `ip`.
    fn ip(&self, at: At, batch: &str) {
        self.inside(at, || with_input("ip", &["-batch", "-"], batch));
    }

    fn path(&self, at: At) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace(at).fd().as_raw_fd())
    }

    fn node(&self, index: usize) {
        let (at, own) = (At::Node(index), index + 1);
        self.ip(
            At::Outside,
            &format!(
                "link add node{own} type veth peer name up0 netns {}\nlink set node{own} master br0 up\n",
                self.path(at)
            ),
        );
        let mut batch = format!(
            "addr add 192.168.0.{own}/24 dev up0
addr add fd00:1::{own}/64 dev up0 nodad
addr add 10.83.{own}.1/32 dev up0
addr add fd00:88:{own}::1/128 dev up0 nodad
link set up0 up
route add default via 192.168.0.254
route add default via fd00:1::fe
"
        );
        for other in (1..=self.nodes.len()).filter(|other| *other != own) {
            batch += &routes_to(other);
        }
        self.ip(at, &batch);
        self.inside(at, || {
            for path in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                std::fs::write(format!("/proc/sys/net/{path}"), "1").unwrap();
            }
            with_input("nft", &["-f", "-"], &services(&self.node_of));
        });
    }

    fn pod(&self, number: usize) {
        let (node, link) = (At::Node(self.node_of[number]), link(number));
        let mut on_node = format!(
            "link add {link} address {HOST_MAC} type veth peer name eth0 address {POD_MAC} netns {}\nlink set {link} up\n",
            self.path(At::Pod(number))
        );
        let mut in_pod = String::new();
        for address in addresses(number, self.node_of[number]) {
            let (bits, nodad) = if address.is_ipv4() { (32, "") } else { (128, "nodad") };
            in_pod += &format!("addr add {address}/{bits} dev eth0 {nodad}\n");
            on_node += &format!("route add {address} dev {link}\n");
            on_node += &format!("neigh add {address} lladdr {POD_MAC} nud permanent dev {link}\n");
        }
        in_pod += &format!(
            "link set eth0 up
route add 169.254.1.1 dev eth0
neigh add 169.254.1.1 lladdr {HOST_MAC} nud permanent dev eth0
neigh add fe80::1 lladdr {HOST_MAC} nud permanent dev eth0
route add default via 169.254.1.1 dev eth0
route add default via fe80::1 dev eth0
"
        );
        self.ip(node, &on_node);
        self.ip(At::Pod(number), &in_pod);
    }
}

/// The node's end of a pod's link.
pub(crate) fn link(number: usize) -> IfName {
    IfName::try_from(format!("pw{number}")).unwrap()
}

fn with_input(program: &str, args: &[&str], input: &str) {
    let mut child = Command::new(program).args(args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{program} {args:?}: {input}");
}

fn outside_links(nodes: usize) -> String {
    let mut batch = "link add br0 type bridge mcast_snooping 0
addr add 192.168.0.254/24 dev br0
addr add fd00:1::fe/64 dev br0 nodad
"
    .to_owned();
    for address in OUTSIDE {
        let bits = if address.contains(':') { "128 dev br0 nodad" } else { "32 dev br0" };
        batch += &format!("addr add {address}/{bits}\n");
    }
    batch += "link set br0 up\n";
    batch + &(1..=nodes).map(routes_to).collect::<String>()
}

/// The prefixes of the networks of random worlds.
const V4: [&str; 4] = ["10.83", "10.84", "10.85", "10.86"];
const V6: [&str; 3] = ["fd00:88", "fd00:89", "fd00:8a"];

fn routes_to(node: usize) -> String {
    let v4 = V4.map(|prefix| format!("route add {prefix}.{node}.0/24 via 192.168.0.{node}\n"));
    let v6 = V6.map(|prefix| format!("route add {prefix}:{node}::/48 via fd00:1::{node}\n"));
    v4.concat() + &v6.concat()
}

/// The addresses that a pod may have in a random world.
fn addresses(number: usize, node: usize) -> Vec<IpAddr> {
    let (node, host) = (node + 1, number + 10);
    let v4 = V4.map(|prefix| format!("{prefix}.{node}.{host}"));
    let v6 = V6.map(|prefix| format!("{prefix}:{node}::{host}"));
    v4.iter().chain(&v6).map(|text| text.parse().unwrap()).collect()
}

/// The service address of a pod's address: the last part of the first 16 or 32 bits differs.
pub(crate) fn service(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(ip) => IpAddr::V4(((u32::from(ip) & 0x00ff_ffff) | (198 << 24)).into()),
        IpAddr::V6(ip) => IpAddr::V6(((u128::from(ip) & !(0xffff << 112)) | (0xfd96 << 112)).into()),
    }
}

/// Translates the service addresses and ports of all pods.
fn services(node_of: &[usize]) -> String {
    let elements = |is_chosen: fn(&IpAddr) -> bool| {
        let of_pod = |(number, node): (usize, &usize)| addresses(number, *node);
        let all = node_of.iter().enumerate().flat_map(of_pod).filter(is_chosen).flat_map(|address| {
            PORTS.map(|port| format!("{} . {} : {address} . {port}", service(address), port + SERVICE_PORTS))
        });
        all.collect::<Vec<_>>().join(", ")
    };
    format!(
        "table inet services {{
    map services4 {{ type ipv4_addr . inet_service : ipv4_addr . inet_service; elements = {{ {} }} }}
    map services6 {{ type ipv6_addr . inet_service : ipv6_addr . inet_service; elements = {{ {} }} }}
    chain prerouting {{
        type nat hook prerouting priority dstnat;
        meta l4proto {{ tcp, udp }} dnat ip to ip daddr . th dport map @services4
        meta l4proto {{ tcp, udp }} dnat ip6 to ip6 daddr . th dport map @services6
    }}
}}",
        elements(IpAddr::is_ipv4),
        elements(IpAddr::is_ipv6)
    )
}
