//! Hand-written worlds, one for each clause of the semantics.

mod cluster;
mod cluster_peers;
mod network_policy;
mod network_policy_pods;
mod podwire;

use std::net::IpAddr;

use policy::{PolicyVerdict, World};
use types::{Family, Protocol};

use crate::Flow;
use crate::build::{parsed, port};
use model::objects::PortMatch;

/// A world and the verdicts of some flows. A flow is accepted if both of its local ends accept it.
#[derive(Debug, Clone)]
pub struct Case {
    pub name: &'static str,
    pub world: World,
    pub expectations: Vec<(Flow, PolicyVerdict)>,
}

pub fn all() -> Vec<Case> {
    [
        network_policy::cases(),
        network_policy_pods::cases(),
        cluster::cases(),
        cluster_peers::cases(),
        podwire::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Expectations, one per line: `SOURCE DESTINATION FLOWS VERDICT`.
///
/// An end is a pod (`namespace/name`), a node (`n2`), `world` or an address. Flows are `tcp/80`, `icmp` or the number of a
/// protocol; several are separated by commas. Addresses are IPv4; `tcp/80@6` means IPv6.
fn case(name: &'static str, world: World, expected: &str) -> Case {
    let expectations = expected
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .flat_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let [source, destination, flows, verdict] = words[..] else { panic!("{name}: {line:?}") };
            let verdict = match verdict {
                "accept" => PolicyVerdict::Accept,
                "drop" => PolicyVerdict::Drop,
                other => panic!("{name}: {other:?} is not a verdict"),
            };
            let parse = |text| (parse_flow(&world, (source, destination), text), verdict);
            flows.split(',').map(parse).collect::<Vec<_>>()
        })
        .collect();
    Case { name, world, expectations }
}

fn parse_flow(world: &World, (source, destination): (&str, &str), text: &str) -> Flow {
    let (text, family) = text.strip_suffix("@6").map_or((text, Family::V4), |rest| (rest, Family::V6));
    let (protocol, port) = match (text, family) {
        ("icmp", Family::V4) => (1, None),
        ("icmp", Family::V6) => (58, None),
        (text, _) => text.parse().map_or_else(|_| transport(text), |number| (number, None)),
    };
    let address = |end| address_of(world, end, family);
    Flow { source: address(source), destination: address(destination), protocol, port }
}

fn transport(text: &str) -> (u8, Option<u16>) {
    let (protocol, port): (Protocol, PortMatch) = port(text);
    match port {
        PortMatch::Range(range) if range.first() == range.last() => (protocol.number(), Some(range.first())),
        PortMatch::Range(_) | PortMatch::All | PortMatch::Named(_) => panic!("{text:?} is not one port"),
    }
}

fn address_of(world: &World, end: &str, family: Family) -> IpAddr {
    if let Ok(address) = end.parse() {
        return address;
    }
    if end == "world" {
        return match family {
            Family::V4 => parsed("203.0.113.5"),
            Family::V6 => parsed("2001:db8::5"),
        };
    }
    let pod = world.pods.values().find(|pod| *pod.uid == *format!("uid-{end}"));
    let node = world.nodes.iter().find(|(name, _)| name.as_str() == end).map(|(_, node)| &node.addresses);
    let addresses = pod.and_then(|pod| pod.addresses.as_ref()).or(node);
    let found = addresses.and_then(|list| list.iter().find(|one| Family::of(**one) == family));
    *found.unwrap_or_else(|| panic!("{end:?} has no {family} address"))
}
