use std::net::IpAddr;
use std::sync::Arc;

use cni::json::{Item, Obj};
use cni::{Error, NetworkConfig};
use ipam::{Pools, Range, RangeSet, RangeSpec};
use ipnet::IpNet;
use types::GroupName;

use crate::{Network, invalid};

/// The `ipam.type` for Podwire's built-in IPAM, which is also the default.
const OWN: &str = "podwire";
/// The reference IPAM plugin that gets a lease from a DHCP server through the pod's interface.
const DHCP: &str = "dhcp";

/// The source of a pod's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Addresses {
    /// Podwire assigns addresses of these ranges and claims them in node-local state.
    Own(Arc<Pools>),
    /// The IPAM plugin of this name assigns addresses.
    Delegated(String),
    /// Layer 2 only: the config has no `ipam` and no subnet. Pods get an interface on the bridge without addresses.
    Absent,
}

/// Whether the IPAM plugin sends packets through the pod's interface, also while the pod runs.
pub fn is_dhcp(plugin: &str) -> bool {
    plugin == DHCP
}

/// The external IPAM plugin of a config, if any. DEL and GC read no other part of `ipam`.
pub fn external_ipam(config: &NetworkConfig) -> Option<&str> {
    let is_usable = |plugin: &&str| *plugin != OWN && is_plugin_name(plugin) && *plugin != config.plugin_type;
    config.ipam_type.as_deref().filter(is_usable)
}

/// Whether the name is a file name. It is resolved in the directories of CNI_PATH and must not point outside of them.
fn is_plugin_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != ".."
}

/// The agent's role in a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NetworkSource<'a> {
    /// The request is served without an agent.
    Standalone,
    /// The config's CNI network name differs from the agent's.
    OtherNetwork,
    AgentNetwork(&'a Network),
}

impl<'a> NetworkSource<'a> {
    pub(crate) fn network(self) -> Option<&'a Network> {
        match self {
            Self::Standalone | Self::OtherNetwork => None,
            Self::AgentNetwork(network) => Some(network),
        }
    }
}

impl Addresses {
    /// `group` is the group of the pod, if any.
    pub(crate) fn merge(
        config: &NetworkConfig,
        source: NetworkSource<'_>,
        group: Option<&GroupName>,
    ) -> Result<Self, Error> {
        if let Some(bad) = config.ipam_type.as_deref().filter(|name| !is_plugin_name(name)) {
            return Err(invalid("ipam.type", format_args!("{bad:?} is not the name of a plugin")));
        }
        if let Some(own) =
            config.ipam_type.as_deref().filter(|name| **name == config.plugin_type && *name != OWN)
        {
            let reason =
                "is the plugin of this network, which would run itself recursively; remove ipam.type";
            return Err(invalid("ipam.type", format_args!("{own:?} {reason}")));
        }
        if let Some(plugin) = external_ipam(config) {
            return Ok(Self::Delegated(plugin.to_owned()));
        }
        let top = config.obj();
        let mut sets = configured_sets(&top)?;
        if sets.is_empty() {
            sets = match (source.network(), top.get("subnet")) {
                (Some(network), None) if !RANGE_KEYS.iter().any(|key| top.get(key).is_some()) => {
                    return network.addresses_for(group);
                }
                (Some(network), None) => parse_subnets(&top, network.blocks())?,
                (None, _) | (_, Some(_)) => parse_inline(&top)?,
            };
        }
        if sets.is_empty() {
            return no_addresses(&top, source);
        }
        pools(sets).map(Self::Own)
    }
}

pub(crate) fn pools(sets: Vec<RangeSet>) -> Result<Arc<Pools>, Error> {
    Pools::new(sets).map(Arc::new).map_err(|e| invalid("ipam.ranges", e))
}

/// All addresses of these blocks. A pod gets one address per family.
pub(crate) fn pools_of(blocks: &[IpNet]) -> Result<Arc<Pools>, Error> {
    pools(parse_subnets(&Obj::root(&serde_json::Map::new()), blocks)?)
}

/// Whether pods of this config get addresses from the blocks of the agent's network.
pub(crate) fn uses_agent_ranges(config: &NetworkConfig) -> bool {
    let top = config.obj();
    let has_no_ranges = || configured_sets(&top).is_ok_and(|sets| sets.is_empty());
    external_ipam(config).is_none() && top.get("subnet").is_none() && has_no_ranges()
}

/// The ranges in `runtimeConfig` and `ipam`.
fn configured_sets(top: &Obj<'_>) -> Result<Vec<RangeSet>, Error> {
    let mut sets = Vec::new();
    if let Some(runtime) = top.obj("runtimeConfig")?
        && let Some(ranges) = runtime.array("ipRanges")?
    {
        sets.extend(parse_sets(&ranges)?);
    }
    if let Some(ipam) = top.obj("ipam")? {
        // As in host-local, a range directly in `ipam` is the first set.
        sets.extend(parse_inline(&ipam)?);
        if let Some(ranges) = ipam.array("ranges")? {
            sets.extend(parse_sets(&ranges)?);
        }
    }
    Ok(sets)
}

/// Keys that limit the range of the `subnet` in the same object.
const RANGE_KEYS: [&str; 4] = ["rangeStart", "rangeEnd", "gateway", "exclude"];
/// Keys that request addresses, in addition to `ipam`.
const ADDRESS_KEYS: [&str; 6] = ["subnet", "ranges", "rangeStart", "rangeEnd", "gateway", "exclude"];
/// Keys of layer 2 configs that must not be taken for a misspelt address key.
const LAYER2_KEYS: [&str; 2] = ["ipam", "isGateway"];

/// A config without ranges is layer 2 only, unless one of its keys requests addresses. A misspelt address key is refused,
/// because the pod would start without addresses. With an agent, a config also needs `bridge`, `mode` or `ipam`: a config with
/// only a name is meant for the agent's network, and its name is misspelt.
fn no_addresses(top: &Obj<'_>, source: NetworkSource<'_>) -> Result<Addresses, Error> {
    // An `ipam` with any key except an empty type requests addresses.
    let is_empty_type = |item: &Item<'_>| item.value() == "" && item.path().eq_ignore_ascii_case("ipam.type");
    let requests_addresses =
        |ipam: Obj<'_>| ipam.keys().any(|key| !ipam.get(key).is_some_and(|item| is_empty_type(&item)));
    if top.obj("ipam")?.is_some_and(requests_addresses) {
        return Err(missing_ranges(LAYER2_HINT));
    }
    for key in top.keys() {
        match types::closest(key, LAYER2_KEYS.into_iter().chain(ADDRESS_KEYS)) {
            Some(known) if known.eq_ignore_ascii_case(key) && LAYER2_KEYS.contains(&known) => {}
            Some(known) if known.eq_ignore_ascii_case(key) => return Err(missing_ranges("")),
            Some(known) => {
                let hint = format!("; {key:?} is not a key of a network config, did you mean {known:?}?");
                return Err(missing_ranges(&hint));
            }
            None => {}
        }
    }
    let has_only_name = || ["bridge", "mode", "ipam"].iter().all(|key| top.get(key).is_none());
    match source {
        NetworkSource::Standalone => Ok(Addresses::Absent),
        NetworkSource::OtherNetwork | NetworkSource::AgentNetwork(_) if has_only_name() => {
            Err(missing_ranges(LAYER2_HINT))
        }
        NetworkSource::OtherNetwork | NetworkSource::AgentNetwork(_) => Ok(Addresses::Absent),
    }
}

const LAYER2_HINT: &str = "; for layer 2 only, set \"ipam\": {}";

/// The error for a config without ranges that needs addresses. `hint` is appended.
pub(crate) fn missing_ranges(hint: &str) -> Error {
    let example = types::DEFAULT_SUBNET_V4;
    invalid(
        "ipam",
        format_args!("no addresses to assign: set \"subnet\": \"{example}\", or ipam.ranges{hint}"),
    )
}

/// `subnet` with `rangeStart`, `rangeEnd`, `gateway` and `exclude` in the same object. `subnet` may contain several subnets,
/// separated by commas. A pod gets one address per family, from any subnet of that family.
fn parse_inline(obj: &Obj<'_>) -> Result<Vec<RangeSet>, Error> {
    let Some(text) = obj.nonempty("subnet")? else { return Ok(Vec::new()) };
    if !text.contains(',') {
        return parse_subnets(obj, &[parse_subnet(obj, text)?]);
    }
    let subnets = text.split(',').map(|subnet| parse_subnet(obj, subnet.trim()));
    parse_subnets(obj, &subnets.collect::<Result<Vec<_>, _>>()?)
}

/// One set per family, in the order of the first subnet of each family. With several subnets, keys with a single address are
/// ambiguous.
fn parse_subnets(obj: &Obj<'_>, subnets: &[IpNet]) -> Result<Vec<RangeSet>, Error> {
    if subnets.len() > 1
        && let Some(key) = ["rangeStart", "rangeEnd", "gateway"].iter().find(|key| obj.get(key).is_some())
    {
        return Err(invalid(key, "ambiguous with several subnets; use ipam.ranges"));
    }
    let mut families: Vec<Vec<Range>> = Vec::new();
    for subnet in subnets {
        let range = parse_range(obj, *subnet)?;
        match families.iter_mut().find(|ranges| ranges[0].is_ipv4() == range.is_ipv4()) {
            Some(ranges) => ranges.push(range),
            None => families.push(vec![range]),
        }
    }
    let set = |ranges| RangeSet::new(ranges).map_err(|e| invalid(key_of(obj), e));
    families.into_iter().map(set).collect()
}

fn parse_sets(sets: &[Item<'_>]) -> Result<Vec<RangeSet>, Error> {
    let mut parsed = Vec::new();
    for set in sets.iter().filter(|set| !set.is_null()) {
        let mut ranges = Vec::new();
        for item in set.array()? {
            let obj = item.obj()?;
            let subnet =
                obj.nonempty("subnet")?.ok_or_else(|| invalid(item.path(), "a range needs a subnet"))?;
            ranges.push(parse_range(&obj, parse_subnet(&obj, subnet)?)?);
        }
        parsed.push(RangeSet::new(ranges).map_err(|e| invalid(set.path(), e))?);
    }
    Ok(parsed)
}

fn parse_subnet(obj: &Obj<'_>, subnet: &str) -> Result<IpNet, Error> {
    subnet.parse().map_err(|_| {
        let example = types::DEFAULT_SUBNET_V4;
        invalid(key_of(obj), format_args!("subnet {subnet:?} is not a CIDR such as {example}"))
    })
}

fn parse_range(obj: &Obj<'_>, subnet: IpNet) -> Result<Range, Error> {
    let address = |key: &str| obj.parse::<IpAddr>(key, "an IP address");
    let spec = RangeSpec {
        subnet,
        start: address("rangeStart")?,
        end: address("rangeEnd")?,
        gateway: address("gateway")?,
        exclude: parse_exclude(obj, subnet)?,
    };
    Range::new(spec).map_err(|e| invalid(key_of(obj), e))
}

/// CIDRs or addresses that are never assigned. Entries of the other family apply to the range of that family.
fn parse_exclude(obj: &Obj<'_>, subnet: IpNet) -> Result<Vec<IpNet>, Error> {
    let mut nets = Vec::new();
    for item in obj.array("exclude")?.unwrap_or_default() {
        let text = item.str()?;
        let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        let net = net.map_err(|_| item.invalid("a CIDR or an IP address"))?;
        if net.addr().is_ipv4() == subnet.addr().is_ipv4() {
            nets.push(net);
        }
    }
    Ok(nets)
}

/// The path of a range in the config, for errors. At the top level it is the key `subnet`.
fn key_of<'a>(obj: &'a Obj<'_>) -> &'a str {
    if obj.path().is_empty() { "subnet" } else { obj.path() }
}
