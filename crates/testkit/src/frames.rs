//! Frames as a pod with raw sockets ([`crate::PacketSocket`]) sends them: from any MAC and any address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context as _, Result};

pub type MacBytes = [u8; 6];

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// The bytes of `02:00:00:00:00:01`.
pub fn mac(text: &str) -> Result<MacBytes> {
    let mut bytes = [0; 6];
    for (byte, part) in bytes.iter_mut().zip(text.split(':')) {
        *byte = u8::from_str_radix(part, 16).with_context(|| format!("{text} is not a MAC address"))?;
    }
    Ok(bytes)
}

/// Destination, source.
pub type Between = (MacBytes, MacBytes);

fn ethernet((to, from): Between, kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from[..], &kind.to_be_bytes()[..], payload].concat()
}

/// An IP packet in a frame; both addresses must be of one family.
pub fn framed(between: Between, packet: &[u8]) -> Vec<u8> {
    let kind = if packet.first().is_some_and(|first| first >> 4 == 4) { IPV4 } else { IPV6 };
    ethernet(between, kind, packet)
}

/// An ARP message for Ethernet and IPv4. Operation 1 is a request, 2 a reply.
pub fn arp(between: Between, operation: u16, sender: (MacBytes, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let mut message = vec![0, 1, 8, 0, 6, 4];
    message.extend_from_slice(&operation.to_be_bytes());
    message.extend_from_slice(&sender.0);
    message.extend_from_slice(&sender.1.octets());
    message.extend_from_slice(&[0; 6]);
    message.extend_from_slice(&target.octets());
    ethernet(between, ARP, &message)
}

/// A datagram as an IP packet.
pub fn udp(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    let ports = [from.port().to_be_bytes(), to.port().to_be_bytes(), length.to_be_bytes(), [0, 0]].concat();
    packet((from.ip(), to.ip()), UDP, [ports.as_slice(), payload].concat(), 6)
}

/// A message of neighbour discovery with the sender's MAC as its option (source or target link-layer address).
pub fn discovery(
    (from, to): (Ipv6Addr, Ipv6Addr),
    kind: u8,
    target: Option<Ipv6Addr>,
    sender: MacBytes,
) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0x60, 0, 0, 0];
    message.extend(target.iter().flat_map(Ipv6Addr::octets));
    let option = if kind == 136 { 2 } else { 1 };
    message.extend_from_slice(&[option, 1]);
    message.extend_from_slice(&sender);
    packet((from.into(), to.into()), ICMPV6, message, 2)
}

/// A router advertisement of a /64 for stateless address configuration.
pub fn advertisement((from, to): (Ipv6Addr, Ipv6Addr), prefix: Ipv6Addr) -> Vec<u8> {
    // Hop limit 64, router for 1800 s.
    let mut message = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    // Prefix information: on-link and autonomous flags, lifetime 1 h.
    message.extend([3, 4, 64, 0xc0, 0, 0, 14, 16, 0, 0, 14, 16, 0, 0, 0, 0]);
    message.extend(prefix.octets());
    packet((from.into(), to.into()), ICMPV6, message, 2)
}

/// Builds an IP packet and writes the checksum into the payload.
fn packet(between: (IpAddr, IpAddr), protocol: u8, mut payload: Vec<u8>, checksum_at: usize) -> Vec<u8> {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let addresses = [octets(between.0), octets(between.1)].concat();
    let length = payload.len() as u16;
    let pseudo = [addresses.as_slice(), &length.to_be_bytes(), &[0, protocol], &payload].concat();
    let sum = checksum(&pseudo);
    payload[checksum_at..checksum_at + 2].copy_from_slice(&sum.to_be_bytes());
    let header = if between.0.is_ipv4() {
        let total = (20 + length).to_be_bytes();
        let mut header = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, protocol, 0, 0];
        header.extend_from_slice(&addresses);
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    } else {
        let length = length.to_be_bytes();
        [&[0x60, 0, 0, 0, length[0], length[1], protocol, 255][..], &addresses].concat()
    };
    [header, payload].concat()
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
