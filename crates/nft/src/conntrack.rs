//! Conntrack entries. A new pod must not inherit the flows of an earlier pod with the same address, and datagrams to a host port must
//! not follow a flow from before the port was published.

mod flows;

use std::net::IpAddr;

use netlink::Refusal;
use netlink::wire::{Body, attribute, attribute_at};
use rustix::io::Errno;
use types::Family;

use crate::error::Error;
use crate::number;
use crate::pod::{HostPort, Protocol};
use crate::socket::{MessageHeader, NftRequest, NftSocket};

pub use flows::{FlowAction, FlowScan, FlowSelection, FlowTuple, TrackedFlow, judge_flows};

/// Per network namespace. It does not exist if the kernel tracks no connections.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
const FLUSH: &str = "remove conntrack entries";

/// Removes the entries that have one of these addresses as the source of either direction, as far as the kernel can select them.
/// Returns the other addresses, for [`sweep`], which reads the whole table.
pub fn flush(addresses: &[IpAddr]) -> Result<Vec<IpAddr>, Error> {
    let both = |&ip: &IpAddr| {
        [Side::Original, Side::Reply].map(|side| FlowSelector {
            side,
            v6: ip.is_ipv6(),
            selected: Selected::Source(ip),
        })
    };
    let selectors: Vec<FlowSelector> = addresses.iter().flat_map(both).collect();
    if selectors.is_empty() || is_empty() {
        return Ok(Vec::new());
    }
    let remaining = remove_selected_by_kernel(&mut NftSocket::open()?, &selectors)?;
    let is_remaining = |ip: &&IpAddr| {
        remaining.iter().any(|s| matches!(s.selected, Selected::Source(source) if source == **ip))
    };
    Ok(addresses.iter().filter(is_remaining).copied().collect())
}

/// Removes the entries of one family with a chosen address as the source of either direction. It takes about 10 ms even for an
/// empty table, because the kernel locks each bucket.
pub fn sweep(family: Family, is_chosen: &dyn Fn(IpAddr) -> bool) -> Result<(), Error> {
    if is_empty() {
        return Ok(());
    }
    let v6 = family == Family::V6;
    let matches = |entry: &[u8]| {
        let sources = [Side::Original, Side::Reply].map(|side| source(entry, side, v6));
        sources.into_iter().flatten().any(is_chosen)
    };
    remove_matching(&mut NftSocket::open()?, v6, &matches)
}

/// Removes the entries of datagrams to these host ports. Only the first packet of a flow passes the NAT rules, and an UDP flow lasts
/// as long as there are datagrams. Other protocols open new connections.
pub fn flush_ports(ports: &[HostPort]) -> Result<(), Error> {
    let selector = |port: &HostPort| match port.protocol {
        Protocol::Udp => {
            let host = port.host_ip.filter(|ip| !ip.is_unspecified());
            let selected = Selected::Destination(host, port.protocol, port.host_port);
            Some(FlowSelector { side: Side::Original, v6: port.pod.is_ipv6(), selected })
        }
        Protocol::Tcp | Protocol::Sctp => None,
    };
    remove(&ports.iter().filter_map(selector).collect::<Vec<_>>())
}

/// Which of the two tuples of a connection.
#[derive(Debug, Clone, Copy)]
enum Side {
    Original,
    Reply,
}

#[derive(Debug, Clone, Copy)]
enum Selected {
    Source(IpAddr),
    Destination(Option<IpAddr>, Protocol, u16),
}

#[derive(Debug, Clone, Copy)]
struct FlowSelector {
    side: Side,
    v6: bool,
    selected: Selected,
}

fn is_empty() -> bool {
    std::fs::read_to_string(COUNT).map_or(true, |count| count.trim() == "0")
}

fn remove(selectors: &[FlowSelector]) -> Result<(), Error> {
    if selectors.is_empty() || is_empty() {
        return Ok(());
    }
    let mut socket = NftSocket::open()?;
    let remaining = remove_selected_by_kernel(&mut socket, selectors)?;
    remove_one_by_one(&mut socket, &remaining)
}

fn remove_selected_by_kernel(
    socket: &mut NftSocket,
    selectors: &[FlowSelector],
) -> Result<Vec<FlowSelector>, Error> {
    let (supported, mut remaining): (Vec<FlowSelector>, Vec<FlowSelector>) =
        selectors.iter().partition(|s| s.is_supported_by_kernel());
    remaining.append(&mut remove_in_kernel(socket, &supported)?);
    Ok(remaining)
}

/// The kernel selects the entries. Returns the selectors that it refused: kernels before about 6.8 support no filter here.
fn remove_in_kernel(socket: &mut NftSocket, selectors: &[FlowSelector]) -> Result<Vec<FlowSelector>, Error> {
    let requests: Vec<NftRequest<'_>> = selectors.iter().map(FlowSelector::request).collect();
    let mut remaining = Vec::new();
    for (selector, answer) in selectors.iter().zip(socket.ask(&requests)?) {
        match answer {
            Ok(_) => {}
            Err(Refusal { errno: Errno::OPNOTSUPP | Errno::INVAL, .. }) => remaining.push(*selector),
            Err(refusal) => return Err(Error::refused(FLUSH, selector.description(), refusal)),
        }
    }
    Ok(remaining)
}

fn remove_one_by_one(socket: &mut NftSocket, selectors: &[FlowSelector]) -> Result<(), Error> {
    for v6 in [false, true] {
        let selectors: Vec<&FlowSelector> = selectors.iter().filter(|s| s.v6 == v6).collect();
        if !selectors.is_empty() {
            remove_matching(socket, v6, &|entry| selectors.iter().any(|selector| selector.matches(entry)))?;
        }
    }
    Ok(())
}

/// Reads all entries of a family and deletes those that match.
fn remove_matching(socket: &mut NftSocket, v6: bool, matches: &dyn Fn(&[u8]) -> bool) -> Result<(), Error> {
    let mut deletions = Vec::new();
    let all = NftRequest::new(verb(number::CT_GET, v6), |_| {});
    let dumped = socket.dump(&all, |entry| {
        if matches(entry) {
            deletions.extend(deletion(entry, v6));
        }
    })?;
    if let Err(refusal) = dumped {
        return Err(unreadable(refusal));
    }
    for answer in socket.ask(&deletions)? {
        match answer {
            // It may have expired.
            Ok(_) | Err(Refusal { errno: Errno::NOENT, .. }) => {}
            Err(refusal) => return Err(Error::refused(FLUSH, "an entry".to_owned(), refusal)),
        }
    }
    Ok(())
}

fn unreadable(refusal: Refusal) -> Error {
    match refusal.errno {
        Errno::OPNOTSUPP | Errno::INVAL => Error::Unsupported {
            what: "access to the conntrack table (ctnetlink)".to_owned(),
            option: "CONFIG_NF_CT_NETLINK",
        },
        _ => Error::refused(FLUSH, "the conntrack table".to_owned(), refusal),
    }
}

/// The kernel evaluates the family of a deletion only in messages of version 1.
fn verb(kind: u16, v6: bool) -> MessageHeader {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    MessageHeader { kind, flags: 0, family: u8::try_from(family).unwrap_or_default(), version: 1 }
}

/// The request that deletes this entry. Its original tuple identifies it, and the id distinguishes it from a later entry.
fn deletion(entry: &[u8], v6: bool) -> Option<NftRequest<'static>> {
    let original = attribute(entry, number::CTA_TUPLE_ORIG)?.to_vec();
    let [zone, id] =
        [number::CTA_ZONE, number::CTA_ID].map(|kind| (kind, attribute(entry, kind).map(<[u8]>::to_vec)));
    Some(NftRequest::new(verb(number::CT_DELETE, v6), move |body| {
        body.nest(number::CTA_TUPLE_ORIG, |tuple| tuple.raw(&original));
        for (kind, value) in [&zone, &id] {
            if let Some(value) = value {
                body.bytes(*kind, value);
            }
        }
    }))
}

impl Side {
    fn tuple(self) -> u16 {
        match self {
            Self::Original => number::CTA_TUPLE_ORIG,
            Self::Reply => number::CTA_TUPLE_REPLY,
        }
    }

    fn flags(self) -> u16 {
        match self {
            Self::Original => number::CTA_FILTER_ORIG_FLAGS,
            Self::Reply => number::CTA_FILTER_REPLY_FLAGS,
        }
    }
}

impl FlowSelector {
    fn description(&self) -> String {
        match self.selected {
            Selected::Source(ip) => format!("of {ip}"),
            Selected::Destination(_, protocol, port) => format!("to host port {port}/{protocol}"),
        }
    }

    /// The kernel's filter inverts the comparison of IPv6 addresses (observed in Linux 6.18): a deletion by address would remove the
    /// entries of all other addresses.
    fn is_supported_by_kernel(&self) -> bool {
        match self.selected {
            Selected::Source(_) | Selected::Destination(Some(_), ..) => !self.v6,
            Selected::Destination(None, ..) => true,
        }
    }

    /// The compared parts of the tuple.
    fn filter(&self) -> u32 {
        match self.selected {
            Selected::Source(_) => number::FILTER_IP_SRC,
            Selected::Destination(None, ..) => number::FILTER_PROTO_NUM | number::FILTER_PROTO_DST_PORT,
            Selected::Destination(Some(_), ..) => {
                number::FILTER_IP_DST | number::FILTER_PROTO_NUM | number::FILTER_PROTO_DST_PORT
            }
        }
    }

    fn request(&self) -> NftRequest<'_> {
        NftRequest::new(verb(number::CT_DELETE, self.v6), |body| {
            body.nest(self.side.tuple(), |tuple| self.write_tuple(tuple));
            body.nest(number::CTA_FILTER, |filter| filter.u32(self.side.flags(), self.filter()));
        })
    }

    fn write_tuple(&self, tuple: &mut Body<'_>) {
        match self.selected {
            Selected::Source(ip) => {
                tuple.nest(number::CTA_TUPLE_IP, |part| part.bytes(source_kind(ip.is_ipv6()), &octets(ip)));
            }
            Selected::Destination(host, protocol, port) => {
                tuple.nest(number::CTA_TUPLE_IP, |part| {
                    if let Some(ip) = host {
                        part.bytes(destination_kind(self.v6), &octets(ip));
                    }
                });
                tuple.nest(number::CTA_TUPLE_PROTO, |part| {
                    part.u8(number::CTA_PROTO_NUM, protocol.number());
                    part.bytes(number::CTA_PROTO_DST_PORT, &port.to_be_bytes());
                });
            }
        }
    }

    /// The selection of the kernel, for a dumped entry.
    fn matches(&self, entry: &[u8]) -> bool {
        let part = |[outer, inner]: [u16; 2]| attribute_at(entry, &[self.side.tuple(), outer, inner]);
        match self.selected {
            Selected::Source(ip) => {
                part([number::CTA_TUPLE_IP, source_kind(self.v6)]) == Some(octets(ip).as_slice())
            }
            Selected::Destination(host, protocol, port) => {
                let to = part([number::CTA_TUPLE_IP, destination_kind(self.v6)]);
                host.is_none_or(|ip| to == Some(octets(ip).as_slice()))
                    && part([number::CTA_TUPLE_PROTO, number::CTA_PROTO_NUM]) == Some(&[protocol.number()])
                    && part([number::CTA_TUPLE_PROTO, number::CTA_PROTO_DST_PORT])
                        == Some(&port.to_be_bytes())
            }
        }
    }
}

/// The source of one of the tuples of an entry.
fn source(entry: &[u8], side: Side, v6: bool) -> Option<IpAddr> {
    let octets = attribute_at(entry, &[side.tuple(), number::CTA_TUPLE_IP, source_kind(v6)])?;
    if v6 {
        octets.first_chunk::<16>().map(|octets| IpAddr::from(*octets))
    } else {
        octets.first_chunk::<4>().map(|octets| IpAddr::from(*octets))
    }
}

fn source_kind(v6: bool) -> u16 {
    if v6 { number::CTA_IP_V6_SRC } else { number::CTA_IP_V4_SRC }
}

fn destination_kind(v6: bool) -> u16 {
    if v6 { number::CTA_IP_V6_DST } else { number::CTA_IP_V4_DST }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use netlink::NetNs;

    use super::*;

    fn conntrack(args: &str) -> String {
        let output = Command::new("conntrack").args(args.split(' ')).output().unwrap();
        assert!(output.status.success(), "conntrack {args}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn entries() -> usize {
        ["ipv4", "ipv6"].map(|family| conntrack(&format!("-L -f {family}")).lines().count()).iter().sum()
    }

    /// Needed for kernels before 6.8.
    #[test]
    fn f3_the_same_entries_are_removed_without_a_filter_in_the_kernel() {
        let in_a_namespace = || {
            for (from, to) in [("10.0.0.2", "10.0.0.9"), ("10.0.0.3", "10.0.0.2"), ("fd00::2", "fd00::9")] {
                for port in [53, 54] {
                    conntrack(&format!("-I -s {from} -d {to} -p udp --sport 9 --dport {port} -t 600"));
                }
            }
            let remove = |selected, v6, side| {
                remove_one_by_one(&mut NftSocket::open().unwrap(), &[FlowSelector { side, v6, selected }])
                    .unwrap();
                entries()
            };
            let (v4, v6): (IpAddr, IpAddr) = ("10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap());
            assert_eq!(entries(), 6);
            assert_eq!(remove(Selected::Source("10.0.0.7".parse().unwrap()), false, Side::Original), 6);
            assert_eq!(remove(Selected::Source(v4), false, Side::Original), 4);
            assert_eq!(remove(Selected::Destination(Some(v6), Protocol::Udp, 53), true, Side::Original), 4);
            assert_eq!(remove(Selected::Destination(None, Protocol::Udp, 53), true, Side::Original), 3);
            assert_eq!(remove(Selected::Source(v4), false, Side::Reply), 1);
            assert_eq!(remove(Selected::Source(v6), true, Side::Original), 0);
        };
        NetNs::create().unwrap().run(in_a_namespace).unwrap();
    }
}
