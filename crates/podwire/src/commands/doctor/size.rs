//! Probes paths with packets of the size that pods send, including the tunnel header, and measures the largest size.

use std::io;
use std::net::IpAddr;
use std::thread;
use std::time::Instant;

use types::{Code, Finding, MIN_MTU_V6};

use super::peers::DEADLINE;
use super::ping::{Ping, PingResult};

/// Bytes of the ICMP header.
const ICMP: u32 = 8;
/// Default data size of `ping`.
const SMALL: u32 = 56;
/// Number of sizes that are probed in parallel. A lost packet takes more than a second, and 1500 bytes need four steps.
const PARALLEL_SIZES: u32 = 8;

/// A path that carries small packets, but not packets of the pods' size.
#[derive(Clone)]
pub(super) struct NarrowPath {
    pub(super) node: String,
    pub(super) address: IpAddr,
    /// Bytes that the tunnel adds.
    pub(super) header: u32,
    /// The largest packet of pods, with the header.
    pub(super) wanted: u32,
    /// Pods have IPv6 addresses, so the MTU must be at least 1280.
    pub(super) has_ipv6: bool,
}

/// The path carries packets of the first size, and loses packets of the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    carried: u32,
    lost: u32,
}

/// The largest packet to a node. The MTU check reports packets that do not fit the link.
pub(super) fn largest(pods: Option<u32>, header: u32, link: u32) -> u32 {
    pods.map_or(link, |pods| link.min(pods.saturating_add(header)))
}

fn headers(address: IpAddr) -> u32 {
    ICMP + if address.is_ipv4() { 20 } else { 40 }
}

/// An echo request that is one packet of `size` bytes.
pub(super) fn ping_of(target: IpAddr, size: u32) -> Ping {
    Ping { target, source: None, size: Some(size.saturating_sub(headers(target))) }
}

impl NarrowPath {
    /// Searches for the largest size until the deadline. An error means that packets could not be sent.
    pub(super) fn measure(&self, deadline: Instant) -> io::Result<Finding> {
        let limit = Limit { carried: SMALL + headers(self.address), lost: self.wanted };
        let is_over = || Instant::now() >= deadline;
        limit.narrowed(is_over, |sizes| self.probe(sizes)).map(|limit| self.finding(limit))
    }

    fn probe(&self, sizes: &[u32]) -> io::Result<Vec<bool>> {
        let echo = |size: u32| match ping_of(self.address, size).echo_parallel() {
            PingResult::Replied => Ok(true),
            PingResult::NoReply => Ok(false),
            PingResult::NotSent(reason) => Err(self.not_sent(size, &reason)),
            PingResult::NotRun(error) => Err(error),
        };
        thread::scope(|scope| {
            let probes: Vec<_> = sizes.iter().map(|size| scope.spawn(move || echo(*size))).collect();
            let joined = probes.into_iter().map(|probe| {
                probe.join().unwrap_or_else(|_| Err(io::Error::other("a probe thread panicked")))
            });
            joined.collect()
        })
    }

    pub(super) fn not_sent(&self, size: u32, reason: &str) -> io::Error {
        let Self { node, address, .. } = self;
        io::Error::other(format!("this node cannot send {size} bytes to node {node} at {address}: {reason}"))
    }

    /// Only the largest size was probed.
    pub(super) fn unmeasured(&self) -> Finding {
        self.finding(Limit { carried: SMALL + headers(self.address), lost: self.wanted })
    }

    fn finding(&self, limit: Limit) -> Finding {
        let Self { node, address, header, wanted, has_ipv6 } = self;
        let Limit { carried, lost } = limit;
        let (pods, most) = (wanted.saturating_sub(*header), carried.saturating_sub(*header));
        let tunnel = if *header > 0 { format!(", {wanted} in the tunnel,") } else { String::new() };
        let unprobed = match limit.is_exact() {
            true => String::new(),
            false => {
                format!(
                    " and not {lost} (sizes between them were not probed within {} s)",
                    DEADLINE.as_secs()
                )
            }
        };
        let start = format!(
            "node {node} at {address} is reachable, but pods send up to {pods} bytes{tunnel} and the path carries \
             {carried}{unprobed}: "
        );
        let found = |advice: String| {
            Finding::new(Code::PathMtuTooSmall, format_args!("node {node}"), start.clone() + &advice)
        };
        let least = MIN_MTU_V6 + header;
        if *has_ipv6 && lost <= least {
            return found(format!(
                "pods with IPv6 need {least}, and `network.mtu` cannot be less than {MIN_MTU_V6}; increase the \
                 MTU of the links between the nodes to at least {least} until this command succeeds, or use a network without \
                 IPv6"
            ))
            .fix(ping_of(*address, least).command());
        }
        if !limit.is_exact() && most < MIN_MTU_V6 {
            return found("run the command again to measure it".to_owned()).fix("podwire doctor");
        }
        found(format!("pods may send {most} at most"))
    }
}

impl Limit {
    fn is_exact(&self) -> bool {
        self.carried + 1 >= self.lost
    }

    /// Probes sizes between the two until they are adjacent or the time is over.
    fn narrowed(
        mut self,
        is_over: impl Fn() -> bool,
        probe: impl Fn(&[u32]) -> io::Result<Vec<bool>>,
    ) -> io::Result<Self> {
        while !self.is_exact() && !is_over() {
            let between = self.lost - self.carried - 1;
            let number = between.min(PARALLEL_SIZES);
            let sizes: Vec<u32> =
                (1..=number).map(|step| self.carried + (between + 1) * step / (number + 1)).collect();
            let carried = probe(&sizes)?;
            let largest = sizes
                .iter()
                .zip(&carried)
                .filter(|(_, is_carried)| **is_carried)
                .map(|(size, _)| *size)
                .max();
            self.carried = largest.unwrap_or(self.carried);
            self.lost = sizes.into_iter().find(|size| *size > self.carried).unwrap_or(self.lost);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn path(header: u32, has_ipv6: bool) -> NarrowPath {
        let (node, address) = ("b".to_owned(), IpAddr::from([192, 0, 2, 2]));
        NarrowPath { node, address, header, wanted: 1500, has_ipv6 }
    }

    #[test]
    fn f3_probes_have_the_size_of_pod_packets_with_the_tunnel_header() {
        assert_eq!(largest(Some(1450), 50, 1500), 1500);
        assert_eq!(largest(Some(1340), 50, 1500), 1390, "network.mtu makes them smaller");
        assert_eq!(largest(Some(1340), 0, 1500), 1340, "direct routes add nothing");
        assert_eq!((largest(Some(9000), 50, 1500), largest(None, 50, 1500)), (1500, 1500));
        let found =
            |header, carried| path(header, false).finding(Limit { carried, lost: carried + 1 }).message;
        assert_eq!(
            found(50, 1390),
            "node b at 192.0.2.2 is reachable, but pods send up to 1450 bytes, 1500 in the tunnel, and the path carries \
             1390: pods may send 1340 at most"
        );
        assert!(found(0, 1390).ends_with("carries 1390: pods may send 1390 at most"));
    }

    #[test]
    fn f3_the_search_is_exact_and_stops_at_the_deadline() {
        for mtu in [84, 85, 576, 1390, 1498, 1499] {
            let steps = Cell::new(0);
            let search = |is_over: &dyn Fn() -> bool| {
                Limit { carried: 84, lost: 1500 }.narrowed(is_over, |sizes| {
                    steps.set(steps.get() + 1);
                    Ok(sizes.iter().map(|size| *size <= mtu).collect())
                })
            };
            assert_eq!(search(&|| false).unwrap(), Limit { carried: mtu, lost: mtu + 1 });
            assert!(steps.get() <= 4, "{mtu}: {}", steps.get());
            steps.set(0);
            let Limit { carried, lost } = search(&|| steps.get() == 1).unwrap();
            assert!(carried <= mtu && mtu < lost && lost - carried <= 160, "{carried} to {lost}");
        }
        // A lost smaller packet is ignored if a larger one arrived.
        let lossy = Limit { carried: 84, lost: 1500 }
            .narrowed(|| false, |sizes| Ok(sizes.iter().map(|size| (1000..=1390).contains(size)).collect()));
        assert_eq!(lossy.unwrap().carried, 1390);
        let failed =
            Limit { carried: 84, lost: 1500 }.narrowed(|| false, |_| Err(io::Error::other("no buffer")));
        assert_eq!(failed.unwrap_err().to_string(), "no buffer");
    }

    #[test]
    fn f3_unprobed_sizes_are_reported() {
        let found = path(50, true).finding(Limit { carried: 1340, lost: 1400 }).message;
        assert!(found.contains("carries 1340 and not 1400 (sizes between them were not probed"), "{found}");
        assert!(found.ends_with("pods may send 1290 at most"), "{found}");
        let found = path(50, true).unmeasured();
        assert!(found.message.contains("carries 84 and not 1500"), "{found:?}");
        assert_eq!(found.fix.unwrap().to_string(), "podwire doctor");
    }

    #[test]
    fn f3_a_path_too_narrow_for_ipv6_gets_no_invalid_mtu_advice() {
        let of = |has_ipv6, carried| path(50, has_ipv6).finding(Limit { carried, lost: carried + 1 });
        let narrow = of(true, 1329);
        assert!(!narrow.message.contains("pods may send"), "{narrow:?}");
        assert!(narrow.message.contains("need 1330"), "{narrow:?}");
        assert_eq!(narrow.fix.unwrap().to_string(), "ping -c 1 -W 1 -M do -s 1302 192.0.2.2");
        let least = of(true, 1330);
        assert!(least.message.ends_with("pods may send 1280 at most") && least.fix.is_none(), "{least:?}");
        assert!(of(false, 1329).message.ends_with("pods may send 1279 at most"), "IPv4 only");
    }
}
