//! Builds VXLAN packets that a host outside the cluster could send.

use std::net::IpAddr;

/// VNI and port of all clusters in these tests.
pub(super) const VNI: u32 = 4077;
pub(super) const PORT: u16 = 4789;

/// A UDP datagram in an Ethernet frame in VXLAN.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) vni: u32,
    pub(super) mac: [u8; 6],
    /// The MAC of the sender.
    pub(super) sender: [u8; 6],
    pub(super) from: IpAddr,
    pub(super) to: (IpAddr, u16),
    /// A VLAN tag before the type of the inner packet.
    pub(super) tag: &'static [u8],
}

impl Frame {
    /// The payload of the outer datagram.
    pub(super) fn bytes(&self, text: &str) -> Vec<u8> {
        let kind = if self.from.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] };
        [&self.header()[..], self.tag, &kind, &packet(self.from, self.to, text)].concat()
    }

    /// An ARP request for the MAC of `to`. A node that accepts it would also learn the sender's MAC.
    pub(super) fn arp(&self) -> Vec<u8> {
        let (IpAddr::V4(from), IpAddr::V4(to)) = (self.from, self.to.0) else {
            unreachable!("ARP needs IPv4")
        };
        let mac = [2, 0, 0, 0, 0, 0x66];
        let body = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &mac, &from.octets(), &[0; 6], &to.octets()].concat();
        [&self.header()[..], &[0x08, 0x06], &body].concat()
    }

    /// The VXLAN header and the MACs of the inner frame.
    fn header(&self) -> Vec<u8> {
        let [_, a, b, c] = self.vni.to_be_bytes();
        [&[8, 0, 0, 0, a, b, c, 0][..], &self.mac, &self.sender].concat()
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// An IP packet with a UDP datagram.
fn packet(from: IpAddr, (to, port): (IpAddr, u16), text: &str) -> Vec<u8> {
    let length = u16::try_from(8 + text.len()).unwrap();
    let mut datagram =
        [&9u16.to_be_bytes()[..], &port.to_be_bytes(), &length.to_be_bytes(), &[0, 0]].concat();
    datagram.extend(text.as_bytes());
    let pseudo =
        [octets(from), octets(to), vec![0, 17], length.to_be_bytes().to_vec(), datagram.clone()].concat();
    datagram[6..8].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    let mut head = if from.is_ipv4() {
        let total = (20 + length).to_be_bytes();
        let mut head = vec![0x45, 0, total[0], total[1], 0, 1, 0, 0, 64, 17, 0, 0];
        head.extend([octets(from), octets(to)].concat());
        let sum = checksum(&head);
        head[10..12].copy_from_slice(&sum.to_be_bytes());
        head
    } else {
        let [high, low] = length.to_be_bytes();
        [vec![0x60, 0, 0, 0, high, low, 17, 64], octets(from), octets(to)].concat()
    };
    head.append(&mut datagram);
    head
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
