//! Special-purpose addresses, which neither a pod nor a node can have.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The kind of a special-purpose address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    Unspecified,
    Loopback,
    LinkLocal,
    Multicast,
    Broadcast,
    /// 0.0.0.0/8 and 240.0.0.0/4.
    Reserved,
    /// An IPv4 address in the form of an IPv6 address, `::ffff:10.0.0.1`.
    MappedIpv4,
}

impl fmt::Display for Special {
    /// With an article: "a loopback".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "an unspecified",
            Self::Loopback => "a loopback",
            Self::LinkLocal => "a link-local",
            Self::Multicast => "a multicast",
            Self::Broadcast => "a broadcast",
            Self::Reserved => "a reserved",
            Self::MappedIpv4 => "a mapped IPv4",
        })
    }
}

const fn v4(address: [u8; 4], length: u8) -> IpNet {
    let [a, b, c, d] = address;
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length))
}

const fn v6(first: u16, last: [u16; 3], length: u8) -> IpNet {
    let [x, y, z] = last;
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(first, 0, 0, 0, 0, x, y, z), length))
}

/// The first match is reported, so single addresses precede the networks that contain them.
const SPECIAL: [(IpNet, Special); 12] = [
    (v4([0, 0, 0, 0], 32), Special::Unspecified),
    (v4([0, 0, 0, 0], 8), Special::Reserved),
    (v4([127, 0, 0, 0], 8), Special::Loopback),
    (v4([169, 254, 0, 0], 16), Special::LinkLocal),
    (v4([224, 0, 0, 0], 4), Special::Multicast),
    (v4([255, 255, 255, 255], 32), Special::Broadcast),
    (v4([240, 0, 0, 0], 4), Special::Reserved),
    (v6(0, [0, 0, 0], 128), Special::Unspecified),
    (v6(0, [0, 0, 1], 128), Special::Loopback),
    (v6(0, [0xffff, 0, 0], 96), Special::MappedIpv4),
    (v6(0xfe80, [0, 0, 0], 10), Special::LinkLocal),
    (v6(0xff00, [0, 0, 0], 8), Special::Multicast),
];

impl Special {
    /// The kind of the first special-purpose network that overlaps `net`.
    pub fn of(net: IpNet) -> Option<Self> {
        let overlaps = |special: &IpNet| special.contains(&net) || net.contains(special);
        SPECIAL.iter().find(|(special, _)| overlaps(special)).map(|(_, kind)| *kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(net: &str) -> Option<Special> {
        Special::of(net.parse().unwrap())
    }

    #[test]
    fn networks_that_overlap_special_ones_are_recognized() {
        for (net, kind) in [
            ("0.0.0.0/8", Special::Unspecified),
            ("0.1.0.0/16", Special::Reserved),
            ("127.1.0.0/16", Special::Loopback),
            ("126.0.0.0/7", Special::Loopback),
            ("169.254.8.0/24", Special::LinkLocal),
            ("169.0.0.0/8", Special::LinkLocal),
            ("239.1.0.0/16", Special::Multicast),
            ("240.0.0.0/24", Special::Reserved),
            ("255.255.255.0/24", Special::Broadcast),
            ("128.0.0.0/1", Special::LinkLocal),
            ("0.0.0.0/0", Special::Unspecified),
            ("::/64", Special::Unspecified),
            ("::1/128", Special::Loopback),
            ("::ffff:10.0.0.0/112", Special::MappedIpv4),
            ("fe80::/64", Special::LinkLocal),
            ("ff05::/16", Special::Multicast),
            ("fc00::/6", Special::LinkLocal),
            ("::/0", Special::Unspecified),
        ] {
            assert_eq!(of(net), Some(kind), "{net}");
        }
    }

    #[test]
    fn networks_for_pods_are_not_special() {
        for net in ["10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "1.0.0.0/8", "fd00::/8"]
        {
            assert_eq!(of(net), None, "{net}");
        }
        assert_eq!(of("2001:db8::/32"), None);
    }
}
