use std::iter;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use types::{Mac, Protocol};

use crate::address::{AN_ADDRESS, requested};
use crate::json::{Item, Obj, describe};
use crate::{Dns, Error, ErrorCode, RequestedIp};

/// `runtimeConfig`: the runtime's settings for one pod (CONVENTIONS.md). Unknown keys are ignored.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuntimeConfig {
    pub port_mappings: Vec<PortMapping>,
    pub bandwidth: Option<Bandwidth>,
    pub ips: Vec<RequestedIp>,
    pub mac: Option<Mac>,
    pub dns: Option<Dns>,
    /// Not parsed here: `netconf` parses all ranges.
    pub ip_ranges: Option<Value>,
    pub aliases: Vec<String>,
    pub cgroup_path: Option<String>,
}

/// A host port that is forwarded to a port of the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortMapping {
    pub host_port: u16,
    pub container_port: u16,
    pub protocol: Protocol,
    /// Only this address of the host. `0.0.0.0` and `::` mean all addresses of that family.
    pub host_ip: Option<IpAddr>,
}

/// Rates in bits per second, bursts in bits. Ingress is traffic to the pod. A rate of 0 means no limit, and then the burst
/// is 0, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bandwidth {
    pub ingress_rate: u64,
    pub ingress_burst: u64,
    pub egress_rate: u64,
    pub egress_burst: u64,
}

impl RuntimeConfig {
    pub(crate) fn read(runtime: &Obj<'_>) -> Result<Self, Error> {
        let port_mappings = runtime.array("portMappings")?.unwrap_or_default();
        Ok(Self {
            port_mappings: port_mappings
                .iter()
                .filter_map(|m| port_mapping(m).transpose())
                .collect::<Result<_, _>>()?,
            bandwidth: runtime.obj("bandwidth")?.map_or(Ok(None), |b| Bandwidth::read(&b))?,
            ips: requested(&runtime.array("ips")?.unwrap_or_default())?,
            mac: read_mac(runtime)?,
            dns: runtime.obj("dns")?.map(|dns| Dns::read_runtime(&dns)).transpose()?,
            ip_ranges: runtime.get("ipRanges").map(|ranges| ranges.value().clone()),
            aliases: runtime.strings("aliases")?,
            cgroup_path: runtime.nonempty("cgroupPath")?.map(str::to_owned),
        })
    }
}

pub(crate) fn read_mac(parent: &Obj<'_>) -> Result<Option<Mac>, Error> {
    parent.parse("mac", "a unicast MAC such as 02:42:ac:11:00:02")
}

/// `None` for a port without a host port: runtimes pass all ports of a pod.
fn port_mapping(item: &Item<'_>) -> Result<Option<PortMapping>, Error> {
    let mapping = item.obj()?;
    let host_port = mapping.u16("hostPort")?.unwrap_or_default();
    if host_port == 0 {
        return Ok(None);
    }
    let container_port = match mapping.get("containerPort") {
        Some(port) if port.u16()? == 0 => return Err(port.invalid("a port from 1 to 65535")),
        Some(port) => port.u16()?,
        None => return Err(Error::config(format!("{}.containerPort is missing", item.path()))),
    };
    let protocol = mapping.parse("protocol", "tcp, udp or sctp")?.unwrap_or(Protocol::Tcp);
    let host_ip = mapping.parse("hostIP", AN_ADDRESS)?.map(|ip: IpAddr| ip.to_canonical());
    Ok(Some(PortMapping { host_port, container_port, protocol, host_ip }))
}

impl Bandwidth {
    /// `None` if there is no limit.
    pub(crate) fn read(bandwidth: &Obj<'_>) -> Result<Option<Self>, Error> {
        // Ignoring these keys would limit traffic that the operator excluded.
        for key in ["unshapedSubnets", "shapedSubnets"] {
            if let Some(first) = bandwidth.array(key)?.unwrap_or_default().first() {
                let subnet = describe(first.value());
                let msg = format!("{}: shaping by subnet is not supported; remove {subnet}", first.path());
                return Err(Error::new(ErrorCode::UnsupportedField, msg));
            }
        }
        let (ingress_rate, ingress_burst) = rate_and_burst(bandwidth, "ingressRate", "ingressBurst")?;
        let (egress_rate, egress_burst) = rate_and_burst(bandwidth, "egressRate", "egressBurst")?;
        let limits = Self { ingress_rate, ingress_burst, egress_rate, egress_burst };
        Ok(Some(limits).filter(|b| b.ingress_rate > 0 || b.egress_rate > 0))
    }
}

/// The rules of the reference plugin: rate and burst need each other, and the kernel stores a burst as 32-bit bytes.
fn rate_and_burst(bandwidth: &Obj<'_>, rate_key: &str, burst_key: &str) -> Result<(u64, u64), Error> {
    let rate = bandwidth.u64(rate_key)?.unwrap_or_default();
    let burst = bandwidth.u64(burst_key)?.unwrap_or_default();
    let path_of = |key: &str| {
        iter::once(bandwidth.path()).filter(|p| !p.is_empty()).chain([key]).collect::<Vec<_>>().join(".")
    };
    if rate > 0 && burst == 0 {
        return Err(Error::config(format!(
            "{} is {rate}, so {burst_key} must be set too",
            path_of(rate_key)
        )));
    }
    if rate == 0 && burst > 0 {
        return Err(Error::config(format!(
            "{} is {burst}, so {rate_key} must be set too",
            path_of(burst_key)
        )));
    }
    if burst / 8 >= u64::from(u32::MAX) {
        let msg = format!(
            "{}: expected less than 4 GiB, which is {} bits, found {burst}",
            path_of(burst_key),
            u64::from(u32::MAX) * 8
        );
        return Err(Error::config(msg));
    }
    Ok((rate, burst))
}
