//! The kernel's side: routes, neighbours and tunnel entries for all other nodes, always as the records say.
//!
//! ```text
//! updates from the store ───┐
//! events from the kernel ───┼─► Mesh (desired) ─► what changed ─► one batch
//! timer ────────────────────┘                └──► compared with all the kernel has: after losses, and on the timer
//! ```
//!
//! `peers`: the firewall's table of them. `publish`: where this node is. `tunnels`: its devices. `trials`: whether they work. `report_state`: what people and the disk get
//! to know.
//!
//! What is there stays until the store has said otherwise: an agent that starts while the store is away sweeps nothing.

mod peers;
mod publish;
mod report_state;
mod trials;
mod tunnels;

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use model::{NodeRecord, PeerChanges, Repaired, Tunnels};
use netlink::{PeerEvent, PeerMonitor, Route};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::{debug, error, info};
use types::IfName;

use super::inputs::{PeerQueue, PeerReports, Pending, Question, RecordUpdates};
use super::kernel::{PeerKernel, RefusedChanges};
use super::known::KnownPeers;
use crate::agent_status::{AgentStatus, WatchedThread};
use crate::allocation::{NodeAllocations, TunnelSize};
use crate::membership::AskError;
use crate::metrics::Metrics;
use crate::thread::{AgentThread, StopFlag};
use crate::waker::Slot;
use config::Config;
pub(crate) use peers::Peers;
use report_state::AppliedPart;
pub(crate) use report_state::PeerReportState;
pub(crate) use trials::Trials;

/// How long after an event everything is compared: what belongs together comes together.
const PAUSE: Duration = Duration::from_millis(20);
/// After events were read, none are for a while: a pod that comes or goes makes a dozen of them, and to wake up for each takes
/// more than to read them.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// How soon something that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How often the peers are written to disk, at most, while they change.
const SAVE: Duration = Duration::from_millis(500);
/// At most so often for each of them: thousands are many megabytes.
const SAVE_EACH: Duration = Duration::from_millis(2);
/// A change or a comparison takes milliseconds; with thousands of peers up to a second.
pub(crate) const LONGEST_CHANGE: Duration = Duration::from_secs(5);

/// What the peers thread works with.
pub(crate) struct PeerRoutesParts {
    pub(crate) config: Arc<Config>,
    /// A node that no other one can join has no peers.
    pub(crate) is_alone: bool,
    /// This node's part of the network: its gateways.
    pub(crate) allocations: Arc<NodeAllocations>,
    pub(crate) agent_status: Arc<AgentStatus>,
    pub(crate) metrics: Arc<Metrics>,
    /// This node's tunnels, for the reconciler.
    pub(crate) tunnels: Arc<Slot<Vec<TunnelSize>>>,
    pub(crate) queue: PeerQueue,
    pub(crate) reports: PeerReports,
    /// The part of this node's record that never changes.
    pub(crate) record: NodeRecord,
    /// With the peers that were written to disk.
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
    #[error("cannot start the thread for routes to peers: {0}")]
    Thread(#[from] std::io::Error),
}

pub(crate) struct Routes {
    config: Arc<Config>,
    is_alone: bool,
    allocations: Arc<NodeAllocations>,
    /// Of the allocation that was used last.
    share_version: u64,
    agent_status: Arc<AgentStatus>,
    metrics: Arc<Metrics>,
    tunnel_sizes: Arc<Slot<Vec<TunnelSize>>>,
    queue: PeerQueue,
    reports: PeerReports,
    record: NodeRecord,
    /// This node's.
    blocks: Vec<IpNet>,
    kernel: PeerKernel,
    known: KnownPeers,
}

impl Routes {
    fn new(parts: PeerRoutesParts) -> Result<Self, netlink::Error> {
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
            share_version: allocations.version(),
            allocations,
            agent_status,
            metrics,
            tunnel_sizes: tunnels,
            queue,
            reports,
            record,
            blocks: known.mesh.local_node().blocks.clone(),
            kernel: PeerKernel::open()?,
            known,
        })
    }

    fn run(mut self, stop: &StopFlag) {
        let mut monitor = PeerMonitorSlot::Failed { retry_at: Instant::now() };
        loop {
            let pending = self.queue.take();
            if stop.is_set() {
                return;
            }
            self.agent_status.busy_since(WatchedThread::Peers, Instant::now());
            self.take_input(pending);
            monitor = self.read_events(monitor);
            self.run_timers();
            self.agent_status.idle(WatchedThread::Peers);
            if let Err(errno) = self.wait(&monitor) {
                error!(error = %errno, "the peers thread cannot wait for events");
                // Everything is still compared by the timer.
                std::thread::sleep(RETRY);
            }
        }
    }

    /// Input of other threads.
    fn take_input(&mut self, pending: Pending) {
        let Pending { records, blocks, is_table_changed } = pending;
        let share_version = self.allocations.version();
        if share_version != self.share_version {
            self.share_version = share_version;
            self.soon(PAUSE);
        }
        if let Some(blocks) = blocks.filter(|blocks| *blocks != self.blocks) {
            self.blocks = blocks;
            self.soon(PAUSE);
        }
        if is_table_changed {
            self.peer_table_changed();
        }
        if !records.is_empty() {
            self.updated(records);
        }
        if let Some(question) = self.queue.question() {
            self.answer(question);
        }
        if let Some(verdict) = self.known.trials.verdict() {
            self.tried(verdict);
        }
    }

    fn run_timers(&mut self) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= Instant::now());
        if is_due(Some(self.known.look_at)) {
            self.look();
        }
        if is_due(self.known.save_at) {
            self.report_records();
        }
        if is_due(self.known.report_state.at) {
            self.count();
            self.tell();
        }
    }

    /// Sleeps until there is input, an event or a timer.
    fn wait(&self, monitor: &PeerMonitorSlot) -> Result<(), Errno> {
        let now = Instant::now();
        let timers =
            [Some(self.known.look_at), self.known.save_at, self.known.report_state.at, monitor.pause(now)];
        let next = timers.into_iter().flatten().min().unwrap_or(now);
        let timeout = Timespec::try_from(next.saturating_duration_since(now)).map_err(|_| Errno::INVAL)?;
        let mut fds = vec![PollFd::new(&self.queue.waker, PollFlags::IN)];
        if let PeerMonitorSlot::Open { monitor: open, .. } = monitor
            && monitor.pause(now).is_none()
        {
            fds.push(PollFd::from_borrowed_fd(open.as_fd(), PollFlags::IN));
        }
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Reads the kernel's events, or opens the monitor again.
    fn read_events(&mut self, monitor: PeerMonitorSlot) -> PeerMonitorSlot {
        let now = Instant::now();
        if monitor.pause(now).is_some() {
            return monitor;
        }
        let read = match monitor {
            PeerMonitorSlot::Open { monitor, .. } => self.read_open(monitor, now),
            PeerMonitorSlot::Failed { .. } => self.open_monitor(now),
        };
        read.unwrap_or_else(|error| self.no_events(&error))
    }

    fn read_open(
        &mut self,
        mut monitor: PeerMonitor,
        now: Instant,
    ) -> Result<PeerMonitorSlot, netlink::Error> {
        let events = monitor.read()?;
        self.observed(&events);
        let quiet_until = if events.is_empty() { now } else { now + DEBOUNCE };
        Ok(PeerMonitorSlot::Open { monitor, quiet_until })
    }

    fn open_monitor(&mut self, now: Instant) -> Result<PeerMonitorSlot, netlink::Error> {
        let mut monitor = PeerMonitor::open()?;
        self.observed(&monitor.read()?);
        if self.known.report_state.monitor_failure.take().is_some() {
            // Events were missed.
            self.soon(PAUSE);
            self.report_soon();
        }
        Ok(PeerMonitorSlot::Open { monitor, quiet_until: now })
    }

    /// Everything is compared at each attempt, and on the timer.
    fn no_events(&mut self, error: &netlink::Error) -> PeerMonitorSlot {
        self.known.report_state.monitor_failure = Some(error.to_string());
        self.tell();
        self.soon(RETRY);
        PeerMonitorSlot::Failed { retry_at: Instant::now() + RETRY }
    }

    /// Takes all updates of the store, and puts the difference into the kernel.
    fn updated(&mut self, updates: RecordUpdates) {
        let RecordUpdates { store_listing, nodes, claims } = updates;
        let is_list = store_listing.is_some();
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
            // Soon, since power may go; the more there is to write, the less often.
            let count = u32::try_from(self.known.mesh.peers().count()).unwrap_or(u32::MAX);
            Instant::now() + SAVE.max(SAVE_EACH.saturating_mul(count))
        });
        if is_list {
            // What was missed may have left something behind.
            self.known.peers.make_due();
            self.look();
        } else {
            self.change();
        }
    }

    /// The difference to what was wanted before.
    fn change(&mut self) {
        // Tunnels that are there are looked after when everything is.
        if self.lacks_tunnel() || self.lacks_peer_table() {
            self.keep_tunnels();
        }
        let changes = self.known.mesh.take_changes();
        debug!("{changes}");
        let sources = self.known.mesh.take_source_changes();
        self.add_peers(&sources.add);
        let refused = self.apply(&changes);
        self.known.report_state.owed.extend(&refused.changes);
        self.refused(refused.reasons, AppliedPart::News);
        self.remove_peers(&sources.remove);
        self.try_tunnels();
    }

    /// The changes that were not applied.
    fn apply(&mut self, changes: &PeerChanges) -> RefusedChanges {
        self.report_soon();
        // Alone there is nobody to lead to; what is there is another network's.
        if changes.is_empty() || self.is_alone {
            return RefusedChanges::default();
        }
        self.kernel.apply(changes).unwrap_or_else(|error| {
            self.failed(format!("routes to other nodes cannot be changed: {error}"));
            RefusedChanges { changes: changes.clone(), reasons: BTreeMap::new() }
        })
    }

    /// Looks at everything: where this node is, its tunnels, and what the kernel has of ours.
    fn look(&mut self) {
        self.known.look_at = Instant::now() + self.config.reconcile;
        self.known.report_state.failure = None;
        if let Err(error) = self.compare_all() {
            self.failed(format!("routes to other nodes cannot be compared: {error}"));
        }
        if self.reports.addresses.borrow().is_some() {
            self.publish_position();
        }
    }

    fn compare_all(&mut self) -> Result<(), netlink::Error> {
        self.known.give_up();
        self.find_position()?;
        if self.is_alone {
            self.report_soon();
            return Ok(());
        }
        self.keep_tunnels();
        let (mesh, tunnels) = (&mut self.known.mesh, &self.known.tunnels);
        let (observed, odd) = self.kernel.observed(&indexes(tunnels), &mesh.local_node().subnets)?;
        let mut due = mesh.take_changes();
        due.extend(&self.known.report_state.owed);
        let mut changes = mesh.compare(&observed);
        if !self.known.is_complete {
            // Somebody may stand behind it whom the store has not told us of yet.
            changes.clear_removals();
        }
        if !changes.is_empty() {
            debug!("{changes}");
        }
        self.remove_odd(&odd);
        let refused = self.apply(&changes);
        // Changes that follow from the records are no repairs, also if they were refused before.
        let drift = changes.beyond(&due);
        let mut repairs = drift.beyond(&refused.changes);
        self.known.report_state.owed = refused.changes.beyond(&drift);
        self.refused(refused.reasons, AppliedPart::All);
        self.try_tunnels();
        if !self.known.was_swept {
            repairs.clear_removals();
        }
        for Repaired { kind, count, sentences } in repairs.repairs() {
            self.repaired(kind, count, &sentences);
        }
        self.known.was_swept |= self.known.is_complete;
        if !self.has_refusals() && self.known.tunnel_troubles.is_empty() {
            self.is_well();
        }
        Ok(())
    }

    /// Removes routes with unexpected attributes, once the store has listed all nodes. A failure holds up no other repair.
    fn remove_odd(&mut self, odd: &[Route]) {
        if !self.known.is_complete || odd.is_empty() {
            return;
        }
        if let Err(error) = self.kernel.remove(odd) {
            return self.failed(format!("a route with unexpected attributes cannot be removed: {error}"));
        }
        let what = match odd.len() {
            1 => "1 route with unexpected attributes removed".to_owned(),
            count => format!("{count} routes with unexpected attributes removed"),
        };
        match self.known.was_swept {
            true => self.repaired("peer_route", odd.len(), &[what]),
            false => info!("{what}"),
        }
    }

    /// Events that may mean drift are a reason to compare everything.
    fn observed(&mut self, events: &[PeerEvent]) {
        if let Some(event) = events.iter().find(|event| self.matters(event)) {
            debug!("observed {event:?}");
            self.soon(PAUSE);
        }
    }

    fn matters(&self, event: &PeerEvent) -> bool {
        let mesh = &self.known.mesh;
        match event {
            PeerEvent::RouteSet(route) => {
                let is_ours = super::kernel::is_of(&mesh.local_node().subnets, &route.dst);
                is_ours && !mesh.wants_route(&super::kernel::read(route))
            }
            PeerEvent::RouteRemoved(route) => mesh.wants_route(&super::kernel::read(route)),
            PeerEvent::RouteReplaced(dst) => mesh.wants_route_to(dst),
            PeerEvent::NeighbourRemoved { link, addr } => mesh.wants_neighbour(*link, *addr),
            PeerEvent::NeighbourSet { .. } | PeerEvent::FdbSet(_) => false,
            PeerEvent::FdbRemoved(fdb) => mesh.wants_fdb(fdb.link, fdb.mac),
            PeerEvent::DefaultRoute | PeerEvent::Lost => true,
            PeerEvent::Link(link) => self.concerns_link(link.index) || self.is_configured_name(&link.name),
            PeerEvent::LinkRemoved { index, name } => {
                self.concerns_link(*index) || self.is_configured_name(name)
            }
            // A pod's addresses are in its own namespace: what is heard here is the node's.
            PeerEvent::AddressSet(_) | PeerEvent::AddressRemoved(_) => true,
        }
    }

    /// Also one that is in the way of ours: it may go, or get another name.
    fn concerns_link(&self, index: u32) -> bool {
        let underlays = self.known.position.underlays.iter().map(|underlay| underlay.link);
        let in_the_way = self.known.in_the_way.iter().copied();
        underlays.chain(indexes(&self.known.tunnels)).chain(in_the_way).any(|link| link == index)
    }

    fn is_configured_name(&self, name: &str) -> bool {
        let config = &self.config;
        let named = |wanted: &IfName| wanted.as_str() == name;
        config.node_interface.as_ref().is_some_and(named) || named(&config.network.bridge)
    }

    fn soon(&mut self, pause: Duration) {
        self.known.look_at = self.known.look_at.min(Instant::now() + pause);
    }

    /// The client may have given up.
    fn answer(&mut self, question: Question) {
        match question {
            Question::Routes(done) => {
                drop(done.send(self.shown().map_err(|e| AskError::Failed(e.to_string()))));
            }
            Question::Contents(done) => drop(done.send(self.contents())),
        }
    }

    /// What should be, what the kernel has, and the difference.
    fn shown(&mut self) -> Result<Vec<api::RouteView>, netlink::Error> {
        let subnets = &self.known.mesh.local_node().subnets;
        let (observed, _) = self.kernel.observed(&indexes(&self.known.tunnels), subnets)?;
        Ok(crate::membership::view::routes(&self.known.mesh, &observed, &mut self.kernel.socket))
    }
}

/// The monitor of the kernel's events.
enum PeerMonitorSlot {
    Open {
        monitor: PeerMonitor,
        /// No events are read before.
        quiet_until: Instant,
    },
    /// It is opened again then.
    Failed { retry_at: Instant },
}

impl PeerMonitorSlot {
    /// Until when nothing is read; None: now.
    fn pause(&self, now: Instant) -> Option<Instant> {
        let (Self::Open { quiet_until: until, .. } | Self::Failed { retry_at: until }) = self;
        Some(*until).filter(|until| now < *until)
    }
}

fn indexes(tunnels: &Tunnels) -> Vec<u32> {
    [tunnels.v4, tunnels.v6].into_iter().flatten().collect()
}
