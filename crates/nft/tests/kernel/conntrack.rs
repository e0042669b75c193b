//! Conntrack entries of an address or a host port are removed, all others stay.

use std::net::IpAddr;

use nft::{HostPort, Protocol, conntrack};
use types::Family;

use crate::common::{in_netns, run};

/// A UDP entry with source port 999. The reply comes from `reply_from`, which differs from `to` after DNAT.
struct Flow {
    from: &'static str,
    to: &'static str,
    port: u16,
    reply_from: &'static str,
}

impl Flow {
    fn insert(&self) {
        let port = self.port.to_string();
        let original = ["-I", "-s", self.from, "-d", self.to, "-p", "udp", "--sport", "999", "--dport"];
        let reply =
            ["-r", self.reply_from, "-q", self.from, "--reply-port-src", &port, "--reply-port-dst", "999"];
        let args: Vec<&str> =
            original.into_iter().chain([port.as_str()]).chain(reply).chain(["-t", "600"]).collect();
        run("conntrack", &args);
    }
}

const fn flow(from: &'static str, to: &'static str, port: u16, reply_from: &'static str) -> Flow {
    Flow { from, to, port, reply_from }
}

/// The original tuples of all entries: source, destination, destination port.
fn entries() -> Vec<String> {
    let mut lines = Vec::new();
    for family in ["ipv4", "ipv6"] {
        for line in run("conntrack", &["-L", "-f", family]).lines() {
            let word =
                |key: &str| line.split(' ').find_map(|w| w.strip_prefix(key)).unwrap_or("?").to_owned();
            lines.push(format!("{} {} {}", word("src="), word("dst="), word("dport=")));
        }
    }
    lines.sort();
    lines
}

const FLOWS: [Flow; 8] = [
    flow("10.77.0.2", "192.0.2.7", 53, "192.0.2.7"),
    flow("192.0.2.7", "10.77.0.2", 53, "10.77.0.2"),
    flow("192.0.2.7", "192.0.2.1", 5353, "10.77.0.2"),
    flow("10.77.0.3", "192.0.2.1", 5353, "192.0.2.1"),
    flow("fd77::2", "2001:db8::7", 53, "2001:db8::7"),
    flow("2001:db8::7", "2001:db8::1", 5353, "fd77::2"),
    flow("fd77::3", "2001:db8::1", 5353, "2001:db8::1"),
    flow("2001:db8::7", "fd77::3", 53, "fd77::3"),
];

fn with_flows(body: impl FnOnce() + Send) {
    in_netns(|| {
        FLOWS.iter().for_each(Flow::insert);
        assert_eq!(entries().len(), FLOWS.len());
        body();
    });
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn f3_only_conntrack_entries_of_the_address_are_removed() {
    with_flows(|| {
        assert_eq!(conntrack::flush(&[ip("10.77.0.2")]).unwrap(), [""; 0].map(ip));
        let v6 = ["2001:db8::7 2001:db8::1 5353", "2001:db8::7 fd77::3 53", "fd77::2 2001:db8::7 53"];
        let rest = ["10.77.0.3 192.0.2.1 5353", v6[0], v6[1], v6[2], "fd77::3 2001:db8::1 5353"];
        assert_eq!(entries(), rest);
        conntrack::flush(&[ip("10.77.0.9")]).unwrap();
        assert_eq!(entries(), rest);
        // The kernel cannot filter a flush by IPv6 addresses, so they are returned. A sweep removes their entries.
        let unselected = conntrack::flush(&[ip("10.77.0.2"), ip("fd77::2")]).unwrap();
        assert_eq!((unselected, entries()), (vec![ip("fd77::2")], rest.map(str::to_owned).to_vec()));
        conntrack::sweep(Family::V6, &|address| address == ip("fd77::9")).unwrap();
        assert_eq!(entries(), rest);
        conntrack::sweep(Family::V6, &|address| address == ip("fd77::2")).unwrap();
        assert_eq!(entries(), ["10.77.0.3 192.0.2.1 5353", v6[1], "fd77::3 2001:db8::1 5353"]);
        conntrack::sweep(Family::V4, &|_| true).unwrap();
        assert_eq!(entries(), [v6[1], "fd77::3 2001:db8::1 5353"]);
    });
}

#[test]
fn pain16_conntrack_entries_of_udp_host_ports_are_removed() {
    with_flows(|| {
        let port = |protocol, host_ip: Option<&str>, pod: &str| HostPort {
            host_ip: host_ip.map(ip),
            host_port: 5353,
            protocol,
            pod: ip(pod),
            pod_port: 53,
        };
        conntrack::flush_ports(&[
            port(Protocol::Tcp, None, "10.77.0.2"),
            port(Protocol::Udp, Some("192.0.2.99"), "10.77.0.2"),
            port(Protocol::Udp, Some("::"), "fd77::2"),
        ])
        .unwrap();
        let v4 = ["10.77.0.2 192.0.2.7 53", "10.77.0.3 192.0.2.1 5353", "192.0.2.7 10.77.0.2 53"];
        let v6 = ["2001:db8::7 fd77::3 53", "fd77::2 2001:db8::7 53"];
        assert_eq!(entries(), [v4[0], v4[1], v4[2], "192.0.2.7 192.0.2.1 5353", v6[0], v6[1]]);
        conntrack::flush_ports(&[port(Protocol::Udp, Some("192.0.2.1"), "10.77.0.2")]).unwrap();
        assert_eq!(entries(), [v4[0], v4[2], v6[0], v6[1]]);
    });
}

#[test]
fn flush_without_conntrack_entries_succeeds() {
    in_netns(|| conntrack::flush(&[ip("10.77.0.2"), ip("fd77::2")]).unwrap());
}
