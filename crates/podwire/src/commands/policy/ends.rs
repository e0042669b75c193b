//! Ends of flows as the user writes them.

use std::fmt;
use std::net::IpAddr;

use anyhow::{Result, bail};
use policy::{FlowEnd, PodUid};
use types::Family;

use super::world::PolicyWorld;

/// What FROM and TO can be, for help and messages.
pub(super) const FORMS: &str =
    "a pod (NAMESPACE/NAME), an address, 'group:TENANT/NAME', 'node:NAME' or 'world'";

/// One end of one or more flows.
#[derive(Debug, Clone)]
pub(super) enum EndSet {
    Pods(Vec<PodUid>),
    Addresses(Vec<IpAddr>),
    /// Outside of the cluster, in the family of the other end.
    Outside,
}

impl EndSet {
    pub(super) fn parse(text: &str, world: &PolicyWorld) -> Result<Self> {
        if text == "world" {
            return Ok(Self::Outside);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Addresses(vec![address]));
        }
        if let Some(name) = text.strip_prefix("node:") {
            return Self::node(name, world);
        }
        if let Some(name) = text.strip_prefix("group:") {
            return Self::group(name, world);
        }
        let Some(pod) = world.pod(text) else {
            let names: Vec<String> =
                world.engine.world().pods.values().map(|pod| pod.name.to_string()).collect();
            let hint = types::closest(text, names.iter().map(String::as_str));
            let hint = hint.map(|name| format!("; did you mean {name}?")).unwrap_or_default();
            bail!("{text:?} is not {FORMS}{hint}");
        };
        Ok(Self::Pods(vec![PodUid::clone(&pod.uid)]))
    }

    fn node(name: &str, world: &PolicyWorld) -> Result<Self> {
        let nodes = &world.engine.world().nodes;
        let Some((_, node)) = nodes.iter().find(|(node, _)| node.as_str() == name) else {
            let known: Vec<&str> = nodes.keys().map(types::NodeName::as_str).collect();
            bail!("node {name:?} is not described: {}", existing(&known));
        };
        if node.addresses.is_empty() {
            bail!("node {name} has no address: add one to status.addresses");
        }
        Ok(Self::Addresses(node.addresses.clone()))
    }

    fn group(name: &str, world: &PolicyWorld) -> Result<Self> {
        let (tenant, group) = name.split_once('/').unwrap_or((types::DEFAULT_TENANT, name));
        let world = world.engine.world();
        let is_named = |(owner, name): &&(types::TenantName, types::GroupName)| {
            owner.as_str() == tenant && name.as_str() == group
        };
        if !world.groups.keys().any(|key| is_named(&key)) {
            let known: Vec<String> =
                world.groups.keys().map(|(tenant, name)| format!("{tenant}/{name}")).collect();
            bail!("group {tenant}/{group} does not exist: {}", existing(&known));
        }
        let is_member = |pod: &&policy::PodEntry| {
            let placement = &pod.identity.placement;
            placement.tenant.as_str() == tenant
                && placement.group.as_ref().is_some_and(|name| name.as_str() == group)
        };
        let pods: Vec<PodUid> =
            world.pods.values().filter(is_member).map(|pod| PodUid::clone(&pod.uid)).collect();
        if pods.is_empty() {
            bail!("group {tenant}/{group} has no pods");
        }
        Ok(Self::Pods(pods))
    }

    fn families(&self, world: &PolicyWorld) -> Vec<Family> {
        match self {
            Self::Outside => vec![Family::V4, Family::V6],
            Self::Addresses(addresses) => addresses.iter().copied().map(Family::of).collect(),
            Self::Pods(pods) => {
                let world = world.engine.world();
                let addresses = pods.iter().filter_map(|uid| world.pods.get(uid)?.addresses.clone());
                addresses.flatten().map(Family::of).collect()
            }
        }
    }

    fn ends(&self, family: Option<Family>, world: &PolicyWorld) -> Vec<FlowEnd> {
        match self {
            Self::Pods(pods) => pods.iter().map(|uid| FlowEnd::Pod(PodUid::clone(uid))).collect(),
            Self::Addresses(addresses) => {
                let is_wanted = |one: &&IpAddr| family.is_none_or(|family| Family::of(**one) == family);
                addresses.iter().filter(is_wanted).map(|one| FlowEnd::Address(*one)).collect()
            }
            Self::Outside => vec![FlowEnd::Address(world.outside(family.unwrap_or(Family::V4)))],
        }
    }
}

/// All pairs of ends that can communicate, in one common family.
pub(super) fn pairs(from: &EndSet, to: &EndSet, world: &PolicyWorld) -> Result<Vec<(FlowEnd, FlowEnd)>> {
    let (of_from, of_to) = (from.families(world), to.families(world));
    let common = of_from.iter().find(|family| of_to.contains(family)).copied();
    if common.is_none() && !of_from.is_empty() && !of_to.is_empty() {
        bail!("the ends have no common address family");
    }
    let (from, to) = (from.ends(common, world), to.ends(common, world));
    // A single pod can be asked about a flow to itself, the pods of a group are asked about each other.
    let is_single = from.len() == 1 && to.len() == 1;
    let all = from.iter().flat_map(|from| to.iter().map(move |to| (from.clone(), to.clone())));
    let pairs: Vec<_> = all.filter(|(from, to)| is_single || from != to).collect();
    if pairs.is_empty() {
        bail!("there is no flow between two different pods");
    }
    Ok(pairs)
}

fn existing(names: &[impl fmt::Display]) -> String {
    if names.is_empty() {
        "none is described".to_owned()
    } else {
        format!("described are {}", names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    }
}
