use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// A peer that sends from `outer` may carry packets from `inner`: one of its blocks, or one of its own addresses.
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
