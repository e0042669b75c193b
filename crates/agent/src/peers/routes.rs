//! Routes, neighbours and tunnel entries of all peers in the kernel, computed from the records of nodes.
//!
//! ```text
//! updates from the store ───┐
//! events from the kernel ───┼─► Mesh (desired) ─► what changed ─► one batch
//! timer ────────────────────┘                └──► compared with the kernel: after lost events, and on the timer
//! ```
//!
//! `peer_table`: the firewall's table of peers. `publish`: this node's position in the underlay (links, addresses, MTU). `tunnels`: its devices. `checksum_probes`: tests of
//! checksum offload. `report_state`: conditions, metrics and records for the disk.
//!
//! Objects in the kernel stay until the store has listed all nodes: an agent that starts while the store is unreachable removes nothing. If the
//! objects were made for another network configuration, the agent does not change them either. The store refuses a node with a wrong
//! configuration (`NetworkMismatch`), and its running pods keep their paths.

mod checksum_probes;
mod peer_table;
mod publish;
mod report_state;
mod tunnels;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use model::{BlockLayout, LocalNode, NodeRecord, PeerChanges, Repaired, Tunnels};
use netlink::{PeerEvent, PeerMonitor, Route};
use nft::RulesetMonitor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::{debug, error, info};
use types::{Finding, IfName};

use super::inputs::{PeerQuery, PeerQueue, PeerReports, RecordUpdates};
use super::kernel::{PeerKernel, RefusedChanges};
use super::known::KnownPeers;
use crate::agent_status::{AgentStatus, WatchedThread};
use crate::allocation::{NodeAllocations, TunnelSize};
use crate::membership::AskError;
use crate::metrics::Metrics;
use crate::monitor::{MonitorSlot, Read};
use crate::thread::{AgentThread, StopFlag};
use crate::waker::Slot;
pub(crate) use checksum_probes::ChecksumProbes;
use config::Config;
pub(crate) use peer_table::PeerTableState;
use report_state::AppliedPart;
pub(crate) use report_state::PeerReportState;

/// All objects are compared this long after an event, so that related events are handled together.
const PAUSE: Duration = Duration::from_millis(20);
/// No events are read for this time after some were read. Every ADD and DEL causes a dozen, and a wake-up for each costs more than
/// reading them.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// The first pause before a retry.
const RETRY: Duration = Duration::from_secs(1);
/// The shortest time between two writes of the peers to disk.
const SAVE: Duration = Duration::from_millis(500);
/// The same per peer, because the records of thousands of peers are many megabytes.
const SAVE_EACH: Duration = Duration::from_millis(2);
/// After this time the thread counts as stuck. A change or comparison takes milliseconds, and up to a second with thousands of peers.
pub(crate) const LONGEST_CHANGE: Duration = Duration::from_secs(5);

/// The inputs and outputs of the peers thread.
pub(crate) struct PeerRoutesParts {
    pub(crate) config: Arc<Config>,
    /// A node that no other node can join has no peers.
    pub(crate) is_alone: bool,
    /// This node's blocks and gateways.
    pub(crate) allocations: Arc<NodeAllocations>,
    pub(crate) agent_status: Arc<AgentStatus>,
    pub(crate) metrics: Arc<Metrics>,
    /// This node's tunnels, for the reconciler.
    pub(crate) tunnels: Arc<Slot<Vec<TunnelSize>>>,
    pub(crate) queue: PeerQueue,
    pub(crate) reports: PeerReports,
    /// The part of this node's record that never changes.
    pub(crate) record: NodeRecord,
    /// Initially the peers that were written to disk.
    pub(crate) known: KnownPeers,
}

/// Starts the thread.
pub(crate) fn start(parts: PeerRoutesParts) -> Result<AgentThread, StartError> {
    let waker = parts.queue.waker.clone();
    let routes = Routes::new(parts)?;
    Ok(AgentThread::start("podwire-peers", waker, move |stop| routes.run(stop))?)
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    #[error(transparent)]
    Nft(#[from] nft::Error),
    #[error("cannot start the thread for routes to peers: {0}")]
    Thread(#[from] std::io::Error),
}

pub(crate) struct Routes {
    config: Arc<Config>,
    is_alone: bool,
    allocations: Arc<NodeAllocations>,
    /// Version of the allocation that was used last.
    allocation_version: u64,
    agent_status: Arc<AgentStatus>,
    metrics: Arc<Metrics>,
    tunnel_sizes: Arc<Slot<Vec<TunnelSize>>>,
    queue: PeerQueue,
    reports: PeerReports,
    record: NodeRecord,
    /// The blocks that this node owns.
    blocks: Vec<IpNet>,
    /// How all networks are divided into blocks.
    block_layouts: Vec<BlockLayout>,
    kernel: PeerKernel,
    known: KnownPeers,
    netlink: MonitorSlot<PeerMonitor, netlink::Error>,
    nft: MonitorSlot<RulesetMonitor, nft::Error>,
    /// No events are read before this time.
    quiet_until: Instant,
}

impl Routes {
    fn new(parts: PeerRoutesParts) -> Result<Self, StartError> {
        let PeerRoutesParts {
            config,
            is_alone,
            allocations,
            agent_status,
            metrics,
            tunnels,
            queue,
            reports,
            record,
            known,
        } = parts;
        Ok(Self {
            config,
            is_alone,
            allocation_version: allocations.version(),
            blocks: allocations.blocks(),
            block_layouts: known.mesh.local_node().block_layouts.clone(),
            allocations,
            agent_status,
            metrics,
            tunnel_sizes: tunnels,
            queue,
            reports,
            record,
            kernel: PeerKernel::open()?,
            known,
            netlink: MonitorSlot::open("netlink-routes", PeerMonitor::open)?,
            nft: MonitorSlot::open("nftables-peers", RulesetMonitor::open)?,
            quiet_until: Instant::now(),
        })
    }

    fn run(mut self, stop: &StopFlag) {
        let mut has_events = false;
        loop {
            let updates = self.queue.take();
            if stop.is_set() {
                return;
            }
            self.agent_status.busy_since(WatchedThread::Peers, Instant::now());
            self.take_input(updates);
            self.read_events(has_events);
            self.run_timers();
            self.agent_status.idle(WatchedThread::Peers);
            has_events = self.wait().unwrap_or_else(|errno| {
                error!(error = %errno, "the peers thread cannot wait for events");
                // The timer still compares everything.
                std::thread::sleep(RETRY);
                true
            });
        }
    }

    /// Handles the input of other threads.
    fn take_input(&mut self, updates: RecordUpdates) {
        let version = self.allocations.version();
        if version != self.allocation_version {
            self.allocation_version = version;
            self.blocks = self.allocations.blocks();
            self.compare_within(PAUSE);
        }
        if !updates.is_empty() {
            self.apply_updates(updates);
        }
        if let Some(query) = self.queue.next_query() {
            self.answer(query);
        }
        if let Some(verdict) = self.known.checksum_probes.verdict() {
            self.finish_probe(verdict);
        }
    }

    fn run_timers(&mut self) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= Instant::now());
        if is_due(Some(self.known.compare_at)) {
            self.compare();
        }
        if is_due(self.known.save_at) {
            self.report_records();
        }
        if is_due(self.known.report_state.at) {
            self.update_metrics();
            self.report();
        }
    }

    /// Sleeps until there is input, an event or a timer. Returns whether there are events.
    fn wait(&self) -> Result<bool, Errno> {
        let now = Instant::now();
        let is_quiet = now < self.quiet_until;
        let timers = [
            Some(self.known.compare_at),
            self.known.save_at,
            self.known.report_state.at,
            self.netlink.retry_at(),
            self.nft.retry_at(),
            is_quiet.then_some(self.quiet_until),
        ];
        let next = timers.into_iter().flatten().min().unwrap_or(now);
        let timeout = Timespec::try_from(next.saturating_duration_since(now)).map_err(|_| Errno::INVAL)?;
        let mut fds = vec![PollFd::new(&self.queue.waker, PollFlags::IN)];
        let monitors = self.netlink.fd().into_iter().chain(self.nft.fd()).filter(|_| !is_quiet);
        fds.extend(monitors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => Ok(fds.iter().skip(1).any(|fd| !fd.revents().is_empty())),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Reads the kernel's events. A monitor that failed is reopened.
    fn read_events(&mut self, has_events: bool) {
        let now = Instant::now();
        if now < self.quiet_until {
            return;
        }
        if has_events {
            self.quiet_until = now + DEBOUNCE;
        }
        let before: Vec<Finding> = self.monitor_findings().collect();
        match self.netlink.read(now, PeerMonitor::read) {
            Read::Events(events) => self.handle_events(&events),
            // Events were lost.
            Read::Reopened => self.compare_within(PAUSE),
            // Without events, drift is found by comparing.
            Read::Failed => self.compare_within(RETRY),
        }
        match self.nft.read(now, RulesetMonitor::read) {
            Read::Events(change) if !change.peers => {}
            Read::Events(_) | Read::Reopened => self.peer_table_changed(),
            Read::Failed => {}
        }
        if self.monitor_findings().ne(before) {
            self.report_soon();
        }
    }

    pub(super) fn monitor_findings(&self) -> impl Iterator<Item = Finding> {
        self.netlink.finding().into_iter().chain(self.nft.finding())
    }

    /// Takes all updates of the store and applies the difference to the kernel.
    fn apply_updates(&mut self, updates: RecordUpdates) {
        let RecordUpdates { store_listing, nodes, claims, block_layouts } = updates;
        let is_list = store_listing.is_some();
        if let Some(block_layouts) = block_layouts.filter(|layouts| *layouts != self.block_layouts) {
            self.block_layouts = block_layouts;
            self.known.mesh.set_local_node(LocalNode {
                block_layouts: self.block_layouts.clone(),
                ..self.known.mesh.local_node().clone()
            });
            // The table of peers has a set for each length of blocks.
            self.known.peer_table.make_due();
            self.compare_within(PAUSE);
        }
        if let Some(store_listing) = store_listing {
            self.known.set_all(store_listing);
        }
        for (name, node) in nodes {
            match node {
                Some(node) => self.known.set_peer(node),
                None => {
                    self.known.awaited.remove(&name);
                    self.known.remove_peer(&name);
                }
            }
        }
        for (block, owner) in claims {
            self.known.set_claim(block, owner);
        }
        self.known.save_at.get_or_insert_with(|| {
            // Soon, so that a power failure loses little. The interval grows with the number of peers.
            let count = u32::try_from(self.known.mesh.peers().count()).unwrap_or(u32::MAX);
            Instant::now() + SAVE.max(SAVE_EACH.saturating_mul(count))
        });
        if is_list {
            // Changes before the listing may have been missed, so the whole table is compared.
            self.known.peer_table.make_due();
            self.compare();
        } else {
            self.change();
        }
    }

    /// Applies the difference to the previous desired state.
    fn change(&mut self) {
        // Existing tunnels are checked when everything is compared.
        if self.lacks_tunnel() || self.lacks_peer_table() {
            self.reconcile_tunnels();
        }
        let changes = self.known.mesh.take_changes();
        debug!("{changes}");
        let sources = self.known.mesh.take_source_changes();
        self.add_sources(&sources.add);
        let refused = self.apply(&changes);
        self.known.report_state.outstanding.extend(&refused.changes);
        self.record_refusals(refused.reasons, AppliedPart::Changes);
        self.remove_sources(&sources.remove);
        self.probe_tunnels();
    }

    /// Returns the changes that were not applied.
    fn apply(&mut self, changes: &PeerChanges) -> RefusedChanges {
        self.report_soon();
        // A node that is alone has no peers. Existing routes belong to another network.
        if changes.is_empty() || self.is_alone {
            return RefusedChanges::default();
        }
        self.kernel.apply(changes).unwrap_or_else(|error| {
            self.record_failure(format!("routes to other nodes cannot be changed: {error}"));
            RefusedChanges { changes: changes.clone(), reasons: BTreeMap::new() }
        })
    }

    /// Compares everything: this node's position, its tunnels, and the managed objects in the kernel.
    fn compare(&mut self) {
        self.known.compare_at = Instant::now() + self.config.reconcile;
        self.known.report_state.failure = None;
        if let Err(error) = self.compare_all() {
            self.record_failure(format!("routes to other nodes cannot be compared: {error}"));
        }
        if self.reports.addresses.borrow().is_some() {
            self.publish_position();
        }
    }

    fn compare_all(&mut self) -> Result<(), netlink::Error> {
        self.known.remove_expired();
        self.find_position()?;
        if self.is_alone {
            self.report_soon();
            return Ok(());
        }
        if self.is_mismatched()? {
            self.report_soon();
            return Ok(());
        }
        self.reconcile_tunnels();
        let (mesh, tunnels) = (&mut self.known.mesh, &self.known.tunnels);
        let (observed, unexpected) = self.kernel.observed(&indexes(tunnels), &mesh.local_node().subnets())?;
        let mut due = mesh.take_changes();
        due.extend(&self.known.report_state.outstanding);
        let mut changes = mesh.compare(&observed);
        if !self.known.is_complete {
            // The objects may belong to nodes that the store has not listed yet.
            changes.clear_removals();
        }
        if !changes.is_empty() {
            debug!("{changes}");
        }
        self.remove_unexpected(&unexpected);
        let refused = self.apply(&changes);
        // Changes that follow from the records are no repairs, even if they were refused before.
        let drift = changes.beyond(&due);
        let mut repairs = drift.beyond(&refused.changes);
        self.known.report_state.outstanding = refused.changes.beyond(&drift);
        self.record_refusals(refused.reasons, AppliedPart::All);
        self.probe_tunnels();
        if !self.known.has_removed_leftovers {
            repairs.clear_removals();
        }
        for Repaired { kind, count, sentences } in repairs.repairs() {
            self.record_repairs(kind, count, &sentences);
        }
        self.known.has_removed_leftovers |= self.known.is_complete;
        if !self.has_refusals() && self.known.tunnel_findings.is_empty() {
            self.reset_retry_pause();
        }
        Ok(())
    }

    /// Removes routes with unexpected attributes, once the store has listed all nodes. A failure delays no other repair.
    fn remove_unexpected(&mut self, routes: &[Route]) {
        if !self.known.is_complete || routes.is_empty() {
            return;
        }
        if let Err(error) = self.kernel.remove(routes) {
            return self
                .record_failure(format!("a route with unexpected attributes cannot be removed: {error}"));
        }
        let what = match routes.len() {
            1 => "1 route with unexpected attributes removed".to_owned(),
            count => format!("{count} routes with unexpected attributes removed"),
        };
        match self.known.has_removed_leftovers {
            true => self.record_repairs("peer_route", routes.len(), &[what]),
            false => info!("{what}"),
        }
    }

    /// Schedules a comparison if one of the events may be drift.
    fn handle_events(&mut self, events: &[PeerEvent]) {
        if let Some(event) = events.iter().find(|event| self.may_be_drift(event)) {
            debug!(?event, "comparing all objects after an event");
            self.compare_within(PAUSE);
        }
    }

    fn may_be_drift(&self, event: &PeerEvent) -> bool {
        let mesh = &self.known.mesh;
        match event {
            PeerEvent::RouteSet(route) => {
                let is_managed = super::kernel::is_in(&mesh.local_node().subnets(), &route.dst);
                is_managed && !mesh.wants_route(&super::kernel::peer_route(route))
            }
            PeerEvent::RouteRemoved(route) => mesh.wants_route(&super::kernel::peer_route(route)),
            PeerEvent::RouteReplaced(dst) => mesh.wants_route_to(dst),
            PeerEvent::NeighbourRemoved { link, addr } => mesh.wants_neighbour(*link, *addr),
            PeerEvent::NeighbourSet { .. } | PeerEvent::FdbSet(_) => false,
            PeerEvent::FdbRemoved(fdb) => mesh.wants_fdb(fdb.link, fdb.mac),
            PeerEvent::DefaultRoute | PeerEvent::Lost => true,
            PeerEvent::Link(link) => self.is_relevant_link(link.index) || self.is_configured_name(&link.name),
            PeerEvent::LinkRemoved { index, name } => {
                self.is_relevant_link(*index) || self.is_configured_name(name)
            }
            // Addresses of pods are in their namespaces, so these are addresses of the node.
            PeerEvent::AddressSet(_) | PeerEvent::AddressRemoved(_) => true,
        }
    }

    /// Whether the link is or was an underlay, is a tunnel, or has the name of a tunnel without being managed. Such a link may be removed
    /// or renamed, and then the tunnel can be created.
    fn is_relevant_link(&self, index: u32) -> bool {
        let underlays = self.known.position.underlays.iter().map(|underlay| underlay.link);
        let conflicting = self.known.conflicting_links.iter().chain(&self.known.position.lost_links).copied();
        underlays.chain(indexes(&self.known.tunnels)).chain(conflicting).any(|link| link == index)
    }

    fn is_configured_name(&self, name: &str) -> bool {
        let config = &self.config;
        let named = |wanted: &IfName| wanted.as_str() == name;
        config.node_interface.as_ref().is_some_and(named) || named(&config.network.bridge)
    }

    /// Compares all objects after `pause` at the latest.
    fn compare_within(&mut self, pause: Duration) {
        self.known.compare_at = self.known.compare_at.min(Instant::now() + pause);
    }

    /// A client that does not wait any more is ignored.
    fn answer(&mut self, query: PeerQuery) {
        match query {
            PeerQuery::Routes(done) => {
                drop(done.send(self.route_views().map_err(|e| AskError::Failed(e.to_string()))));
            }
            PeerQuery::Contents(done) => drop(done.send(self.contents())),
        }
    }

    /// The desired and the observed routes, with their differences.
    fn route_views(&mut self) -> Result<Vec<api::RouteView>, netlink::Error> {
        let subnets = &self.known.mesh.local_node().subnets();
        let (observed, _) = self.kernel.observed(&indexes(&self.known.tunnels), subnets)?;
        Ok(crate::membership::view::routes(&self.known.mesh, &observed, &mut self.kernel.socket))
    }
}

fn indexes(tunnels: &Tunnels) -> Vec<u32> {
    [tunnels.v4, tunnels.v6].into_iter().flatten().collect()
}
