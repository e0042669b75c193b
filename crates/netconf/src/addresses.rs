use std::net::IpAddr;
use std::sync::Arc;

use cni::json::{Item, Obj};
use cni::{Error, NetworkConfig};
use ipam::{Pools, Range, RangeSet, RangeSpec};
use ipnet::IpNet;

use crate::{Network, invalid};

/// The `ipam.type` that means: ourselves. No type at all means the same.
const OWN: &str = "podwire";
/// The IPAM plugin of the reference that asks a DHCP server, through the pod's interface.
const DHCP: &str = "dhcp";

/// Where a pod's addresses come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Addresses {
    /// From Podwire's own ranges, claimed in node-local state.
    Own(Arc<Pools>),
    /// From the IPAM plugin of that name.
    Delegated(String),
    /// The config has no `ipam` and no subnet: pods get an interface on the bridge and no addresses (layer 2 only).
    Absent,
}

/// Whether an IPAM plugin needs the pod's interface: it sends from there, also while the pod runs.
pub fn is_dhcp(plugin: &str) -> bool {
    plugin == DHCP
}

/// The IPAM plugin that a config names, if it is not ourselves. DEL and GC need to know only this.
pub fn external_ipam(config: &NetworkConfig) -> Option<&str> {
    let is_usable = |plugin: &&str| *plugin != OWN && is_plugin_name(plugin) && *plugin != config.plugin_type;
    config.ipam_type.as_deref().filter(is_usable)
}

/// It becomes a file name in the directories of CNI_PATH, and must not lead out of them.
fn is_plugin_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != ".."
}

/// Which part the agent has in a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NetworkSource<'a> {
    /// The request is served without an agent.
    Standalone,
    /// The config has another CNI network name than the agent's network.
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
    pub(crate) fn merge(config: &NetworkConfig, source: NetworkSource<'_>) -> Result<Self, Error> {
        if let Some(bad) = config.ipam_type.as_deref().filter(|name| !is_plugin_name(name)) {
            return Err(invalid("ipam.type", format_args!("{bad:?} is not the name of a plugin")));
        }
        if let Some(own) =
            config.ipam_type.as_deref().filter(|name| **name == config.plugin_type && *name != OWN)
        {
            let why = "is the plugin of this network itself, which would run itself without end; leave ipam.type out";
            return Err(invalid("ipam.type", format_args!("{own:?} {why}")));
        }
        if let Some(plugin) = external_ipam(config) {
            return Ok(Self::Delegated(plugin.to_owned()));
        }
        let top = config.obj();
        let mut sets = sets_of_pod(&top)?;
        if sets.is_empty() {
            sets = match (source.network(), top.get("subnet")) {
                (Some(network), None) if !BESIDE_SUBNET.iter().any(|key| top.get(key).is_some()) => {
                    return Ok(network.conf().addresses.clone());
                }
                (Some(network), None) => parse_beside(&top, network.blocks())?,
                (None, _) | (_, Some(_)) => parse_inline(&top)?,
            };
        }
        if sets.is_empty() {
            return no_addresses(&top, source);
        }
        pools(sets).map(Self::Own)
    }
}

fn pools(sets: Vec<RangeSet>) -> Result<Arc<Pools>, Error> {
    Pools::new(sets).map(Arc::new).map_err(|e| invalid("ipam.ranges", e))
}

/// All addresses of these blocks: a pod gets one of each family.
pub(crate) fn pools_of(blocks: &[IpNet]) -> Result<Arc<Pools>, Error> {
    pools(parse_beside(&Obj::root(&serde_json::Map::new()), blocks)?)
}

/// Whether a config leaves it to the agent's network which ranges its pods get addresses from.
pub(crate) fn leaves_ranges(config: &NetworkConfig) -> bool {
    let top = config.obj();
    let names_none = || sets_of_pod(&top).is_ok_and(|sets| sets.is_empty());
    external_ipam(config).is_none() && top.get("subnet").is_none() && names_none()
}

/// The ranges in `runtimeConfig` and `ipam`.
fn sets_of_pod(top: &Obj<'_>) -> Result<Vec<RangeSet>, Error> {
    let mut sets = Vec::new();
    if let Some(runtime) = top.obj("runtimeConfig")?
        && let Some(ranges) = runtime.array("ipRanges")?
    {
        sets.extend(parse_sets(&ranges)?);
    }
    if let Some(ipam) = top.obj("ipam")? {
        // host-local: a range given directly is the first set.
        sets.extend(parse_inline(&ipam)?);
        if let Some(ranges) = ipam.array("ranges")? {
            sets.extend(parse_sets(&ranges)?);
        }
    }
    Ok(sets)
}

/// Keys that limit the ranges of the subnet beside them.
const BESIDE_SUBNET: [&str; 4] = ["rangeStart", "rangeEnd", "gateway", "exclude"];
/// Keys that ask for addresses, beside `ipam`.
const ASKING: [&str; 6] = ["subnet", "ranges", "rangeStart", "rangeEnd", "gateway", "exclude"];
/// Keys that are similar to one of those, or that may be empty.
const SIMILAR: [&str; 2] = ["ipam", "isGateway"];

/// A config without ranges is layer 2 only, unless any key of it asks for addresses. A misspelt key counts: the pod would
/// start without addresses. With an agent a config also needs a `bridge`, a `mode` or an `ipam`: one that has only a name means
/// the agent's network, and the name is misspelt.
fn no_addresses(top: &Obj<'_>, source: NetworkSource<'_>) -> Result<Addresses, Error> {
    // An `ipam` with any key but an empty type asks for addresses.
    let is_empty_type = |item: &Item<'_>| item.value() == "" && item.path().eq_ignore_ascii_case("ipam.type");
    let asks = |ipam: Obj<'_>| ipam.keys().any(|key| !ipam.get(key).is_some_and(|item| is_empty_type(&item)));
    if top.obj("ipam")?.is_some_and(asks) {
        return Err(none_to_give(LAYER2_HINT));
    }
    for key in top.keys() {
        match types::closest(key, SIMILAR.into_iter().chain(ASKING)) {
            Some(known) if known.eq_ignore_ascii_case(key) && SIMILAR.contains(&known) => {}
            Some(known) if known.eq_ignore_ascii_case(key) => return Err(none_to_give("")),
            Some(known) => {
                let hint = format!("; {key:?} is not a key of a network config, did you mean {known:?}?");
                return Err(none_to_give(&hint));
            }
            None => {}
        }
    }
    let has_only_name = || ["bridge", "mode", "ipam"].iter().all(|key| top.get(key).is_none());
    match source {
        NetworkSource::Standalone => Ok(Addresses::Absent),
        NetworkSource::OtherNetwork | NetworkSource::AgentNetwork(_) if has_only_name() => {
            Err(none_to_give(LAYER2_HINT))
        }
        NetworkSource::OtherNetwork | NetworkSource::AgentNetwork(_) => Ok(Addresses::Absent),
    }
}

const LAYER2_HINT: &str = "; for layer 2 only, set \"ipam\": {}";

/// The network has no addresses, and needs some.
pub(crate) fn none_to_give(more: &str) -> Error {
    let example = types::DEFAULT_SUBNET_V4;
    invalid("ipam", format_args!("no addresses to give: set \"subnet\": \"{example}\", or ipam.ranges{more}"))
}

/// `subnet` with `rangeStart`, `rangeEnd`, `gateway`, `exclude` beside it. Several subnets may stand in one string, separated
/// by commas: a pod gets one address of each family, from any subnet of it.
fn parse_inline(obj: &Obj<'_>) -> Result<Vec<RangeSet>, Error> {
    let Some(text) = obj.nonempty("subnet")? else { return Ok(Vec::new()) };
    if !text.contains(',') {
        return parse_beside(obj, &[parse_subnet(obj, text)?]);
    }
    let subnets = text.split(',').map(|subnet| parse_subnet(obj, subnet.trim()));
    parse_beside(obj, &subnets.collect::<Result<Vec<_>, _>>()?)
}

/// One set per family, in the order in which the families are named. Beside several subnets, keys that name one address
/// are ambiguous.
fn parse_beside(obj: &Obj<'_>, subnets: &[IpNet]) -> Result<Vec<RangeSet>, Error> {
    if subnets.len() > 1
        && let Some(key) = ["rangeStart", "rangeEnd", "gateway"].iter().find(|key| obj.get(key).is_some())
    {
        return Err(invalid(key, "ambiguous beside several subnets; use ipam.ranges"));
    }
    let mut families: Vec<Vec<Range>> = Vec::new();
    for subnet in subnets {
        let range = parse_range(obj, *subnet)?;
        match families.iter_mut().find(|ranges| ranges[0].is_ipv4() == range.is_ipv4()) {
            Some(ranges) => ranges.push(range),
            None => families.push(vec![range]),
        }
    }
    let set = |ranges| RangeSet::new(ranges).map_err(|e| invalid(place(obj), e));
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
        invalid(place(obj), format_args!("subnet {subnet:?} is not a CIDR such as {example}"))
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
    Range::new(spec).map_err(|e| invalid(place(obj), e))
}

/// CIDRs or single addresses that are never handed out; those of the other family belong to the other range.
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

/// Where a range stands in the config; the top level has no name of its own.
fn place<'a>(obj: &'a Obj<'_>) -> &'a str {
    if obj.path().is_empty() { "subnet" } else { obj.path() }
}
