use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::address::{A_NETWORK, AN_ADDRESS};
use crate::json::{Item, Obj};
use crate::{Dns, Error, Version};

/// The result of ADD, in the structure of the newest version. [`CniResult::to_json`] converts it to other versions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CniResult {
    pub interfaces: Vec<Interface>,
    pub ips: Vec<IpConfig>,
    pub routes: Vec<PodRoute>,
    pub dns: Dns,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// A string, because links of other plugins may have longer addresses than Ethernet.
    pub mac: Option<String>,
    pub mtu: Option<u32>,
    /// The path of its network namespace. None on the host.
    pub sandbox: Option<String>,
    pub socket_path: Option<String>,
    pub pci_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpConfig {
    pub address: IpNet,
    pub gateway: Option<IpAddr>,
    /// Index into [`CniResult::interfaces`]. In a result of another plugin it may be out of range.
    pub interface: Option<usize>,
}

/// `dst` keeps its host bits, but they are ignored in comparisons, as in the kernel.
#[derive(Debug, Clone, Eq, Serialize, Deserialize)]
pub struct PodRoute {
    pub dst: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u32>,
}

impl PodRoute {
    pub fn new(dst: IpNet, gw: Option<IpAddr>) -> Self {
        Self { dst, gw, mtu: None, advmss: None, priority: None, table: None, scope: None }
    }
}

impl PartialEq for PodRoute {
    fn eq(&self, other: &Self) -> bool {
        let key = |r: &Self| (r.dst.trunc(), r.gw, r.mtu, r.advmss, r.priority, r.table, r.scope);
        key(self) == key(other)
    }
}

impl CniResult {
    /// Parses a result of any plugin. Fields may be absent, but not invalid.
    pub fn from_json(version: Version, value: &Value) -> Result<Self, Error> {
        Self::read(version, &Item::root(value))
    }

    /// The keys determine the format, because some plugins do not use the format of the version they state. The version only
    /// decides if keys of both formats are present.
    pub(crate) fn read(version: Version, item: &Item<'_>) -> Result<Self, Error> {
        let result = item.obj()?;
        let is_flat = result.get("ips").is_some() || result.get("interfaces").is_some();
        let is_old = result.get("ip4").is_some() || result.get("ip6").is_some();
        let dns = result.obj("dns")?.map(|dns| Dns::read(&dns)).transpose()?.unwrap_or_default();
        if is_old && (!is_flat || version <= Version::V0_2_0) {
            return Self::read_old(&result, dns);
        }
        Ok(Self {
            interfaces: elements(&result, "interfaces", |i| Interface::read(i).map(Some))?,
            ips: elements(&result, "ips", |ip| IpConfig::read(ip, "address"))?,
            routes: elements(&result, "routes", PodRoute::read)?,
            dns,
        })
    }

    /// Versions 0.1.0 and 0.2.0: one address per family, each with its routes.
    fn read_old(result: &Obj<'_>, dns: Dns) -> Result<Self, Error> {
        let mut all = Self { dns, ..Self::default() };
        for family in ["ip4", "ip6"] {
            if let Some(item) = result.get(family) {
                all.ips.extend(IpConfig::read(&item, "ip")?);
                all.routes.extend(elements(&item.obj()?, "routes", PodRoute::read)?);
            }
        }
        Ok(all)
    }
}

fn elements<T>(
    parent: &Obj<'_>,
    key: &str,
    read: impl Fn(&Item<'_>) -> Result<Option<T>, Error>,
) -> Result<Vec<T>, Error> {
    let items = parent.array(key)?.unwrap_or_default();
    items.iter().filter_map(|item| read(item).transpose()).collect()
}

fn text(parent: &Obj<'_>, key: &str) -> Result<Option<String>, Error> {
    Ok(parent.nonempty(key)?.map(str::to_owned))
}

/// For numbers that the reference plugins omit if they are 0.
fn nonzero(parent: &Obj<'_>, key: &str) -> Result<Option<u32>, Error> {
    Ok(parent.u32(key)?.filter(|n| *n > 0))
}

fn address(parent: &Obj<'_>, key: &str) -> Result<Option<IpAddr>, Error> {
    parent.parse(key, AN_ADDRESS)
}

impl Interface {
    /// A null element is kept as an empty interface, because addresses refer to interfaces by index.
    fn read(item: &Item<'_>) -> Result<Self, Error> {
        if item.is_null() {
            return Ok(Self::default());
        }
        let link = item.obj()?;
        Ok(Self {
            name: link.str("name")?.unwrap_or_default().to_owned(),
            mac: text(&link, "mac")?,
            mtu: nonzero(&link, "mtu")?,
            sandbox: text(&link, "sandbox")?,
            socket_path: text(&link, "socketPath")?,
            pci_id: text(&link, "pciID")?,
        })
    }
}

impl IpConfig {
    /// `None` if the element has no address.
    fn read(item: &Item<'_>, address_key: &str) -> Result<Option<Self>, Error> {
        if item.is_null() {
            return Ok(None);
        }
        let ip = item.obj()?;
        let Some(net) = ip.parse(address_key, A_NETWORK)? else { return Ok(None) };
        Ok(Some(Self { address: net, gateway: address(&ip, "gateway")?, interface: index(&ip)? }))
    }
}

/// Some plugins write a negative index for an address without an interface.
fn index(ip: &Obj<'_>) -> Result<Option<usize>, Error> {
    match ip.get("interface") {
        Some(item) if item.value().as_i64().is_some_and(i64::is_negative) => Ok(None),
        Some(item) => Ok(usize::try_from(item.u32()?).ok()),
        None => Ok(None),
    }
}

impl PodRoute {
    fn read(item: &Item<'_>) -> Result<Option<Self>, Error> {
        if item.is_null() {
            return Ok(None);
        }
        let route = item.obj()?;
        let Some(dst) = route.parse("dst", A_NETWORK)? else { return Ok(None) };
        Ok(Some(Self {
            dst,
            gw: address(&route, "gw")?,
            mtu: nonzero(&route, "mtu")?,
            advmss: nonzero(&route, "advmss")?,
            priority: nonzero(&route, "priority")?,
            table: route.u32("table")?,
            scope: route.u32("scope")?,
        }))
    }
}
