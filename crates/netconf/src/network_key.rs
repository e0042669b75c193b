//! The key `network` of a config. It contains either the CIDRs of the cluster or, in configs with placements, the id of a
//! network.

use std::net::IpAddr;

use cni::Error;
use cni::json::Obj;
use ipnet::IpNet;
use types::{NetworkId, Special};

use crate::{at_most, invalid};

const KEY: &str = "network";
/// Limit for the CIDRs in `network`.
const MAX_CIDRS: usize = 64;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NetworkKey {
    /// Pod traffic inside these CIDRs is not masqueraded.
    Cidrs(Vec<IpNet>),
    /// The network of the placement.
    Id(NetworkId),
}

impl NetworkKey {
    /// None if the key is missing or empty.
    pub(crate) fn parse(top: &Obj<'_>) -> Result<Option<Self>, Error> {
        let Some(text) = top.nonempty(KEY)? else { return Ok(None) };
        let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        let cidrs: Vec<IpNet> = parts.iter().filter_map(|part| part.parse().ok()).collect();
        if cidrs.is_empty() {
            return parse_id(text).map(|id| Some(Self::Id(id)));
        }
        if cidrs.len() < parts.len() {
            let reason = "mixes CIDRs with other text; use either CIDRs, separated by commas, or the name of one network";
            return Err(invalid(KEY, format_args!("{text:?} {reason}")));
        }
        at_most(MAX_CIDRS, KEY, cidrs.len())?;
        check(&cidrs)?;
        Ok(Some(Self::Cidrs(cidrs)))
    }
}

/// Refuses CIDRs that overlap special-purpose addresses.
pub(crate) fn check(cidrs: &[IpNet]) -> Result<(), Error> {
    let special = cidrs.iter().find_map(|net| Special::of(*net).map(|kind| (net, kind)));
    special.map_or(Ok(()), |(net, kind)| {
        Err(invalid(KEY, format_args!("{net} includes {kind} address, which no pod has")))
    })
}

fn parse_id(text: &str) -> Result<NetworkId, Error> {
    let example = types::DEFAULT_SUBNET_V4;
    if text.parse::<IpAddr>().is_ok() {
        let reason =
            format_args!("{text:?} is ambiguous: use a CIDR such as {example}, or the name of a network");
        return Err(invalid(KEY, reason));
    }
    NetworkId::try_from(text).map_err(|_| {
        invalid(KEY, format_args!("{text:?} is neither a CIDR such as {example} nor the name of a network"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    fn parse(value: Value) -> Result<Option<NetworkKey>, Error> {
        NetworkKey::parse(&Obj::root(&Map::from_iter([("network".to_owned(), value)])))
    }

    #[test]
    fn b10_the_network_key_has_either_cidrs_or_an_id() {
        let cidrs = |all: &[&str]| NetworkKey::Cidrs(all.iter().map(|net| net.parse().unwrap()).collect());
        for (text, expected) in [
            ("", None),
            ("10.2.0.0/16", Some(cidrs(&["10.2.0.0/16"]))),
            ("10.2.0.0/16, fd00:2::/64", Some(cidrs(&["10.2.0.0/16", "fd00:2::/64"]))),
            ("10.2.0.0/16,", Some(cidrs(&["10.2.0.0/16"]))),
            ("blue", Some(NetworkKey::Id("blue".try_into().unwrap()))),
            ("10", Some(NetworkKey::Id("10".try_into().unwrap()))),
        ] {
            assert_eq!(parse(json!(text)).unwrap(), expected, "{text}");
        }
        for (text, reason) in [
            ("10.2.0.0/16,blue", "mixes CIDRs with other text"),
            ("10.2.0.0/16,10.3.0.0/33", "mixes CIDRs with other text"),
            ("10.2.0.0", "\"10.2.0.0\" is ambiguous: use a CIDR such as 10.83.0.0/16"),
            ("fd00::1", "is ambiguous"),
            ("10.2.0.0/33", "neither a CIDR such as 10.83.0.0/16 nor the name of a network"),
            ("blue,red", "neither a CIDR"),
            (",", "neither a CIDR"),
            ("127.0.0.0/8", "includes a loopback address"),
        ] {
            let error = parse(json!(text)).unwrap_err();
            assert_eq!(error.code, cni::ErrorCode::InvalidConfig, "{text}: {error}");
            assert!(error.msg.starts_with("network: ") && error.msg.contains(reason), "{text}: {error}");
        }
        assert_eq!(parse(json!(7)).unwrap_err().code, cni::ErrorCode::Decode);
    }
}
