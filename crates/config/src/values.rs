//! Parsers of values. Each error continues a sentence that starts with key and value: "must be …".

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use ipam::{Range, RangeSpec};
use ipnet::IpNet;
use types::{AttachMode, IfName, NameError, NodeName, Special};

use crate::draft::StoreKind;
use crate::{LogFormat, LogLevel};

pub(super) fn put<T>(slot: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
    *slot = Some(value?);
    Ok(())
}

/// `none` unsets the value of a lower layer.
pub(super) fn optional<T>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    match text {
        "none" => Ok(None),
        text => parse(text).map(Some).map_err(|reason| format!("{reason}, or none")),
    }
}

/// Paths are copied into the CNI config and into messages, so they must be absolute and printable.
pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    if text.starts_with('/') && !text.contains(char::is_control) {
        Ok(PathBuf::from(text))
    } else {
        Err("must be an absolute path".to_owned())
    }
}

pub(super) fn paths(text: &str) -> Result<Vec<PathBuf>, String> {
    // The directories are joined to CNI_PATH, a colon-separated list.
    let parse = |part: &str| path(part).ok().filter(|_| !part.contains(':'));
    let all: Option<Vec<_>> = text.split(',').map(|part| parse(part.trim())).collect();
    all.ok_or_else(|| "must be absolute paths without ':', separated by commas".to_owned())
}

/// File names of plugins that the agent may run.
pub(super) fn plugins(text: &str) -> Result<Vec<String>, String> {
    if text == "none" {
        return Ok(Vec::new());
    }
    let all: Option<Vec<_>> =
        text.split(',').map(str::trim).map(|name| is_plugin_name(name).then(|| name.to_owned())).collect();
    all.ok_or_else(|| format!("{PLUGIN_NAME}, separated by commas, or none"))
}

pub(super) fn number<T>(text: &str, allowed: RangeInclusive<T>) -> Result<T, String>
where
    T: FromStr + PartialOrd + Display,
{
    let error = || format!("must be a number from {} to {}", allowed.start(), allowed.end());
    text.parse().ok().filter(|number| allowed.contains(number)).ok_or_else(error)
}

pub(super) fn boolean(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "must be true or false".to_owned())
}

pub(super) fn listen(text: &str) -> Result<SocketAddr, String> {
    let error = || "must be an IP address and a port, such as 127.0.0.1:9100 or [::1]:9100".to_owned();
    text.parse().ok().filter(|address: &SocketAddr| address.port() != 0).ok_or_else(error)
}

pub(super) fn name<T>(text: &str) -> Result<T, String>
where
    T: for<'a> TryFrom<&'a str, Error = NameError>,
{
    T::try_from(text).map_err(|error| format!("cannot be used: {error}"))
}

pub(super) fn bridge(text: &str) -> Result<IfName, String> {
    match text {
        "lo" => Err("cannot be used: lo is the loopback interface, not a bridge".to_owned()),
        text => name(text),
    }
}

/// Host names and Kubernetes node names.
pub(super) fn node(text: &str) -> Result<NodeName, String> {
    NodeName::try_from(text).map_err(|_| {
        "must have 1 to 253 letters, digits, '.', '-' and '_', and start with a letter or digit".to_owned()
    })
}

pub(super) fn store(text: &str) -> Result<StoreKind, String> {
    match text {
        "embedded" => Ok(StoreKind::Embedded),
        "etcd" => Ok(StoreKind::Etcd),
        _ => Err("must be embedded or etcd".to_owned()),
    }
}

pub(super) fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("must be text or json".to_owned()),
    }
}

pub(super) fn log_level(text: &str) -> Result<LogLevel, String> {
    match text {
        "error" => Ok(LogLevel::Error),
        "warn" => Ok(LogLevel::Warn),
        "info" => Ok(LogLevel::Info),
        "debug" => Ok(LogLevel::Debug),
        _ => Err("must be error, warn, info or debug".to_owned()),
    }
}

pub(super) fn mode(text: &str) -> Result<AttachMode, String> {
    match text {
        "routed" => Ok(AttachMode::Routed),
        "bridge" => Ok(AttachMode::Bridge),
        _ => Err("must be routed or bridge".to_owned()),
    }
}

/// Runtimes read a list of plugins from `.conflist` and a single plugin from `.conf`.
pub(super) fn config_name(text: &str) -> Result<String, String> {
    let stem = text.strip_suffix(".conflist").or_else(|| text.strip_suffix(".conf"));
    let is_valid = |stem: &&str| !stem.is_empty() && !stem.starts_with('.');
    if stem.is_some_and(|stem| is_valid(&stem)) && !text.contains(|c: char| c == '/' || c.is_control()) {
        Ok(text.to_owned())
    } else {
        Err("must be a file name without a directory that ends in .conflist or .conf".to_owned())
    }
}

/// The plugin's file name. Podwire also installs a plugin named `loopback`.
pub(super) fn plugin_name(text: &str) -> Result<String, String> {
    if text == "loopback" {
        Err("cannot be used: another plugin has this name".to_owned())
    } else if is_plugin_name(text) {
        Ok(text.to_owned())
    } else {
        Err(PLUGIN_NAME.to_owned())
    }
}

const PLUGIN_NAME: &str =
    "must be a file name of 1 to 100 letters, digits, '.', '-' and '_' that starts with a letter or digit";

fn is_plugin_name(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let has_valid_start = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    has_valid_start && text.chars().all(is_allowed) && text.len() <= 100
}

pub(super) fn cni_version(text: &str) -> Result<cni::Version, String> {
    cni::Version::parse(text)
        .map_err(|_| format!("must be one of {}", join(&cni::Version::ALL).replace(',', ", ")))
}

/// The addresses at which other nodes reach this node.
pub(super) fn addresses(text: &str) -> Result<Vec<IpAddr>, String> {
    let all = text.split(',').map(|part| address(part.trim())).collect::<Result<Vec<_>, _>>()?;
    let count = |v4: bool| all.iter().filter(|address| address.is_ipv4() == v4).count();
    if count(true) > 1 || count(false) > 1 {
        return Err("must be one address, or one IPv4 and one IPv6 address".to_owned());
    }
    Ok(all)
}

fn address(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text
        .parse()
        .map_err(|_| format!("must be addresses such as 192.0.2.1 or 2001:db8::1, not {text:?}"))?;
    match Special::of(address.into()) {
        Some(special) => {
            Err(format!("cannot be used: {address} is {special} address; other nodes cannot send to it"))
        }
        None => Ok(address),
    }
}

/// A pod gets one address of every subnet. Several addresses of one family are not supported.
pub(super) fn subnets(text: &str) -> Result<Vec<IpNet>, String> {
    let subnets = text.split(',').map(|part| subnet(part.trim())).collect::<Result<Vec<_>, _>>()?;
    let count = |v4: bool| subnets.iter().filter(|net| net.addr().is_ipv4() == v4).count();
    if count(true) > 1 || count(false) > 1 {
        return Err("must be one subnet, or one IPv4 and one IPv6 subnet".to_owned());
    }
    Ok(subnets)
}

fn subnet(text: &str) -> Result<IpNet, String> {
    let [v4, v6] = [types::DEFAULT_SUBNET_V4, types::DEFAULT_SUBNET_V6];
    let subnet: IpNet =
        text.parse().map_err(|_| format!("must be CIDRs such as {v4} or {v6}, not {text:?}"))?;
    let spec = RangeSpec { subnet, start: None, end: None, gateway: None, exclude: Vec::new() };
    Range::new(spec).map(|_| subnet).map_err(|error| format!("cannot be used: {error}"))
}

pub(super) fn join<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
