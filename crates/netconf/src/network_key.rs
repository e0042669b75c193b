//! The key `network` of a config. It has two meanings: configs in the style of the seed write the CIDRs of the cluster there,
//! configs with placements write the id of a network.

use std::net::IpAddr;

use cni::Error;
use cni::json::Obj;
use ipnet::IpNet;
use types::{NetworkId, Special};

use crate::{at_most, invalid};

const KEY: &str = "network";
/// CIDRs in `network`.
const MOST_CIDRS: usize = 64;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NetworkKey {
    /// Pod traffic inside of them is not masqueraded.
    Cidrs(Vec<IpNet>),
    /// Part of the placement.
    Id(NetworkId),
}

impl NetworkKey {
    /// None: the config has no such key, or it is empty.
    pub(crate) fn parse(top: &Obj<'_>) -> Result<Option<Self>, Error> {
        let Some(text) = top.nonempty(KEY)? else { return Ok(None) };
        let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        let cidrs: Vec<IpNet> = parts.iter().filter_map(|part| part.parse().ok()).collect();
        if cidrs.is_empty() {
            return parse_id(text).map(|id| Some(Self::Id(id)));
        }
        if cidrs.len() < parts.len() {
            let why = "mixes CIDRs with other text; state either CIDRs, separated by commas, or the name of one network";
            return Err(invalid(KEY, format_args!("{text:?} {why}")));
        }
        at_most(MOST_CIDRS, KEY, cidrs.len())?;
        check(&cidrs)?;
        Ok(Some(Self::Cidrs(cidrs)))
    }
}

/// Refuses CIDRs with addresses that no pod can have.
pub(crate) fn check(cidrs: &[IpNet]) -> Result<(), Error> {
    let special = cidrs.iter().find_map(|net| Special::of(*net).map(|kind| (net, kind)));
    special.map_or(Ok(()), |(net, kind)| {
        Err(invalid(KEY, format_args!("{net} includes {kind} address, which no pod has")))
    })
}

fn parse_id(text: &str) -> Result<NetworkId, Error> {
    let example = types::DEFAULT_SUBNET_V4;
    if text.parse::<IpAddr>().is_ok() {
        let why =
            format_args!("{text:?} is ambiguous: state a CIDR such as {example}, or the name of a network");
        return Err(invalid(KEY, why));
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
    fn b10_a_network_is_cidrs_or_an_id_and_never_both() {
        let cidrs = |all: &[&str]| NetworkKey::Cidrs(all.iter().map(|net| net.parse().unwrap()).collect());
        for (text, wanted) in [
            ("", None),
            ("10.2.0.0/16", Some(cidrs(&["10.2.0.0/16"]))),
            ("10.2.0.0/16, fd00:2::/64", Some(cidrs(&["10.2.0.0/16", "fd00:2::/64"]))),
            ("10.2.0.0/16,", Some(cidrs(&["10.2.0.0/16"]))),
            ("blue", Some(NetworkKey::Id("blue".try_into().unwrap()))),
            ("10", Some(NetworkKey::Id("10".try_into().unwrap()))),
        ] {
            assert_eq!(parse(json!(text)).unwrap(), wanted, "{text}");
        }
        for (text, why) in [
            ("10.2.0.0/16,blue", "mixes CIDRs with other text"),
            ("10.2.0.0/16,10.3.0.0/33", "mixes CIDRs with other text"),
            ("10.2.0.0", "\"10.2.0.0\" is ambiguous: state a CIDR such as 10.83.0.0/16"),
            ("fd00::1", "is ambiguous"),
            ("10.2.0.0/33", "neither a CIDR such as 10.83.0.0/16 nor the name of a network"),
            ("blue,red", "neither a CIDR"),
            (",", "neither a CIDR"),
            ("127.0.0.0/8", "includes a loopback address"),
        ] {
            let error = parse(json!(text)).unwrap_err();
            assert_eq!(error.code, cni::ErrorCode::InvalidConfig, "{text}: {error}");
            assert!(error.msg.starts_with("network: ") && error.msg.contains(why), "{text}: {error}");
        }
        assert_eq!(parse(json!(7)).unwrap_err().code, cni::ErrorCode::Decode);
    }
}
