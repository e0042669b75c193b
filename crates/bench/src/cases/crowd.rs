//! Does an ADD take longer the more addresses are in use? The crowd is real claims in podwire's own state, made by its own
//! code; the links of thousands of pods are not made for it.

use anyhow::{Context as _, Result, bail};
use engine::state::{
    Addressing, Allocation, AllocationRequest, Attachment, Begin, NetworkState, NodeState, PodAddress,
    RecoveredLink, StateError, Wiring,
};
use ipam::{Pools, RangeSpec};
use ipnet::IpNet;
use types::{AttachMode, AttachmentKey, IfName};

use super::Stage;
use super::sequence::{self, LaneTimes, Times};
use crate::lane::Lane;
use crate::leftovers::{self, Before, Recorded};
use crate::networks::BenchNetwork;
use crate::site::Seat;

pub(crate) struct CrowdTimes {
    pub(crate) few: Times,
    pub(crate) many: Times,
}

pub(crate) fn run(stage: &Stage<'_>, left: &mut Vec<String>) -> Result<CrowdTimes> {
    let (site, scale) = (stage.site, stage.scale);
    // Two nodes that are alike, so that both have pods at the same time.
    let sides =
        [(&site.podwire, BenchNetwork::FEW, scale.few), (&site.routed, BenchNetwork::MANY, scale.many)];
    let mut lines = Vec::new();
    for (seat, network, count) in sides {
        fill(seat, network, count)?;
        lines.push(LaneTimes::new(Lane::plugin(stage.plugins.podwire(seat, AttachMode::Bridge, network)?)));
    }
    sequence::warm_up(&mut lines)?;
    let before = [Before::look(&site.podwire)?, Before::look(&site.routed)?];
    let mut times = sequence::run(lines, scale.pods).into_iter();
    for ((seat, network, count), before) in sides.into_iter().zip(&before) {
        left.extend(before.changed(seat));
        left.extend(leftovers::links(seat));
        let recorded = Recorded { attachments: count, addresses: count * network.subnets()?.len() };
        left.extend(leftovers::podwire_state(seat, network, recorded)?);
    }
    let mut next = || times.next().unwrap_or_default();
    Ok(CrowdTimes { few: next(), many: next() })
}

/// Puts so many attachments into the state of a network.
fn fill(seat: &Seat, network: BenchNetwork, count: usize) -> Result<()> {
    let pools = pools(&network.subnets()?)?;
    let claims = NodeState::open(&seat.dir.join("state"))?.network(&network.name()?, nobody)?;
    for number in 0..count {
        let key = AttachmentKey {
            network: network.name()?,
            container: format!("crowd-{number}").try_into()?,
            ifname: IfName::try_from("eth0")?,
        };
        claim(&claims, &key, &pools).with_context(|| format!("cannot claim addresses for {key}"))?;
    }
    Ok(())
}

/// A new network has no pods that outlived their records.
fn nobody() -> Result<Vec<RecoveredLink>, StateError> {
    Ok(vec![])
}

fn claim(claims: &NetworkState, key: &AttachmentKey, pools: &Pools) -> Result<()> {
    let bridge = IfName::try_from("none")?;
    let wanted = AllocationRequest { key, pools: Some(pools), requested: &[], clean: &|_, _| Ok(()) };
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
        Begin::Exists(_) => bail!("it is there already"),
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
