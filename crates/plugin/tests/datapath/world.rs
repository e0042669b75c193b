//! The lab of these tests, and probes that tell who the server saw.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use testkit::{CableEnd, DEADLINE, Node, Ns, inspect, tcp_connects, tcp_echo, udp_connects, udp_echo};

use crate::common::{Host, words};

/// Long enough for an answer that comes, short enough to wait for one that must not.
pub(crate) const NEVER: Duration = Duration::from_millis(400);

pub(crate) const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
pub(crate) const OUT: [&str; 2] = ["192.0.2.2", "2001:db8::2"];

/// A host outside that is wired to the node and knows the way to `pods`, as a router of the site would.
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
    /// The address that the server saw the client under; none if there was no answer.
    pub(crate) fn ask(self, from: &Ns, to: SocketAddr, within: Duration) -> Option<IpAddr> {
        let seen = match self {
            Self::Tcp => tcp_connects(from, to, within),
            Self::Udp => udp_connects(from, to, within),
        };
        seen.unwrap().map(|peer| peer.ip())
    }

    pub(crate) fn serve(self, ns: &Ns, at: SocketAddr) -> testkit::Echo {
        match self {
            Self::Tcp => tcp_echo(ns, at),
            Self::Udp => udp_echo(ns, at),
        }
        .unwrap()
    }
}

/// Who a server on `to` sees when `from` asks it, by TCP and by UDP, which must agree.
pub(crate) fn seen_as(from: &Ns, server: &Ns, to: IpAddr) -> IpAddr {
    let seen = BOTH.map(|transport| {
        let echo = transport.serve(server, (to, 0).into());
        let seen = transport.ask(from, echo.address(), DEADLINE);
        seen.unwrap_or_else(|| panic!("{transport:?} from {} to {to} had no answer", from.name()))
    });
    assert_eq!(seen[0], seen[1], "TCP and UDP from {} to {to}", from.name());
    seen[0]
}

pub(crate) fn is_address_of(ns: &Ns, address: IpAddr) -> bool {
    inspect::all_addresses(ns).unwrap().iter().any(|a| a.net.addr() == address)
}
