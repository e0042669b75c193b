use std::net::IpAddr;

use cni::Error;
use cni::json::Obj;
use ipnet::IpNet;

use crate::invalid;

/// A route that the pod gets. Without a gateway of its own it goes through the network's gateway of its family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub dst: IpNet,
    pub gw: Option<IpAddr>,
    pub mtu: Option<u32>,
    pub advmss: Option<u32>,
    pub priority: Option<u32>,
    pub table: Option<u32>,
    pub scope: Option<u32>,
}

impl Route {
    /// The default route of a family.
    pub fn default_of(like: IpAddr) -> Self {
        let dst = match like {
            IpAddr::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
            IpAddr::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
        };
        Self { dst, gw: None, mtu: None, advmss: None, priority: None, table: None, scope: None }
    }

    pub(crate) fn parse_all(ipam: &Obj<'_>) -> Result<Vec<Self>, Error> {
        let items = ipam.array("routes")?.unwrap_or_default();
        items.iter().filter(|item| !item.is_null()).map(|item| Self::parse(&item.obj()?)).collect()
    }

    fn parse(obj: &Obj<'_>) -> Result<Self, Error> {
        let dst = obj.parse::<IpNet>("dst", "a CIDR such as 0.0.0.0/0")?;
        let dst = dst.ok_or_else(|| invalid(obj.path(), "a route needs a dst such as 0.0.0.0/0"))?;
        let gw = obj.parse::<IpAddr>("gw", "an IP address")?;
        if let Some(gw) = gw.filter(|gw| gw.is_ipv4() != dst.addr().is_ipv4()) {
            return Err(invalid(obj.path(), format_args!("gw {gw} is not of the family of dst {dst}")));
        }
        let scope = obj.u32("scope")?;
        if let Some(scope) = scope.filter(|scope| *scope > u8::MAX.into()) {
            return Err(invalid(obj.path(), format_args!("scope {scope} must be 0 to 255")));
        }
        Ok(Self {
            dst: dst.trunc(),
            gw,
            mtu: obj.u32("mtu")?.filter(|v| *v != 0),
            advmss: obj.u32("advmss")?.filter(|v| *v != 0),
            priority: obj.u32("priority")?,
            table: obj.u32("table")?,
            scope,
        })
    }
}
