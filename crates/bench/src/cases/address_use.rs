//! Compares the time of an ADD with few and with many addresses in use. The addresses are real claims in Podwire's state,
//! created by its own code, but without the links of the pods.

use anyhow::{Context as _, Result, bail};
use engine::state::{
    Addressing, Allocation, AllocationRequest, Attachment, Begin, NetworkState, NodeState, PodAddress,
    RecoveredLink, StateError, Wiring,
};
use ipam::{Pools, RangeSpec};
use ipnet::IpNet;
use types::{AttachMode, AttachmentKey, IfName};

use super::CaseInput;
use super::sequence::{self, ContenderTimes, Times};
use crate::contender::Contender;
use crate::leftovers::{self, Before, Recorded};
use crate::networks::BenchNetwork;
use crate::site::BenchNode;

pub(crate) struct AddressUseTimes {
    pub(crate) few: Times,
    pub(crate) many: Times,
}

pub(crate) fn run(input: &CaseInput<'_>, left: &mut Vec<String>) -> Result<AddressUseTimes> {
    let (site, scale) = (input.site, input.scale);
    // Two identical nodes, so that both have pods at the same time.
    let nodes =
        [(&site.podwire, BenchNetwork::FEW, scale.few), (&site.routed, BenchNetwork::MANY, scale.many)];
    let mut contenders = Vec::new();
    for (bench_node, network, count) in nodes {
        fill(bench_node, network, count)?;
        contenders.push(ContenderTimes::new(Contender::plugin(input.plugins.podwire(
            bench_node,
            AttachMode::Bridge,
            network,
        )?)));
    }
    sequence::warm_up(&mut contenders)?;
    let before = [Before::take(&site.podwire)?, Before::take(&site.routed)?];
    let mut times = sequence::run(contenders, scale.pods).into_iter();
    for ((bench_node, network, count), before) in nodes.into_iter().zip(&before) {
        left.extend(before.changed(bench_node));
        left.extend(leftovers::links(bench_node));
        let recorded = Recorded { attachments: count, addresses: count * network.subnets()?.len() };
        left.extend(leftovers::podwire_state(bench_node, network, recorded)?);
    }
    let mut next = || times.next().unwrap_or_default();
    Ok(AddressUseTimes { few: next(), many: next() })
}

/// Adds this many attachments to the state of a network.
fn fill(bench_node: &BenchNode, network: BenchNetwork, count: usize) -> Result<()> {
    let pools = pools(&network.subnets()?)?;
    let claims =
        NodeState::open(&bench_node.dir.join("state"))?.network(&network.name()?, no_recovered_links)?;
    for number in 0..count {
        let key = AttachmentKey {
            network: network.name()?,
            container: format!("claim-{number}").try_into()?,
            ifname: IfName::try_from("eth0")?,
        };
        claim(&claims, &key, &pools).with_context(|| format!("cannot claim addresses for {key}"))?;
    }
    Ok(())
}

/// A new network has no orphaned pods.
fn no_recovered_links() -> Result<Vec<RecoveredLink>, StateError> {
    Ok(vec![])
}

fn claim(claims: &NetworkState, key: &AttachmentKey, pools: &Pools) -> Result<()> {
    let bridge = IfName::try_from("none")?;
    let wanted = AllocationRequest {
        key,
        pools: Some(pools),
        requested: &[],
        is_avoided: &|_| false,
        remove_conntrack: &|_, _| Ok(()),
    };
    let make = |given: &[Allocation]| Attachment {
        schema: Addressing::Assigned.schema(),
        key: key.clone(),
        netns: "/run/netns/none".to_owned(),
        netns_cookie: None,
        mode: AttachMode::Bridge,
        bridge,
        host_link: key.host_link(0),
        host_mac: key.host_mac(),
        pod_mac: key.pod_mac(),
        mtu: 1500,
        addresses: given.iter().map(pod_address).collect(),
        delegated: false,
        ipam_plugin: None,
        addressing: Addressing::Assigned,
        masquerade_outside: None,
        spoof_check: true,
        ports: vec![],
        bandwidth: None,
        pod: None,
        placement: None,
        request: None,
        wiring: Wiring::default(),
        created: 0,
    };
    match claims.begin(&wanted, make)? {
        Begin::Started(mut held) => Ok(held.commit()?),
        Begin::Exists(_) => bail!("the record already exists"),
    }
}

fn pod_address(given: &Allocation) -> PodAddress {
    let address = IpNet::new(given.address, given.prefix_len).unwrap_or_else(|_| given.address.into());
    PodAddress { address, gateway: Some(given.gateway) }
}

fn pools(subnets: &[IpNet]) -> Result<Pools> {
    let set = |subnet: &IpNet| {
        vec![RangeSpec { subnet: *subnet, start: None, end: None, gateway: None, exclude: vec![] }]
    };
    Ok(Pools::try_from(subnets.iter().map(set).collect::<Vec<_>>())?)
}
