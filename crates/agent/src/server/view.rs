//! Node-local state for the API and for metrics. These functions read files, so they run on blocking threads.

use std::path::Path;

use api::{AttachmentsView, BlockUse, Condition, Counts, NodeMode, Status, Tombstones};
use engine::state::{ListedRecord, NodeState, RecordPhase, StateError};
use ipam::{Range, RangeSet, RangeSpec};
use ipnet::IpNet;
use types::NetworkName;

use super::ApiService;
use crate::allocation::records_unreadable;
use crate::attachments::attachment_view;
use crate::conditions::Source;
use crate::membership::{Contact, MembershipHandle};
use crate::metrics::{MetricsSnapshot, resident_bytes};

/// All attachments, or those of one container, with phase and record. An unreadable record is shown by its name.
pub(super) fn attachments(run_dir: &Path, container: Option<&str>) -> Result<AttachmentsView, String> {
    let (mut attachments, tombstones) = (Vec::new(), Tombstones::new(run_dir));
    for (network, all) in records(run_dir, container).map_err(|error| error.with_cause())? {
        for listed in &all {
            let view = attachment_view(&network, listed, &tombstones).map_err(|error| error.to_string())?;
            attachments.push(view);
        }
    }
    Ok(AttachmentsView { attachments })
}

/// Records by network name.
fn records(run_dir: &Path, container: Option<&str>) -> Result<Vec<(String, Vec<ListedRecord>)>, StateError> {
    let mut records = Vec::new();
    let networks = NodeState::open_existing(run_dir)?.map(|state| state.networks()).transpose()?;
    for network in networks.unwrap_or_default() {
        let mut all = network.list()?;
        all.retain(|listed| container.is_none_or(|container| is_of_container(listed, container)));
        all.sort_by(|a, b| a.stem.cmp(&b.stem));
        records.push((network.name().to_string(), all));
    }
    Ok(records)
}

fn is_of_container(listed: &ListedRecord, container: &str) -> bool {
    match &listed.attachment {
        Some(attachment) => attachment.key.container.as_str() == container,
        None => listed.stem.split_once('@').is_some_and(|(id, _)| id == container),
    }
}

/// The number of attachments, and of used addresses in each block.
struct AddressUsage {
    /// None if the records cannot be read.
    attachments: Option<Counts>,
    blocks: Vec<BlockUse>,
}

fn usage(service: &ApiService) -> (AddressUsage, Result<(), StateError>) {
    let known = known_usage(service);
    let cidrs = blocks_of_all_networks(service);
    let unknown = |block| BlockUse { block, used: None, free: None };
    match known {
        Ok(usage) => (usage, Ok(())),
        Err(error) => {
            let blocks = cidrs.into_iter().map(unknown).collect();
            (AddressUsage { attachments: None, blocks }, Err(error))
        }
    }
}

fn known_usage(service: &ApiService) -> Result<AddressUsage, StateError> {
    let description = &service.description;
    let state = NodeState::open_existing(&description.run_dir)?;
    let mut counts = Counts::default();
    for network in state.iter().map(NodeState::networks).collect::<Result<Vec<_>, _>>()?.concat() {
        for listed in network.list()? {
            let number = match (&listed.attachment, listed.phase) {
                (None, _) => &mut counts.unreadable,
                (Some(_), RecordPhase::Ready) => &mut counts.ready,
                (Some(_), RecordPhase::Pending) => &mut counts.pending,
            };
            *number += 1;
        }
    }
    let name = NetworkName::try_from(description.network.name.as_str()).ok();
    let network = state.zip(name).and_then(|(state, name)| state.existing_network(&name));
    let blocks = blocks_of_all_networks(service).into_iter().filter_map(|block| {
        let set = range_set_of(block)?;
        let used = network.as_ref().map_or(Ok(0), |network| network.in_use_of(&set));
        let free = |used| set.capacity().saturating_sub(used);
        Some(used.map(|used| BlockUse { block, used: Some(used), free: Some(free(used)) }))
    });
    Ok(AddressUsage { attachments: Some(counts), blocks: blocks.collect::<Result<_, StateError>>()? })
}

fn blocks_of_all_networks(service: &ApiService) -> Vec<IpNet> {
    let Ok(allocation) = service.allocations.get() else { return Vec::new() };
    allocation.networks().flat_map(|(_, network)| network.blocks()).copied().collect()
}

fn range_set_of(cidr: IpNet) -> Option<RangeSet> {
    let spec = RangeSpec { subnet: cidr, start: None, end: None, gateway: None, exclude: Vec::new() };
    RangeSet::new(vec![Range::new(spec).ok()?]).ok()
}

/// Current address usage and conditions. Only rounds report conditions, so a round is requested if these differ.
fn current_state(service: &ApiService) -> (AddressUsage, Vec<Condition>) {
    let (usage, read) = usage(service);
    let run_dir = &service.description.run_dir;
    let mut fresh = match &read {
        Ok(()) => service.allocations.address_findings(run_dir, service.work.network()),
        Err(error) => vec![(Source::Records, vec![records_unreadable(run_dir, error)])],
    };
    fresh.push((Source::RunDir, engine::run_dir_findings(run_dir)));
    let (conditions, differs) = service.agent_status.conditions_with(fresh);
    if differs {
        service.reconciler.request_round();
    }
    (usage, conditions)
}

pub(super) fn status(service: &ApiService) -> Status {
    let (description, agent_status) = (&service.description, &service.agent_status);
    let (AddressUsage { attachments, mut blocks }, conditions) = current_state(service);
    let default = service.allocations.default_network();
    blocks.retain(|usage| default.as_ref().is_ok_and(|network| network.blocks().contains(&usage.block)));
    Status {
        mode: NodeMode::Agent,
        node: description.node.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        started_at: agent_status.started(),
        ready: !conditions.iter().any(Condition::prevents_ready),
        store: description.store.clone(),
        run_dir: description.run_dir.clone(),
        socket: description.socket.clone(),
        rss_bytes: resident_bytes(),
        network: api::NetworkStatus {
            blocks,
            mtu: service
                .allocations
                .default_network()
                .ok()
                .and_then(|network| network.mtu())
                .or(description.network.mtu),
            ..description.network.clone()
        },
        attachments,
        reconcile: agent_status.reconcile(),
        installed: agent_status.installed(),
        inactive_ports: agent_status.inactive_ports(),
        conditions,
    }
}

/// This node's blocks.
pub(super) fn block_uses(service: &ApiService) -> Vec<BlockUse> {
    usage(service).0.blocks
}

/// The current values for a scrape.
pub(super) fn metrics_snapshot(service: &ApiService) -> MetricsSnapshot {
    let (AddressUsage { attachments, blocks }, conditions) = current_state(service);
    let contact = service.cluster.as_ref().map(MembershipHandle::contact);
    MetricsSnapshot {
        conditions,
        waiting: service.queue.waiting(),
        blocks,
        attachments,
        started: service.agent_status.started().0,
        is_store_reachable: contact.is_some_and(Contact::is_reachable),
        watch_age: contact.map_or_else(|| service.agent_status.uptime(), Contact::watch_age),
    }
}
