use std::fmt;
use std::net::IpAddr;

use types::Family;

use super::{EndError, FlowQuery, FlowQueryError, MAX_FLOWS, QueryEnd};
use crate::engine::PolicyEngine;
use crate::explain::FlowEnd;
use crate::world::{PodEntry, PodUid};

/// One end of one or more flows.
#[derive(Debug, Clone)]
pub(super) enum EndSet {
    Pods(Vec<PodUid>),
    Addresses(Vec<IpAddr>),
    /// Outside of the cluster, in the family of the other end.
    Outside,
}

/// The first pairs, and the number of all.
pub(super) struct EndPairs {
    pub(super) listed: Vec<(FlowEnd, FlowEnd)>,
    pub(super) total: usize,
}

impl EndSet {
    pub(super) fn parse(end: &QueryEnd, engine: &PolicyEngine) -> Result<Self, EndError> {
        let text = match end {
            QueryEnd::Pods(pods) => return Ok(Self::Pods(pods.clone())),
            QueryEnd::Named(text) => text.as_str(),
        };
        if text == "world" {
            return Ok(Self::Outside);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Addresses(vec![address]));
        }
        if let Some(name) = text.strip_prefix("node:") {
            return Self::node(name, engine);
        }
        if let Some(name) = text.strip_prefix("group:") {
            return Self::group(name, engine);
        }
        let pods = engine.pods_named(text);
        if pods.is_empty() {
            let names: Vec<String> = engine.world.pods.values().map(|pod| pod.name.to_string()).collect();
            let hint = types::closest(text, names.iter().map(String::as_str));
            let hint = hint.map(|name| format!("; did you mean {name}?")).unwrap_or_default();
            return Err(EndError::Unknown { hint });
        }
        Ok(Self::Pods(pods))
    }

    fn node(name: &str, engine: &PolicyEngine) -> Result<Self, EndError> {
        let nodes = &engine.world.nodes;
        let Some((_, node)) = nodes.iter().find(|(node, _)| node.as_str() == name) else {
            let known: Vec<&str> = nodes.keys().map(types::NodeName::as_str).collect();
            return Err(EndError::NoNode { name: name.to_owned(), known: known_names(&known) });
        };
        if node.addresses.is_empty() {
            return Err(EndError::NoAddress(name.to_owned()));
        }
        Ok(Self::Addresses(node.addresses.clone()))
    }

    fn group(name: &str, engine: &PolicyEngine) -> Result<Self, EndError> {
        let (tenant, group) = name.split_once('/').unwrap_or((types::DEFAULT_TENANT, name));
        let world = &engine.world;
        let is_named = |(owner, name): &&(types::TenantName, types::GroupName)| {
            owner.as_str() == tenant && name.as_str() == group
        };
        if !world.groups.keys().any(|key| is_named(&key)) {
            let known: Vec<String> =
                world.groups.keys().map(|(tenant, name)| format!("{tenant}/{name}")).collect();
            let name = format!("{tenant}/{group}");
            return Err(EndError::NoGroup { name, known: known_names(&known) });
        }
        let is_member = |pod: &&PodEntry| {
            let placement = &pod.identity.placement;
            placement.tenant.as_str() == tenant
                && placement.group.as_ref().is_some_and(|name| name.as_str() == group)
        };
        let pods: Vec<PodUid> =
            world.pods.values().filter(is_member).map(|pod| PodUid::clone(&pod.uid)).collect();
        if pods.is_empty() {
            return Err(EndError::EmptyGroup(format!("{tenant}/{group}")));
        }
        Ok(Self::Pods(pods))
    }

    fn families(&self, engine: &PolicyEngine) -> Vec<Family> {
        match self {
            Self::Outside => vec![Family::V4, Family::V6],
            Self::Addresses(addresses) => addresses.iter().copied().map(Family::of).collect(),
            Self::Pods(pods) => {
                let addresses =
                    pods.iter().filter_map(|uid| engine.world.pods.get(uid)?.addresses.as_deref());
                addresses.flatten().copied().map(Family::of).collect()
            }
        }
    }

    fn ends(&self, family: Option<Family>, engine: &PolicyEngine) -> Vec<FlowEnd> {
        match self {
            Self::Pods(pods) => pods.iter().map(|uid| FlowEnd::Pod(PodUid::clone(uid))).collect(),
            Self::Addresses(addresses) => {
                let is_wanted = |one: &&IpAddr| family.is_none_or(|family| Family::of(**one) == family);
                addresses.iter().filter(is_wanted).map(|one| FlowEnd::Address(*one)).collect()
            }
            Self::Outside => vec![FlowEnd::Address(engine.outside(family.unwrap_or(Family::V4)))],
        }
    }
}

impl PolicyEngine {
    /// The running pods of this name, with or without a namespace. `default` is the namespace of a name without one.
    fn pods_named(&self, text: &str) -> Vec<PodUid> {
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        let is_named = |pod: &&PodEntry| match pod.name.namespace.as_deref() {
            Some(of_pod) => of_pod == namespace && pod.name.name == name,
            None => pod.name.name == text,
        };
        self.world.pods.values().filter(is_named).map(|pod| PodUid::clone(&pod.uid)).collect()
    }

    /// An address of no network, no node and no CIDR of a policy, if there is one. Blocks such as 0.0.0.0/0 contain all addresses.
    fn outside(&self, family: Family) -> IpAddr {
        let candidates: [&str; 3] = match family {
            Family::V4 => ["192.0.2.1", "198.51.100.1", "203.0.113.1"],
            Family::V6 => ["2001:db8::1", "2001:db8:1::1", "2001:db8:2::1"],
        };
        let parsed: Vec<IpAddr> = candidates.iter().filter_map(|text| text.parse().ok()).collect();
        let is_outside = |address: &&IpAddr| {
            let mut subnets = self.world.networks.values().flat_map(|network| &network.subnets);
            let block = self.smallest_block(**address);
            subnets.all(|subnet| !subnet.contains(*address))
                && block.is_none_or(|block| block.prefix_len() == 0)
        };
        let first = parsed.first().copied().unwrap_or(IpAddr::from([192, 0, 2, 1]));
        parsed.iter().find(is_outside).copied().unwrap_or(first)
    }
}

/// All pairs of ends that can communicate, in one common family.
pub(super) fn pairs(
    (from, to): (&EndSet, &EndSet),
    engine: &PolicyEngine,
    query: &FlowQuery,
) -> Result<EndPairs, FlowQueryError> {
    let names = || (query.from.to_string(), query.to.to_string());
    let (of_from, of_to) = (from.families(engine), to.families(engine));
    let common = of_from.iter().find(|family| of_to.contains(family)).copied();
    if common.is_none() && !of_from.is_empty() && !of_to.is_empty() {
        let (from, to) = names();
        return Err(FlowQueryError::NoCommonFamily { from, to });
    }
    let (from, to) = (from.ends(common, engine), to.ends(common, engine));
    // A single pod can be asked about a flow to itself, the pods of a group are asked about each other.
    let is_single = from.len() == 1 && to.len() == 1;
    let is_pair = |from: &FlowEnd, to: &FlowEnd| is_single || from != to;
    let all = from.iter().flat_map(|from| to.iter().map(move |to| (from, to)));
    let chosen = all.filter(|(from, to)| is_pair(from, to)).take(MAX_FLOWS);
    let listed: Vec<(FlowEnd, FlowEnd)> = chosen.map(|(from, to)| (from.clone(), to.clone())).collect();
    if listed.is_empty() {
        let (from, to) = names();
        return Err(FlowQueryError::NoPair { from, to });
    }
    let members: std::collections::HashSet<&FlowEnd> = to.iter().collect();
    let same = if is_single { 0 } else { from.iter().filter(|end| members.contains(end)).count() };
    Ok(EndPairs { listed, total: (from.len() * to.len()).saturating_sub(same) })
}

fn known_names(names: &[impl fmt::Display]) -> String {
    if names.is_empty() {
        "none is known".to_owned()
    } else {
        format!("known are {}", names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    }
}
