//! The routes of a pod. A route without `gw` uses the network's gateway of the same family.

use std::net::IpAddr;

use cni::json::Obj;
use cni::{Error, PodRoute};
use ipnet::IpNet;

use crate::{at_most, invalid};

/// Limit, because each route is a netlink message and part of the record.
const MAX_ROUTES: usize = 256;

/// The default route for the family of `like`.
pub fn default_route(like: IpAddr) -> PodRoute {
    let dst = match like {
        IpAddr::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
        IpAddr::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
    };
    PodRoute::new(dst, None)
}

/// Whether the route is in the main routing table.
pub(crate) fn is_in_main(route: &PodRoute) -> bool {
    route.table.is_none_or(|table| table == 0 || table == types::TABLE_MAIN)
}

pub(crate) fn parse_all(ipam: &Obj<'_>) -> Result<Vec<PodRoute>, Error> {
    let items = ipam.array("routes")?.unwrap_or_default();
    at_most(MAX_ROUTES, "ipam.routes", items.len())?;
    items.iter().filter(|item| !item.is_null()).map(|item| parse(&item.obj()?)).collect()
}

fn parse(obj: &Obj<'_>) -> Result<PodRoute, Error> {
    let dst = obj.parse::<IpNet>("dst", "a CIDR such as 0.0.0.0/0")?;
    let dst = dst.ok_or_else(|| invalid(obj.path(), "a route needs a dst such as 0.0.0.0/0"))?;
    let gw = obj.parse::<IpAddr>("gw", "an IP address")?;
    if let Some(gw) = gw.filter(|gw| gw.is_ipv4() != dst.addr().is_ipv4()) {
        return Err(invalid(
            obj.path(),
            format_args!("gw {gw} and dst {dst} must have the same address family"),
        ));
    }
    let scope = obj.u32("scope")?;
    if let Some(scope) = scope.filter(|scope| *scope > u8::MAX.into()) {
        return Err(invalid(obj.path(), format_args!("scope {scope} must be 0 to 255")));
    }
    Ok(PodRoute {
        dst: dst.trunc(),
        gw,
        mtu: obj.u32("mtu")?.filter(|v| *v != 0),
        advmss: obj.u32("advmss")?.filter(|v| *v != 0),
        priority: obj.u32("priority")?,
        table: obj.u32("table")?,
        scope,
    })
}
