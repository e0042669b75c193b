//! The reconciler: one thread that receives events about the node's objects and restores them.
//!
//! ```text
//! netlink, nftables, run directory, requests ─► due ─► round: tombstones, engine::reconcile
//!                                    timer ──┘
//! events inside pods, each timer ─► the inspector's thread (`inspector`): reconcile::inspect_pods
//! ```
//!
//! Events only make a round due a moment later. The round observes everything itself, so a lost event costs a delay and never a
//! repair. A round enters a pod's namespace only to create its link again.

mod early_rounds;
mod event_checks;
pub(crate) mod inspector;
mod ipam;
mod locks;
mod others;
mod overlap;
mod requests;
mod round;
mod steps;
#[cfg(test)]
mod tests;
mod watch;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::state::Attachment;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::error;
use types::{Finding, IfName};

use crate::agent_status::AgentStatus;
use crate::allocation::{NodeAllocations, TunnelSize};
use crate::conditions::Source;
use crate::installation::InstallState;
use crate::lock::{Lock, LockError, NetworkLock};
use crate::membership::BlockRequests;
use crate::metrics::Metrics;
use crate::monitor::{MonitorSlot, Read};
use crate::notify::Watchdog;
use crate::server::SocketWatch;
use crate::waker::{Slot, Waker};
use crate::work::Work;
use config::Config;
use early_rounds::Polled;
use event_checks::{Checks, EventContext};
pub(crate) use overlap::at_start as overlaps_at_start;
pub(crate) use requests::ReconcileRequests;
pub(crate) use round::propose_other_bridge;
use steps::FailedSteps;
use watch::DirectoryWatch;

/// No events are read for this time after some were read. Every ADD causes a dozen, and a wake-up for each would cost pods more
/// than the work itself.
const DEBOUNCE: Duration = Duration::from_millis(40);
/// A round begins this long after an event, so that related events are handled together.
const PAUSE: Duration = Duration::from_millis(60);
/// A failed round is retried after this time.
const RETRY: Duration = Duration::from_secs(1);

/// The reconciler's inputs and outputs. Most of them are shared with the server.
pub(crate) struct ReconcilerParts {
    pub(crate) config: Arc<Config>,
    /// This node's blocks, once it has some.
    pub(crate) allocations: Arc<NodeAllocations>,
    /// This node's tunnels, reported by the peers thread.
    pub(crate) tunnels: Arc<Slot<Vec<TunnelSize>>>,
    pub(crate) blocks: BlockRequests,
    pub(crate) agent_status: Arc<AgentStatus>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) work: Arc<Work>,
    /// None: the agent installs no files.
    pub(crate) install: Option<Arc<InstallState>>,
    pub(crate) requests: ReconcileRequests,
    /// Wakes the inspector, which then inspects all pods.
    pub(crate) inspector: Waker,
    pub(crate) lock: Lock,
    pub(crate) network_lock: NetworkLock,
    pub(crate) socket: Arc<SocketWatch>,
    /// When the agent started.
    pub(crate) begun: Instant,
}

pub(crate) struct Reconciler {
    parts: ReconcilerParts,
    netlink: MonitorSlot<netlink::Monitor, netlink::Error>,
    nft: MonitorSlot<nft::RulesetMonitor, nft::Error>,
    run: DirectoryWatch,
    /// Version of the allocation for which a round was scheduled last.
    allocation_version: u64,
    /// Tunnels for which a round was scheduled last.
    tunnels: Vec<TunnelSize>,
    /// The attachments that the last round found.
    attachments: Vec<Attachment>,
    /// The next round that events or requests need.
    due: Option<Due>,
    /// Only the timer starts a round before this time, so that most CPU time is left to the pods.
    not_before: Instant,
    /// The next round without an event.
    timer: Instant,
    was_ready: bool,
    watchdog: Watchdog,
    /// The status that was sent to the service manager last.
    notified_status: Option<String>,
    /// The tunnels in the table that clamps the MSS. None: not applied yet.
    clamped: Option<Vec<IfName>>,
    /// No connection limit is configured, and its table was removed.
    is_unlimited: bool,
    /// Routes and addresses of other programs in the pod network.
    overlaps: Vec<Finding>,
    /// Since when rounds could not create the network's bridge.
    bridge_missing_since: Option<Instant>,
    failed_steps: FailedSteps,
    polled: Polled,
    /// When routes, addresses and chains of other programs were checked last.
    unmanaged_checked_at: Option<Instant>,
}

/// A scheduled round.
#[derive(Debug, Clone, Copy)]
struct Due {
    at: Instant,
    /// It also checks routes, addresses and chains of other programs.
    unmanaged: bool,
    /// The timer caused it.
    timer: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ReconcilerError {
    #[error("cannot open the netlink monitor: {0}")]
    Netlink(#[from] netlink::Error),
    #[error("cannot open the nftables monitor: {0}")]
    Nft(#[from] nft::Error),
    #[error("cannot wait for events: {0}")]
    Wait(#[from] Errno),
}

impl Reconciler {
    pub(crate) fn new(parts: ReconcilerParts) -> Result<Self, ReconcilerError> {
        Ok(Self {
            netlink: MonitorSlot::open("netlink", netlink::Monitor::open)?,
            nft: MonitorSlot::open("nftables", nft::RulesetMonitor::open)?,
            run: DirectoryWatch::open(watch::directories(&parts.config.run_dir, &parts.config.socket))?,
            allocation_version: parts.allocations.version(),
            tunnels: Vec::new(),
            attachments: Vec::new(),
            due: None,
            not_before: Instant::now(),
            timer: Instant::now(),
            was_ready: false,
            watchdog: Watchdog::new(),
            notified_status: None,
            clamped: None,
            is_unlimited: false,
            overlaps: Vec::new(),
            bridge_missing_since: None,
            failed_steps: FailedSteps::default(),
            polled: Polled::default(),
            unmanaged_checked_at: None,
            parts,
        })
    }

    /// Runs until it is requested to stop. An error means that another agent uses the run directory: two agents there would undo
    /// each other's work.
    pub(crate) fn run(mut self) -> Result<(), LockError> {
        lower_priority();
        while !self.parts.requests.is_stopped() {
            self.watchdog.beat();
            let now = Instant::now();
            if self.timer <= now {
                self.timer = now + self.parts.config.reconcile;
                self.due = Some(Due { at: now, unmanaged: true, timer: true });
            }
            self.poll(now);
            if let Some(due) = self.due.take_if(|due| due.at <= now) {
                if due.timer {
                    // A directory that could not be watched causes no events.
                    self.check_locks()?;
                    self.parts.socket.check();
                }
                self.round(due);
            }
            if let Err(errno) = self.wait() {
                error!(error = %errno, "the reconciler cannot wait for events");
                // The timer still causes rounds.
                std::thread::sleep(RETRY);
            }
            self.collect()?;
            self.debounce();
        }
        Ok(())
    }

    fn wait(&self) -> Result<(), Errno> {
        let next = [
            Some(self.timer),
            Some(self.polled.next),
            self.due.map(|due| due.at),
            self.watchdog.next(),
            self.netlink.retry_at(),
            self.nft.retry_at(),
        ];
        let now = Instant::now();
        let next = next.into_iter().flatten().min().unwrap_or(now);
        let timeout = Timespec::try_from(next.saturating_duration_since(now)).map_err(|_| Errno::INVAL)?;
        let mut fds = vec![watched(self.run.as_fd()), watched(self.parts.requests.waker().as_fd())];
        fds.extend(self.netlink.fd().into_iter().chain(self.nft.fd()).map(watched));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Waits, so that more events are read at once. Only requests end the pause.
    fn debounce(&self) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: DEBOUNCE.subsec_nanos().into() };
        // An error only shortens the pause.
        let _ = poll(&mut [watched(self.parts.requests.waker().as_fd())], Some(&timeout));
    }

    /// Reads all events and requests, and schedules the rounds that they need.
    fn collect(&mut self) -> Result<(), LockError> {
        let now = Instant::now();
        match self.netlink.read(now, netlink::Monitor::read) {
            Read::Events(events) => {
                let bridges = self.bridges();
                let known = EventContext {
                    bridges: &bridges,
                    deleted_here: &netlink::was_deleted_by_this_process,
                    group_of: &|link| self.parts.work.policies().group_of_link(link),
                };
                self.schedule_checks(event_checks::checks(&events, &known));
                if event_checks::may_overlap(&events, &self.parts.config.network.subnets) {
                    self.check_unmanaged_soon();
                }
            }
            Read::Reopened => {
                self.schedule_checks(Checks { node: true, pods: true });
                self.check_unmanaged_soon();
            }
            Read::Failed => {}
        }
        match self.nft.read(now, nft::RulesetMonitor::read) {
            Read::Events(change) => {
                if change.managed != nft::ManagedChange::None || change.unmanaged {
                    self.schedule_round(change.unmanaged);
                }
            }
            Read::Reopened => self.schedule_round(true),
            Read::Failed => {}
        }
        let failed = self.netlink.finding().into_iter().chain(self.nft.finding()).collect();
        self.parts.agent_status.set(Source::Monitors, failed);
        self.collect_requests();
        if self.run.changed().unwrap_or(true) {
            self.check_run_directory()?;
        }
        Ok(())
    }

    fn schedule_checks(&mut self, checks: Checks) {
        if checks.node || checks.pods {
            self.parts.work.kernel_cache().forget_bridges();
        }
        if checks.node {
            self.schedule_round(false);
        }
        if checks.pods {
            self.parts.inspector.wake();
        }
    }

    /// Requests of other threads, and new values in slots.
    fn collect_requests(&mut self) {
        let requested = self.parts.requests.take();
        let (version, tunnels) = (self.parts.allocations.version(), self.parts.tunnels.get());
        if requested.round || version != self.allocation_version || tunnels != self.tunnels {
            self.schedule_round(false);
        }
        if requested.fault {
            self.check_unmanaged_soon();
        }
        (self.allocation_version, self.tunnels) = (version, tunnels);
    }

    /// Schedules a round in a moment. If one is scheduled already, it is neither earlier, because the kernel may report the removal
    /// of thousands of pods at once, nor later, because there may always be further events.
    fn schedule_round(&mut self, unmanaged: bool) {
        let at = self.not_before.max(Instant::now() + PAUSE);
        self.schedule(Due { at, unmanaged, timer: false });
    }

    /// Schedules a round. If one is scheduled already, both are merged, at the earlier time.
    fn schedule(&mut self, due: Due) {
        let scheduled = self.due.get_or_insert(due);
        scheduled.at = scheduled.at.min(due.at);
        scheduled.unmanaged |= due.unmanaged;
    }

    fn bridges(&self) -> Vec<IfName> {
        let mut bridges: Vec<IfName> = self.attachments.iter().map(|a| a.bridge.clone()).collect();
        bridges.push(self.parts.config.network.bridge.clone());
        bridges.sort();
        bridges.dedup();
        bridges
    }

    /// Restores the socket, the lock and the directory if another process removed them, and serves new tombstones.
    fn check_run_directory(&mut self) -> Result<(), LockError> {
        self.check_locks()?;
        // The server creates and logs it.
        self.parts.socket.check();
        if !self.parts.config.run_dir.join("networks").exists() {
            self.schedule_round(false);
        }
        self.run.renew();
        self.parts.work.drain_tombstones();
        Ok(())
    }
}

/// Lowers the priority of the calling thread, so that CNI requests come first. Without the permission, it stays.
fn lower_priority() {
    let _ = rustix::process::setpriority_process(None, 5);
}

fn watched(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}
