//! Construction of frames and packets. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const IPV6: u16 = 0x86dd;
pub(crate) const ARP: u16 = 0x0806;
pub(crate) const VLAN: u16 = 0x8100;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;
/// Neighbour discovery messages are accepted only with this hop limit.
const HOPS: u8 = 255;

pub(crate) fn ethernet(to: [u8; 6], from: [u8; 6], (kind, body): (u16, &[u8])) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes(), body].concat()
}

/// The EtherType and the packet. `None` if the families differ.
pub(crate) fn udp(
    from: IpAddr,
    to: IpAddr,
    (source, target): (u16, u16),
    payload: &[u8],
) -> Option<(u16, Vec<u8>)> {
    let length = u16::try_from(8 + payload.len()).ok()?;
    let head = [source, target, length, 0].map(u16::to_be_bytes).concat();
    ip(from, to, UDP, with_checksum([&head, payload].concat(), 6, (from, to, UDP)))
}

/// An ICMP message of the addresses' family: `kind`, `code`, checksum and payload.
pub(crate) fn icmp(from: IpAddr, to: IpAddr, (kind, code): (u8, u8), body: &[u8]) -> Option<(u16, Vec<u8>)> {
    let message = [&[kind, code, 0, 0], body].concat();
    match from {
        IpAddr::V4(_) => {
            let mut message = message;
            let sum = checksum(&[&message]);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            ip(from, to, ICMP, message)
        }
        IpAddr::V6(_) => ip(from, to, ICMP6, with_checksum(message, 2, (from, to, ICMP6))),
    }
}

pub(crate) fn arp_request(from: ([u8; 6], Ipv4Addr), to: Ipv4Addr) -> Vec<u8> {
    let (mac, ip) = from;
    let head = [0, 1, 8, 0, 6, 4, 0, 1];
    [&head[..], &mac, &ip.octets(), &[0; 6], &to.octets()].concat()
}

/// A neighbour solicitation, addressed to the multicast group of its target.
pub(crate) fn solicitation(from: ([u8; 6], Ipv6Addr), target: Ipv6Addr) -> Option<(u16, Vec<u8>)> {
    let (mac, ip) = from;
    let tail = target.octets();
    let group = Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        0xff00 | u16::from(tail[13]),
        u16::from_be_bytes([tail[14], tail[15]]),
    );
    let body = [&[0; 4][..], &tail, &[1, 1], &mac].concat();
    icmp(ip.into(), group.into(), (135, 0), &body)
}

/// The MAC of a multicast group.
pub(crate) fn group_mac(group: Ipv6Addr) -> [u8; 6] {
    let tail = group.octets();
    [0x33, 0x33, tail[12], tail[13], tail[14], tail[15]]
}

pub(crate) fn vxlan(vni: u32, frame: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = vni.to_be_bytes();
    [&[0x08, 0, 0, 0, a, b, c, 0], frame].concat()
}

fn ip(from: IpAddr, to: IpAddr, protocol: u8, payload: Vec<u8>) -> Option<(u16, Vec<u8>)> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let length = u16::try_from(20 + payload.len()).ok()?.to_be_bytes();
            let mut head = [0x45, 0, length[0], length[1], 0, 1, 0, 0, HOPS, protocol, 0, 0].to_vec();
            head.extend(from.octets().into_iter().chain(to.octets()));
            let sum = checksum(&[&head]);
            head[10..12].copy_from_slice(&sum.to_be_bytes());
            Some((IPV4, [head, payload].concat()))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = u16::try_from(payload.len()).ok()?.to_be_bytes();
            let head = [0x60, 0, 0, 0, length[0], length[1], protocol, HOPS];
            Some((IPV6, [&head[..], &from.octets(), &to.octets(), &payload].concat()))
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
    }
}

/// Writes the checksum of the message and the pseudo header into the message.
fn with_checksum(mut message: Vec<u8>, at: usize, (from, to, protocol): (IpAddr, IpAddr, u8)) -> Vec<u8> {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let length = (message.len() as u32).to_be_bytes();
    let sum = checksum(&[&octets(from), &octets(to), &length, &[0, 0, 0, protocol], &message]);
    message[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    message
}

/// Checksum of several parts. All except the last have an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 =
        words.map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) as u16 + (folded >> 16) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_both_families_verify() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (kind, v4) = udp(ip("10.0.0.1"), ip("10.0.0.2"), (1, 2), b"odd").unwrap();
        assert_eq!((kind, v4.len(), checksum(&[&v4[..20]])), (IPV4, 31, 0));
        let pseudo = |length: u8| [0, 0, 0, length, 0, 0, 0, UDP];
        assert_eq!(checksum(&[&v4[12..20], &pseudo(11), &v4[20..]]), 0);
        let (kind, v6) = udp(ip("fd00::1"), ip("fd00::2"), (1, 2), b"even").unwrap();
        assert_eq!((kind, v6.len()), (IPV6, 52));
        assert_eq!(checksum(&[&v6[8..40], &pseudo(12), &v6[40..]]), 0);
        assert_eq!(udp(ip("fd00::1"), ip("10.0.0.2"), (1, 2), b""), None);
    }

    #[test]
    fn a_solicitation_is_sent_to_the_group_of_its_target() {
        let target: Ipv6Addr = "fd00::12:3456".parse().unwrap();
        let (_, packet) = solicitation(([2; 6], "fd00::1".parse().unwrap()), target).unwrap();
        let group = Ipv6Addr::from(<[u8; 16]>::try_from(&packet[24..40]).unwrap());
        assert_eq!(group, "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap());
        assert_eq!(group_mac(group), [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
    }
}
