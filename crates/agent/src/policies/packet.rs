//! The headers of a logged packet. Pure. The packet may be cut off anywhere, and a pod may have forged it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use policy::ProtocolNumber;

use crate::flow_view::has_ports;

/// More extension headers are not read.
const MAX_EXTENSIONS: usize = 8;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const ICMP_V6: u8 = 58;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;
const ICMP: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PacketHeaders {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: ProtocolNumber,
    /// The destination port. None for protocols without ports, and for fragments without a transport header.
    pub(crate) port: Option<u16>,
    pub(crate) icmp_type: Option<u8>,
}

/// None if the packet does not have complete addresses.
pub(crate) fn headers(packet: &[u8]) -> Option<PacketHeaders> {
    match packet.first()? >> 4 {
        4 => ipv4(packet),
        6 => ipv6(packet),
        _ => None,
    }
}

fn ipv4(packet: &[u8]) -> Option<PacketHeaders> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let length = usize::from(header[0] & 0xf) * 4;
    let address = |at: usize| header.get(at..)?.first_chunk().map(|octets: &[u8; 4]| Ipv4Addr::from(*octets));
    let offset = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
    let is_first = offset == 0 && length >= header.len();
    let transport = packet.get(length..).filter(|_| is_first).unwrap_or_default();
    Some(with_transport((address(12)?.into(), address(16)?.into()), header[9], transport))
}

fn ipv6(packet: &[u8]) -> Option<PacketHeaders> {
    let (header, rest): (&[u8; 40], &[u8]) = packet.split_first_chunk()?;
    let address =
        |at: usize| header.get(at..)?.first_chunk().map(|octets: &[u8; 16]| Ipv6Addr::from(*octets));
    let (protocol, transport) = behind_extensions(header[6], rest);
    Some(with_transport((address(8)?.into(), address(24)?.into()), protocol, transport))
}

/// The protocol behind the extension headers, and its header, which is empty if it is not in this packet.
fn behind_extensions(mut protocol: u8, mut rest: &[u8]) -> (u8, &[u8]) {
    for _ in 0..MAX_EXTENSIONS {
        let length = match protocol {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | MOBILITY | HOST_IDENTITY | SHIM6 => {
                rest.get(1).map(|units| (usize::from(*units) + 1) * 8)
            }
            AUTHENTICATION => rest.get(1).map(|units| (usize::from(*units) + 2) * 4),
            FRAGMENT => Some(8),
            _ => return (protocol, rest),
        };
        let Some((header, next)) = length.and_then(|length| rest.split_at_checked(length)) else { break };
        let is_later_fragment =
            protocol == FRAGMENT && u16::from_be_bytes([header[2], header[3]]) & 0xfff8 != 0;
        protocol = header[0];
        if is_later_fragment {
            return (protocol, &[]);
        }
        rest = next;
    }
    (protocol, &[])
}

fn with_transport((from, to): (IpAddr, IpAddr), protocol: u8, transport: &[u8]) -> PacketHeaders {
    let port = transport.get(2..).and_then(|rest| rest.first_chunk()).copied().map(u16::from_be_bytes);
    let is_icmp = protocol == if from.is_ipv4() { ICMP } else { ICMP_V6 };
    PacketHeaders {
        from,
        to,
        protocol,
        port: port.filter(|_| has_ports(protocol)),
        icmp_type: transport.first().copied().filter(|_| is_icmp),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UDP: u8 = 17;
    const PORTS: [u8; 8] = [0x10, 0x92, 0x14, 0xe9, 0, 8, 0, 0];

    fn v4(protocol: u8, options: usize, fragment: u16, transport: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 20 + options * 4];
        packet[0] = 0x45 + u8::try_from(options).unwrap();
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet[9] = protocol;
        packet[12..16].copy_from_slice(&[10, 0, 0, 1]);
        packet[16..20].copy_from_slice(&[10, 0, 0, 2]);
        packet.extend_from_slice(transport);
        packet
    }

    fn v6(next: u8, rest: &[&[u8]]) -> Vec<u8> {
        let mut packet = vec![0; 40];
        packet[0] = 0x60;
        packet[6] = next;
        packet[8] = 0xfd;
        packet[24..26].copy_from_slice(&[0xfd, 1]);
        packet.extend(rest.concat());
        packet
    }

    fn transport(packet: &[u8]) -> (u8, Option<u16>, Option<u8>) {
        let found = headers(packet).unwrap();
        (found.protocol, found.port, found.icmp_type)
    }

    #[test]
    fn addresses_and_ports_of_both_families_are_read() {
        let found = headers(&v4(UDP, 0, 0, &PORTS)).unwrap();
        assert_eq!((found.from, found.to), ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()));
        assert_eq!((found.protocol, found.port, found.icmp_type), (UDP, Some(5353), None));
        assert_eq!(
            transport(&v4(UDP, 3, 0x4000, &PORTS)),
            (UDP, Some(5353), None),
            "options, do not fragment"
        );
        let found = headers(&v6(UDP, &[&PORTS])).unwrap();
        assert_eq!(
            (found.from, found.to, found.port),
            ("fd00::".parse().unwrap(), "fd01::".parse().unwrap(), Some(5353))
        );
        assert_eq!(transport(&v4(1, 0, 0, &[8, 0])), (1, None, Some(8)));
        assert_eq!(transport(&v6(58, &[&[128, 0]])), (58, None, Some(128)));
        // Not ICMP in this family.
        assert_eq!(transport(&v6(1, &[&[8, 0]])), (1, None, None));
        assert_eq!(transport(&v4(47, 0, 0, &PORTS)), (47, None, None), "GRE has no ports");
    }

    #[test]
    fn extension_headers_are_skipped() {
        let options = [60, 0, 0, 0, 0, 0, 0, 0];
        let routing = [UDP, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let authentication = [UDP, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let to_routing = [43, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(transport(&v6(0, &[&options, &to_routing, &routing, &PORTS])), (UDP, Some(5353), None));
        assert_eq!(transport(&v6(51, &[&authentication, &PORTS])), (UDP, Some(5353), None));
        let endless: Vec<&[u8]> = vec![&options; 30];
        assert_eq!(transport(&v6(0, &endless)), (60, None, None));
    }

    #[test]
    fn later_fragments_have_no_ports() {
        assert_eq!(transport(&v4(UDP, 0, 0x2000, &PORTS)), (UDP, Some(5353), None), "the first fragment");
        assert_eq!(transport(&v4(UDP, 0, 0x2001, &PORTS)), (UDP, None, None));
        let fragment = |offset: u16| [UDP, 0, (offset >> 8) as u8, offset as u8, 0, 0, 0, 1];
        assert_eq!(transport(&v6(44, &[&fragment(1), &PORTS])), (UDP, Some(5353), None));
        assert_eq!(transport(&v6(44, &[&fragment(8), &PORTS])), (UDP, None, None));
    }

    #[test]
    fn packets_that_are_cut_off_have_what_they_contain() {
        let whole = v6(0, &[&[UDP, 0, 0, 0, 0, 0, 0, 0], &PORTS]);
        for length in 0..40 {
            assert_eq!(headers(&whole[..length]), None, "{length}");
        }
        for length in 40..48 {
            assert_eq!(transport(&whole[..length]), (0, None, None), "{length}");
        }
        for length in 48..52 {
            assert_eq!(transport(&whole[..length]), (UDP, None, None), "{length}");
        }
        assert_eq!(transport(&whole[..52]), (UDP, Some(5353), None));
        assert_eq!(headers(&[]), None);
        assert_eq!(headers(&[0x50; 64]), None, "neither IPv4 nor IPv6");
        // The length of the header is shorter than the header.
        let mut short = v4(UDP, 0, 0, &PORTS);
        short[0] = 0x41;
        assert_eq!(transport(&short), (UDP, None, None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            version in prop::sample::select(vec![0x45_u8, 0x4f, 0x60, 0]),
            next in any::<u8>(),
            mut packet in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Some(first) = packet.first_mut() {
                *first = version;
            }
            if let Some(field) = packet.get_mut(6) {
                *field = next;
            }
            let found = headers(&packet);
            prop_assert_eq!(found.is_some(), match version {
                0x45 | 0x4f => packet.len() >= 20,
                0x60 => packet.len() >= 40,
                _ => false,
            });
            if let Some(found) = found {
                prop_assert_eq!(found.from.is_ipv4(), found.to.is_ipv4());
                prop_assert!(found.port.is_none() || has_ports(found.protocol));
            }
        }
    }
}
