use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use ipnet::IpNet;

use crate::Error;
use crate::json::Item;

pub(crate) const AN_ADDRESS: &str = "an IP address such as 10.1.0.5 or fd00::5";
pub(crate) const A_NETWORK: &str = "an IP address and prefix such as 10.1.0.5/24 or fd00::5/64";
pub(crate) const A_REQUEST: &str = "an IP address such as 10.1.0.5, 10.1.0.5/24 or fd00::5";

/// An address that the runtime or the pod requests. A prefix must match the prefix of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestedIp {
    pub addr: IpAddr,
    pub prefix: Option<u8>,
}

impl FromStr for RequestedIp {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = || Error::config(format!("{text:?} is not {A_REQUEST}"));
        if !text.contains('/') {
            let addr: IpAddr = text.parse().map_err(|_| refuse())?;
            return Ok(Self { addr: addr.to_canonical(), prefix: None });
        }
        let net: IpNet = text.parse().map_err(|_| refuse())?;
        match mapped(net) {
            // `::ffff:10.0.0.5/120` is 10.0.0.5/24. A prefix shorter than 96 has no IPv4 equivalent.
            Some(v4) => {
                let prefix = net.prefix_len().checked_sub(96).ok_or_else(refuse)?;
                Ok(Self { addr: v4.into(), prefix: Some(prefix) })
            }
            None => Ok(Self { addr: net.addr(), prefix: Some(net.prefix_len()) }),
        }
    }
}

fn mapped(net: IpNet) -> Option<Ipv4Addr> {
    match net {
        IpNet::V4(_) => None,
        IpNet::V6(net) => net.addr().to_ipv4_mapped(),
    }
}

impl fmt::Display for RequestedIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix {
            Some(prefix) => write!(f, "{}/{prefix}", self.addr),
            None => write!(f, "{}", self.addr),
        }
    }
}

pub(crate) fn requested(items: &[Item<'_>]) -> Result<Vec<RequestedIp>, Error> {
    items.iter().map(|item| item.parse(A_REQUEST)).collect()
}
