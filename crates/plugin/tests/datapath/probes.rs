//! A host outside the network, and probes that return the source address that a server observes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use testkit::{CableEnd, DEADLINE, Node, Ns, inspect, tcp_connects, tcp_echo, udp_connects, udp_echo};

use crate::common::{Host, words};

/// Timeout for probes that must not be answered.
pub(crate) const NO_ANSWER: Duration = Duration::from_millis(400);

pub(crate) const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
pub(crate) const OUT: [&str; 2] = ["192.0.2.2", "2001:db8::2"];

/// A host that is connected to the node and has routes to `pods`, like a router of the site.
pub(crate) fn outside(host: &Host, pods: &[&str]) -> Node {
    let out = host.lab.node("out").unwrap();
    let here = CableEnd { ns: &host.node, dev: "up0", addresses: &["192.0.2.1/24", "2001:db8::1/64"] };
    let there = CableEnd { ns: &out, dev: "eth0", addresses: &["192.0.2.2/24", "2001:db8::2/64"] };
    host.lab.wire(&here, &there).unwrap();
    for net in pods {
        let via = if net.contains(':') { NODE[1] } else { NODE[0] };
        out.sh(&words(&format!("ip route add {net} via {via}"))).unwrap();
    }
    out
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

pub(crate) const BOTH: [Transport; 2] = [Transport::Tcp, Transport::Udp];

impl Transport {
    /// The source address that the server observes. None if there is no answer.
    pub(crate) fn probe(self, from: &Ns, to: SocketAddr, timeout: Duration) -> Option<IpAddr> {
        let source = match self {
            Self::Tcp => tcp_connects(from, to, timeout),
            Self::Udp => udp_connects(from, to, timeout),
        };
        source.unwrap().map(|peer| peer.ip())
    }

    pub(crate) fn serve(self, ns: &Ns, address: SocketAddr) -> testkit::Echo {
        match self {
            Self::Tcp => tcp_echo(ns, address),
            Self::Udp => udp_echo(ns, address),
        }
        .unwrap()
    }
}

/// The source address that a server on `to` observes for connections of `from`. It must be the same for TCP and UDP.
pub(crate) fn observed_source(from: &Ns, server: &Ns, to: IpAddr) -> IpAddr {
    let sources = BOTH.map(|transport| {
        let echo = transport.serve(server, (to, 0).into());
        let source = transport.probe(from, echo.address(), DEADLINE);
        source.unwrap_or_else(|| panic!("{transport:?} from {} to {to} had no answer", from.name()))
    });
    assert_eq!(sources[0], sources[1], "TCP and UDP from {} to {to}", from.name());
    sources[0]
}

pub(crate) fn is_address_of(ns: &Ns, address: IpAddr) -> bool {
    inspect::all_addresses(ns).unwrap().iter().any(|a| a.net.addr() == address)
}
