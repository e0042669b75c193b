//! The reconciler: one thread that watches what happens to what is ours, and puts it back.
//!
//! ```text
//! netlink, nftables, run directory, requests ─► due ─► round: tombstones, engine::reconcile
//!                                   timer ──┘
//! ```
//!
//! Events only make a round due a moment later; the round looks at everything itself. So an event that was missed costs a
//! delay, never a repair.

mod hints;
mod ipam;
mod locks;
mod monitor;
mod others;
mod overlap;
mod requests;
mod round;
mod rules;
mod suspicion;
#[cfg(test)]
mod tests;
mod watch;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::reconcile::{Depth, PodFinding};
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
use crate::notify::Watchdog;
use crate::peers::PeerInputs;
use crate::server::SocketWatch;
use crate::waker::Slot;
use crate::work::Work;
use config::Config;
use hints::HintContext;
use monitor::{MonitorSlot, Read};
pub(crate) use overlap::at_start as overlaps_at_start;
pub(crate) use requests::ReconcileRequests;
pub(crate) use round::with_other_bridge;
use rules::Rules;
use suspicion::Polled;
use watch::DirectoryWatch;

/// After some news nothing is heard for so long: every ADD makes a dozen, and waking up for each of them would cost the
/// pods more than the work itself.
const REST: Duration = Duration::from_millis(40);
/// How long after an event a round begins: what belongs together comes together.
const PAUSE: Duration = Duration::from_millis(60);
/// The same for what happened inside pods: looking into all of them is dearer, and every DEL makes such news. Longer than
/// the longest pause between rounds, and short enough to be done within a second behind a round of the node.
const DEEP_PAUSE: Duration = Duration::from_millis(600);
/// How soon a round that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What the reconciler works with, most of it shared with the server.
pub(crate) struct ReconcilerParts {
    pub(crate) config: Arc<Config>,
    /// This node's part of the network, once it has one.
    pub(crate) allocations: Arc<NodeAllocations>,
    /// This node's tunnels, as the peers thread keeps them.
    pub(crate) tunnels: Arc<Slot<Vec<TunnelSize>>>,
    pub(crate) blocks: BlockRequests,
    pub(crate) peers: PeerInputs,
    pub(crate) agent_status: Arc<AgentStatus>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) work: Arc<Work>,
    /// None: the agent installs no files.
    pub(crate) install: Option<Arc<InstallState>>,
    pub(crate) requests: ReconcileRequests,
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
    /// Of the allocation that the last round was asked for.
    share_version: u64,
    /// The tunnels that the last round was asked for.
    tunnels: Vec<TunnelSize>,
    memory: Vec<Attachment>,
    /// What the last round could not repair in pods.
    unrepaired: Vec<PodFinding>,
    /// The rounds to come, by their depth.
    due: [Option<Due>; 2],
    /// No round of the node begins before: most of the time belongs to the pods.
    not_before: Instant,
    /// When everything is looked at, whatever was heard.
    timer: Instant,
    was_ready: bool,
    watchdog: Watchdog,
    /// What the service manager was told.
    reported: Option<String>,
    /// The tunnels that the firewall was told to clamp; none: it was told nothing yet.
    clamped: Option<Vec<IfName>>,
    /// No limit of connections is in force, and none is wanted.
    is_unlimited: bool,
    /// Routes and addresses of other programs in the pod network, as they were found last.
    overlaps: Vec<Finding>,
    /// Since when rounds could not make the network's bridge.
    bridgeless: Option<Instant>,
    rules: Rules,
    polled: Polled,
    /// When other programs' routes, addresses and chains were last checked.
    others_checked: Option<Instant>,
}

/// A round that is to come.
#[derive(Debug, Clone, Copy)]
struct Due {
    at: Instant,
    depth: Depth,
    unmanaged: bool,
    /// Nothing happened: it is time.
    timer: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ReconcilerError {
    #[error("cannot listen to the kernel: {0}")]
    Netlink(#[from] netlink::Error),
    #[error("cannot listen to the firewall: {0}")]
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
            share_version: parts.allocations.version(),
            tunnels: Vec::new(),
            memory: Vec::new(),
            unrepaired: Vec::new(),
            due: [None; 2],
            not_before: Instant::now(),
            timer: Instant::now(),
            was_ready: false,
            watchdog: Watchdog::new(),
            reported: None,
            clamped: None,
            is_unlimited: false,
            overlaps: Vec::new(),
            bridgeless: None,
            rules: Rules::default(),
            polled: Polled::default(),
            others_checked: None,
            parts,
        })
    }

    /// Runs until it is requested to stop. An error: another agent works in the run directory, and two there would undo each
    /// other's work.
    pub(crate) fn run(mut self) -> Result<(), LockError> {
        // Of this thread alone: pods that wait come first. Where it is not allowed, they come as they come.
        let _ = rustix::process::setpriority_process(None, 5);
        while !self.parts.requests.is_stopped() {
            self.watchdog.beat();
            let now = Instant::now();
            if self.timer <= now {
                self.timer = now + self.parts.config.reconcile;
                self.due[Depth::Pods as usize] =
                    Some(Due { at: now, depth: Depth::Pods, unmanaged: true, timer: true });
            }
            self.poll(now);
            if let Some(due) = self.take_ripe(now) {
                if due.timer {
                    // A directory that could not be watched tells nothing.
                    self.keep_locks()?;
                    self.parts.socket.check();
                }
                self.round(due);
            }
            if let Err(errno) = self.wait() {
                error!("the reconciler cannot wait for events: {errno}");
                // Everything is still looked at by the timer.
                std::thread::sleep(RETRY);
            }
            self.collect()?;
            self.rest();
        }
        Ok(())
    }

    fn next(&self) -> Option<Due> {
        self.due.iter().flatten().min_by_key(|due| due.at).copied()
    }

    /// The round that is to be done now. A deep one looks at everything: it comes first, and what waits beside it is done
    /// with it.
    fn take_ripe(&mut self, now: Instant) -> Option<Due> {
        let is_ripe = |due: &mut Due| due.at <= now;
        let [quick, deep] = &mut self.due;
        match deep.take_if(is_ripe) {
            Some(due) => {
                let merged = quick.take();
                Some(Due { unmanaged: due.unmanaged || merged.is_some_and(|merged| merged.unmanaged), ..due })
            }
            None => quick.take_if(is_ripe),
        }
    }

    fn wait(&self) -> Result<(), Errno> {
        let timer = self.timer.min(self.polled.next);
        let next = self.next().map_or(timer, |due| due.at.min(timer));
        let others = [self.watchdog.next(), self.netlink.retry_at(), self.nft.retry_at()];
        let next = others.into_iter().flatten().fold(next, Instant::min);
        let pause = next.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(pause).map_err(|_| Errno::INVAL)?;
        let mut fds = vec![watched(self.run.as_fd()), watched(self.parts.requests.waker().as_fd())];
        fds.extend(self.netlink.fd().into_iter().chain(self.nft.fd()).map(watched));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Only requests end the pause.
    fn rest(&self) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: REST.subsec_nanos().into() };
        // Whatever it says, the next thing is to look.
        let _ = poll(&mut [watched(self.parts.requests.waker().as_fd())], Some(&timeout));
    }

    /// Reads what there is to read, and decides what it asks for.
    fn collect(&mut self) -> Result<(), LockError> {
        let now = Instant::now();
        match self.netlink.read(now, netlink::Monitor::read) {
            Read::Events(events) => {
                let bridges = self.bridges();
                let known =
                    HintContext { bridges: &bridges, deleted_here: &netlink::was_deleted_by_this_process };
                for depth in hints::depths(&events, &known) {
                    self.parts.work.kernel_cache().forget_bridges();
                    self.soon(depth, false);
                }
                if hints::may_overlap(&events, &self.parts.config.network.subnets) {
                    self.suspect();
                }
            }
            Read::Reopened => {
                self.parts.work.kernel_cache().forget_bridges();
                self.soon(Depth::Pods, false);
                self.suspect();
            }
            Read::Failed => {}
        }
        match self.nft.read(now, nft::RulesetMonitor::read) {
            Read::Events(change) if change.is_nothing() => {}
            Read::Events(change) => {
                if change.peers {
                    self.parts.peers.table_changed();
                }
                if (nft::RulesetChange { peers: false, ..change }) != nft::RulesetChange::default() {
                    self.soon(Depth::Node, change.unmanaged);
                }
            }
            Read::Reopened => {
                self.parts.peers.table_changed();
                self.soon(Depth::Node, true);
            }
            Read::Failed => {}
        }
        let failed = self.netlink.finding().into_iter().chain(self.nft.finding()).collect();
        self.parts.agent_status.set(Source::Monitors, failed);
        self.collect_requests();
        if self.run.changed().unwrap_or(true) {
            self.look_at_run_directory()?;
        }
        Ok(())
    }

    /// Requests of other threads, and new values in slots.
    fn collect_requests(&mut self) {
        let requested = self.parts.requests.take();
        let (share_version, tunnels) = (self.parts.allocations.version(), self.parts.tunnels.get());
        if requested.round || share_version != self.share_version || tunnels != self.tunnels {
            self.soon(Depth::Node, false);
        }
        if requested.fault {
            self.suspect();
        }
        (self.share_version, self.tunnels) = (share_version, tunnels);
    }

    /// A round a moment from now, unless one is to come anyway: that one is neither drawn forward, as the kernel may say of
    /// thousands of pods at once that they go, nor put off, as there may always be other news.
    fn soon(&mut self, depth: Depth, unmanaged: bool) {
        let now = Instant::now();
        let at = match depth {
            Depth::Node => self.not_before.max(now + PAUSE),
            Depth::Pods => now + DEEP_PAUSE,
        };
        self.schedule(Due { at, depth, unmanaged, timer: false });
    }

    /// Merges it with a round that waits, at the earlier of the two times.
    fn schedule(&mut self, due: Due) {
        let waiting = self.due[due.depth as usize].get_or_insert(due);
        waiting.at = waiting.at.min(due.at);
        waiting.unmanaged |= due.unmanaged;
    }

    fn bridges(&self) -> Vec<IfName> {
        let mut bridges: Vec<IfName> = self.memory.iter().map(|a| a.bridge.clone()).collect();
        bridges.push(self.parts.config.network.bridge.clone());
        bridges.sort();
        bridges.dedup();
        bridges
    }

    /// Somebody removed the socket, the lock or the whole directory, or left a tombstone.
    fn look_at_run_directory(&mut self) -> Result<(), LockError> {
        self.keep_locks()?;
        // It is made anew by the server, which says so.
        self.parts.socket.check();
        if !self.parts.config.run_dir.join("networks").exists() {
            self.soon(Depth::Node, false);
        }
        self.run.renew();
        self.parts.work.drain_tombstones();
        Ok(())
    }
}

fn watched(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}
