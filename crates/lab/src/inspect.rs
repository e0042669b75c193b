//! The contents of a namespace according to `ip -j` and `nft -j`, independent of the code under test.

use std::net::IpAddr;

use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
pub use netlink::Family;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Ns;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ListedLink {
    #[serde(rename = "ifindex")]
    pub index: u32,
    #[serde(rename = "ifname")]
    pub name: String,
    #[serde(rename = "address")]
    pub mac: Option<String>,
    pub mtu: u32,
    pub flags: Vec<String>,
    pub operstate: String,
    pub group: Option<String>,
    /// The bridge, if the link is a bridge port.
    pub master: Option<String>,
    #[serde(rename = "ifalias")]
    pub alias: Option<String>,
    linkinfo: Option<LinkInfo>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct LinkInfo {
    info_kind: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedAddress {
    pub dev: String,
    pub net: IpNet,
    pub scope: String,
}

/// A route. Without `kind` it is a unicast route.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ListedRoute {
    /// A prefix, an address, or `default`.
    pub dst: String,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub gateway: Option<IpAddr>,
    /// A gateway of the other family.
    pub via: Option<Via>,
    pub dev: Option<String>,
    pub table: Option<String>,
    pub protocol: Option<String>,
    pub scope: Option<String>,
    pub prefsrc: Option<IpAddr>,
    pub metric: Option<u32>,
    #[serde(default)]
    pub flags: Vec<String>,
    #[serde(default)]
    pub metrics: Vec<Value>,
    /// The next hops of a multipath route.
    #[serde(default)]
    pub nexthops: Vec<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Via {
    pub family: String,
    pub host: IpAddr,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ListedNeighbour {
    pub dst: IpAddr,
    pub dev: String,
    #[serde(rename = "lladdr")]
    pub mac: Option<String>,
    #[serde(default)]
    pub state: Vec<String>,
}

impl ListedLink {
    /// `veth`, `bridge`, …; `None` for loopback and hardware.
    pub fn kind(&self) -> Option<&str> {
        self.linkinfo.as_ref()?.info_kind.as_deref()
    }

    /// True if the link is administratively up; it may still have no carrier.
    pub fn is_up(&self) -> bool {
        self.flags.iter().any(|flag| flag == "UP")
    }
}

pub fn links(ns: &Ns) -> Result<Vec<ListedLink>> {
    list(ns, &["ip", "-d", "-j", "link", "show"])
}

pub fn link(ns: &Ns, dev: &str) -> Result<ListedLink> {
    let link = links(ns)?.into_iter().find(|link| link.name == dev);
    link.with_context(|| format!("there is no link {dev} in {}", ns.name()))
}

pub fn addresses(ns: &Ns, dev: &str) -> Result<Vec<ListedAddress>> {
    Ok(all_addresses(ns)?.into_iter().filter(|address| address.dev == dev).collect())
}

pub fn all_addresses(ns: &Ns) -> Result<Vec<ListedAddress>> {
    #[derive(Deserialize)]
    struct PerLink {
        ifname: String,
        addr_info: Vec<Info>,
    }
    #[derive(Deserialize)]
    struct Info {
        local: IpAddr,
        prefixlen: u8,
        scope: String,
    }
    let mut all = Vec::new();
    for link in list::<PerLink>(ns, &["ip", "-j", "addr", "show"])? {
        for info in link.addr_info {
            let net =
                IpNet::new(info.local, info.prefixlen).context("ip printed an invalid prefix length")?;
            all.push(ListedAddress { dev: link.ifname.clone(), net, scope: info.scope });
        }
    }
    Ok(all)
}

/// The routes of the main table.
pub fn routes(ns: &Ns, family: Family) -> Result<Vec<ListedRoute>> {
    let flag = match family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    };
    list(ns, &["ip", flag, "-d", "-j", "route", "show", "table", "main"])
}

/// Neighbour entries of both families, including dynamic ones.
pub fn neighbours(ns: &Ns) -> Result<Vec<ListedNeighbour>> {
    list(ns, &["ip", "-j", "neigh", "show"])
}

/// The objects of the whole ruleset, each as `{"table": …}`, `{"rule": …}` and so on.
pub fn nft_json(ns: &Ns) -> Result<Vec<Value>> {
    let mut answer = ns.json(&["nft", "-j", "list", "ruleset"])?;
    match answer["nftables"].take() {
        Value::Array(objects) => Ok(objects.into_iter().filter(|o| o.get("metainfo").is_none()).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            bail!("nft did not print a ruleset: {answer}")
        }
    }
}

pub(crate) fn list<T: DeserializeOwned>(ns: &Ns, argv: &[&str]) -> Result<Vec<T>> {
    match ns.json(argv)? {
        Value::Null => Ok(vec![]),
        value => {
            let message = format!("`{}` printed unexpected JSON: {value}", argv.join(" "));
            serde_json::from_value(value).context(message)
        }
    }
}
