use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// A tunnel source that the firewall accepts: packets from `outer` may contain packets from `inner`, a block or a node address
/// of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerSource {
    pub outer: IpAddr,
    pub inner: IpNet,
}

impl fmt::Display for PeerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}", self.inner, self.outer)
    }
}
