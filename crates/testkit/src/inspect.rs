//! What a namespace holds, as `ip -j` and `nft -j` show it: another program's view, not that of the code under test.

use std::net::IpAddr;

use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Ns;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Link {
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
    /// The bridge it is a port of.
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
pub struct Address {
    pub dev: String,
    pub net: IpNet,
    pub scope: String,
}

/// A route of the kind unicast if `kind` is not there.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Route {
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
    /// The hops of a route with several.
    #[serde(default)]
    pub nexthops: Vec<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Via {
    pub family: String,
    pub host: IpAddr,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Neighbour {
    pub dst: IpAddr,
    pub dev: String,
    #[serde(rename = "lladdr")]
    pub mac: Option<String>,
    #[serde(default)]
    pub state: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn flag(self) -> &'static str {
        match self {
            Self::V4 => "-4",
            Self::V6 => "-6",
        }
    }
}

impl Link {
    /// `veth`, `bridge`, …; none for loopback and hardware.
    pub fn kind(&self) -> Option<&str> {
        self.linkinfo.as_ref()?.info_kind.as_deref()
    }

    /// Set up by its owner, which is not yet to say that it carries.
    pub fn is_up(&self) -> bool {
        self.flags.iter().any(|flag| flag == "UP")
    }
}

pub fn links(ns: &Ns) -> Result<Vec<Link>> {
    list(ns, &["ip", "-d", "-j", "link", "show"])
}

pub fn link(ns: &Ns, dev: &str) -> Result<Link> {
    let found = links(ns)?.into_iter().find(|link| link.name == dev);
    found.with_context(|| format!("there is no link {dev} in {}", ns.name()))
}

pub fn addresses(ns: &Ns, dev: &str) -> Result<Vec<Address>> {
    Ok(all_addresses(ns)?.into_iter().filter(|address| address.dev == dev).collect())
}

pub fn all_addresses(ns: &Ns) -> Result<Vec<Address>> {
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
            all.push(Address { dev: link.ifname.clone(), net, scope: info.scope });
        }
    }
    Ok(all)
}

/// The main table's routes.
pub fn routes(ns: &Ns, family: Family) -> Result<Vec<Route>> {
    list(ns, &["ip", family.flag(), "-d", "-j", "route", "show", "table", "main"])
}

/// Entries of both families; those that the kernel keeps by itself come and go.
pub fn neighbours(ns: &Ns) -> Result<Vec<Neighbour>> {
    list(ns, &["ip", "-j", "neigh", "show"])
}

/// The objects of the whole ruleset, each as `{"table": …}`, `{"rule": …}` and so on.
pub fn nft_json(ns: &Ns) -> Result<Vec<Value>> {
    // nft 1.0.6 prints garbage for the flags of a table that a process owns, or breaks off there. Flags of tables are left out;
    // if the output ends early, each table is listed by itself, and an owned one by name only.
    match ns.json(&["nft", "-j", "list", "ruleset"]).and_then(objects) {
        Ok(objects) => Ok(objects),
        Err(error) => {
            let tables = ns.sh(&["nft", "list", "tables"])?;
            let mut all = Vec::new();
            for line in tables.lines() {
                let [_, family, name] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                    return Err(error);
                };
                let text = ns.sh(&["nft", "list", "table", family, name])?;
                if text.lines().any(|line| line.trim_start().starts_with("flags owner")) {
                    all.push(json!({"table": {"family": family, "name": name}}));
                } else {
                    all.extend(objects(ns.json(&["nft", "-j", "list", "table", family, name])?)?);
                }
            }
            Ok(all)
        }
    }
}

fn objects(mut answer: Value) -> Result<Vec<Value>> {
    match answer["nftables"].take() {
        Value::Array(mut objects) => {
            objects.retain(|object| object.get("metainfo").is_none());
            for table in objects.iter_mut().filter_map(|object| object.get_mut("table")?.as_object_mut()) {
                table.remove("flags");
            }
            Ok(objects)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            bail!("nft printed something else than a ruleset: {answer}")
        }
    }
}

pub(crate) fn list<T: DeserializeOwned>(ns: &Ns, argv: &[&str]) -> Result<Vec<T>> {
    match ns.json(argv)? {
        Value::Null => Ok(vec![]),
        value => {
            let shown = format!("`{}` printed something unexpected: {value}", argv.join(" "));
            serde_json::from_value(value).context(shown)
        }
    }
}
