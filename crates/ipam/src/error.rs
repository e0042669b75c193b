use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;
use types::Special;

/// The configuration key of an invalid value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeKey {
    RangeStart,
    RangeEnd,
    Gateway,
    Exclude,
}

impl fmt::Display for RangeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RangeStart => "rangeStart",
            Self::RangeEnd => "rangeEnd",
            Self::Gateway => "gateway",
            Self::Exclude => "exclude",
        })
    }
}

/// An invalid range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RangeError {
    #[error("subnet {given} has host bits set; write {masked}")]
    HostBits { given: IpNet, masked: IpNet },
    #[error("subnet {0} is too small: {needs}; use a /{max_prefix} or larger", needs = needs(.0), max_prefix = .0.max_prefix_len() - 2)]
    TooSmall(IpNet),
    #[error("subnet {subnet} includes {kind} address, which no pod can have; use one such as {}", example(.subnet))]
    Special { subnet: IpNet, kind: Special },
    #[error("gateway {gateway} is {kind} address; use one of subnet {subnet}, or a link-local one")]
    SpecialGateway { gateway: IpAddr, subnet: IpNet, kind: Special },
    #[error("{key} {value} is {}, but subnet {subnet} is {}; use addresses of one family in a range", family(.value), family(&.subnet.addr()))]
    Family { key: RangeKey, value: IpAddr, subnet: IpNet },
    #[error("{key} {value} is outside of subnet {subnet}; use one from {first} to {last}")]
    Outside { key: RangeKey, value: IpAddr, subnet: IpNet, first: IpAddr, last: IpAddr },
    #[error("rangeStart {start} is after rangeEnd {end}; swap them")]
    StartAfterEnd { start: IpAddr, end: IpAddr },
    #[error("exclude has {given} entries, more than {max}; combine them into larger CIDRs")]
    TooManyExclusions { given: usize, max: usize },
    #[error(
        "range {start}-{end} of subnet {subnet} has no address for pods: gateway, exclusions and reserved addresses cover all of it; use a larger range or fewer exclusions"
    )]
    NothingLeft { subnet: IpNet, start: IpAddr, end: IpAddr },
}

fn needs(subnet: &IpNet) -> &'static str {
    match subnet {
        IpNet::V4(_) => "network address, gateway, pod and broadcast address need four addresses",
        IpNet::V6(_) => "subnet-router anycast address, gateway and pod need three addresses",
    }
}

fn example(subnet: &IpNet) -> &'static str {
    match subnet {
        IpNet::V4(_) => types::DEFAULT_SUBNET_V4,
        IpNet::V6(_) => types::DEFAULT_SUBNET_V6,
    }
}

fn family(ip: &IpAddr) -> &'static str {
    match ip {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    }
}

/// An invalid combination of ranges.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PoolError {
    #[error("no ranges are configured; set at least one subnet")]
    NoSet,
    #[error("a range set is empty; add a range or remove the set")]
    NoRange,
    #[error("{given} range sets are configured, but a pod gets at most {max} addresses; remove some")]
    TooManySets { given: usize, max: usize },
    #[error("a range set has {given} ranges, more than {max}; use larger subnets")]
    TooManyRanges { given: usize, max: usize },
    #[error("ranges {first} and {second} of one set have different address families; use one set per family")]
    MixedFamilies { first: String, second: String },
    #[error(
        "ranges {first} and {second} overlap; change rangeStart or rangeEnd so that each address is in one range"
    )]
    Overlap { first: String, second: String },
    #[error(transparent)]
    Range(#[from] RangeError),
}

/// A requested address that is not allocatable, independent of claims.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    #[error("requested address {ip} is outside of all ranges; request one of {ranges}")]
    Outside { ip: IpAddr, ranges: String },
    #[error("requested address {ip} is a gateway; request another one of {ranges}")]
    Gateway { ip: IpAddr, ranges: String },
    #[error("requested address {ip} is excluded by {exclude}; request another one of {ranges}")]
    Excluded { ip: IpAddr, exclude: IpNet, ranges: String },
    #[error("requested address {ip} is the network address of {subnet}; request another one of {ranges}")]
    NetworkAddress { ip: IpAddr, subnet: IpNet, ranges: String },
    #[error("requested address {ip} is the broadcast address of {subnet}; request another one of {ranges}")]
    BroadcastAddress { ip: IpAddr, subnet: IpNet, ranges: String },
    #[error("requested address {ip}/{given} does not match subnet {subnet}; request {ip}/{} or {ip}", .subnet.prefix_len())]
    Prefix { ip: IpAddr, given: u8, subnet: IpNet },
    #[error(
        "requested addresses {first} and {second} are both of {ranges}, but a pod gets one address of it; request one of them"
    )]
    SameSet { first: IpAddr, second: IpAddr, ranges: String },
}

/// All addresses of a set are in use.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no free address: all {in_use} of {ranges} are in use; remove pods or add a range")]
pub struct Exhausted {
    pub in_use: u64,
    pub ranges: String,
}
