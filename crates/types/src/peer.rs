use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::Mac;

/// A source of packets that the firewall accepts from a peer, or checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerSource {
    /// In the tunnel: packets from `outer` may contain packets from `inner`, a block or a node address of the peer.
    Tunnel { outer: IpAddr, inner: IpNet },
    /// Frames from `mac`, a link or the tunnel device of the peer, may contain packets from its block.
    Link { mac: Mac, block: IpNet },
    /// Packets from this block are forwarded only if they are in frames from one of its links.
    Checked { block: IpNet },
}

impl fmt::Display for PeerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tunnel { outer, inner } => write!(f, "{inner} from {outer}"),
            Self::Link { mac, block } => write!(f, "{block} from {mac}"),
            Self::Checked { block } => write!(f, "{block} only from its node"),
        }
    }
}
