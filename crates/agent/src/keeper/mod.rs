//! The keeper: one thread that watches what happens to what is ours, and puts it back.
//!
//! ```text
//! netlink, nftables, run folder, installed files ─► due ─► round: tombstones, engine::reconcile, install
//!                                       timer ────────┘
//! ```
//!
//! Events only make a round due a moment later; the round looks at everything itself. So an event that was missed costs a
//! delay, never a repair.

mod hints;
mod others;
#[cfg(test)]
mod tests;
mod watch;

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Problem;
use engine::reconcile::{self, Depth, Order, Outcome, Trouble};
use engine::state::{Attachment, StateError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use tracing::{debug, error, info, warn};
use types::IfName;

use crate::board::{Board, Finder};
use crate::cluster::Cluster;
use crate::config::Config;
use crate::install::{self, Installer};
use crate::lock::{Lock, LockError};
use crate::memory;
use crate::metrics::Metrics;
use crate::notify::{self, Watchdog};
use crate::server::SocketWatch;
use crate::share::{Share, Shares};
use crate::work::Work;
use hints::Known;
use watch::Watch;

/// After some news nothing is heard for so long: every ADD makes a dozen, and waking up for each of them would cost the
/// pods more than the work itself.
const REST: Duration = Duration::from_millis(40);
/// How long after an event a round begins: what belongs together comes together.
const PAUSE: Duration = Duration::from_millis(60);
/// The same for what happened inside pods: looking into all of them is dearer, and every DEL makes such news.
const DEEP_PAUSE: Duration = Duration::from_millis(700);
/// A round takes at most this share of the time while events keep coming.
const SHARE: u32 = 8;
/// But whatever rounds take, what is removed meanwhile is back within a second.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// So few free addresses are a reason to ask for another block.
const FEW: u64 = 32;
/// How soon a round that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What the keeper works with, most of it shared with the server.
pub(crate) struct Parts {
    pub(crate) config: Arc<Config>,
    /// This node's part of the network, once it has one.
    pub(crate) shares: Arc<Shares>,
    pub(crate) cluster: Option<Cluster>,
    pub(crate) board: Arc<Board>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) work: Arc<Work>,
    pub(crate) installer: Option<Arc<Installer>>,
    pub(crate) lock: Lock,
    pub(crate) socket: Arc<SocketWatch>,
    /// When the agent started.
    pub(crate) begun: Instant,
}

/// Wakes the keeper: to look at once, or to end.
#[derive(Debug, Clone)]
pub(crate) struct Bell(Arc<OwnedFd>);

impl Bell {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    pub(crate) fn ring(&self) {
        // It can only fail when it has rung too often already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

pub(crate) struct Keeper {
    parts: Parts,
    netlink: netlink::Monitor,
    nft: nft::Monitor,
    run: Watch,
    installed: Option<install::Watch>,
    bell: Bell,
    memory: Vec<Attachment>,
    /// The rounds to come, by their depth.
    due: [Option<Due>; 2],
    /// When everything is looked at, whatever was heard.
    timer: Instant,
    was_ready: bool,
    watchdog: Watchdog,
    /// What the service manager was told.
    told: Option<String>,
    /// The devices that the firewall was told of. Others that it knows are another agent's.
    tunnels: Vec<IfName>,
    /// Why nothing could be installed last time; the same is not told twice.
    install_error: Option<String>,
    /// Since when rounds could not make the network's bridge.
    bridgeless: Option<Instant>,
}

/// A round that is to come.
#[derive(Debug, Clone, Copy)]
struct Due {
    at: Instant,
    depth: Depth,
    foreign: bool,
    /// Nothing happened: it is time.
    timer: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    #[error("cannot listen to the kernel: {0}")]
    Netlink(#[from] netlink::Error),
    #[error("cannot listen to the firewall: {0}")]
    Nft(#[from] nft::Error),
    #[error("cannot watch files: {0}")]
    Files(#[from] install::InstallError),
    #[error("cannot wait for events: {0}")]
    Wait(#[from] Errno),
}

impl Keeper {
    pub(crate) fn new(parts: Parts, bell: Bell) -> Result<Self, KeeperError> {
        Ok(Self {
            netlink: netlink::Monitor::open()?,
            nft: nft::Monitor::open()?,
            run: Watch::open(watch::folders(&parts.config.run_dir, &parts.config.socket))?,
            installed: parts.installer.as_deref().map(install::Watch::new).transpose()?,
            bell,
            memory: Vec::new(),
            due: [None; 2],
            timer: Instant::now(),
            was_ready: false,
            watchdog: Watchdog::new(),
            told: None,
            tunnels: Vec::new(),
            install_error: None,
            bridgeless: None,
            parts,
        })
    }

    pub(crate) fn bell(&self) -> Bell {
        self.bell.clone()
    }

    /// Runs until `stop` says so; the bell makes it look. An error: another agent works in our run folder, and two there
    /// would undo each other's work.
    pub(crate) fn run(mut self, stop: impl Fn() -> bool) -> Result<(), LockError> {
        // Of this thread alone: pods that wait come first. Where it is not allowed, they come as they come.
        let _ = rustix::process::setpriority_process(None, 5);
        while !stop() {
            self.watchdog.beat();
            let now = Instant::now();
            if self.timer <= now {
                self.timer = now + self.parts.config.reconcile;
                self.due[Depth::Pods as usize] =
                    Some(Due { at: now, depth: Depth::Pods, foreign: true, timer: true });
            }
            if let Some(due) = self.next().filter(|due| due.at <= now) {
                self.due[due.depth as usize] = None;
                if due.timer {
                    // A folder that could not be watched tells nothing.
                    self.keep_lock()?;
                    self.parts.socket.look();
                }
                self.round(due);
            }
            if let Err(errno) = self.wait() {
                error!("the keeper cannot wait for events: {errno}");
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

    fn wait(&self) -> Result<(), Errno> {
        let next = self.next().map_or(self.timer, |due| due.at.min(self.timer));
        let next = self.watchdog.next().map_or(next, |beat| beat.min(next));
        let patience = next.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(patience).map_err(|_| Errno::INVAL)?;
        let mut fds = vec![
            watched(self.netlink.as_fd()),
            watched(self.nft.as_fd()),
            watched(self.run.as_fd()),
            watched(self.bell.0.as_fd()),
        ];
        fds.extend(self.installed.as_ref().map(|watch| watched(watch.as_fd())));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Only the bell is heard.
    fn rest(&self) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: REST.subsec_nanos().into() };
        // Whatever it says, the next thing is to look.
        let _ = poll(&mut [watched(self.bell.0.as_fd())], Some(&timeout));
    }

    /// Reads what there is to read, and decides what it asks for.
    fn collect(&mut self) -> Result<(), LockError> {
        match self.netlink.read() {
            Ok(news) => {
                let bridges = self.bridges();
                let known = Known { bridges: &bridges, deleted_here: &netlink::was_deleted_here };
                for depth in hints::depths(&news, &known) {
                    self.parts.work.resident().forget_bridges();
                    self.soon(depth, false);
                }
            }
            Err(error) => warn!("cannot read the kernel's news: {error}"),
        }
        match self.nft.read() {
            Ok(change) if change.is_nothing() => {}
            Ok(change) => self.soon(Depth::Node, change.foreign),
            Err(error) => warn!("cannot read the firewall's news: {error}"),
        }
        let mut rings = [0; 8];
        if rustix::io::read(&*self.bell.0, &mut rings).is_ok() {
            self.soon(Depth::Node, false);
        }
        if self.run.changed().unwrap_or(true) {
            self.look_at_run_folder()?;
        }
        if self.installed.as_mut().is_some_and(|watch| watch.changed().unwrap_or(true)) {
            self.install();
        }
        Ok(())
    }

    /// A round a moment from now, unless one is to come anyway. A deep one is never drawn forward by a shallow one: the
    /// kernel may say of thousands of pods at once that they go.
    fn soon(&mut self, depth: Depth, foreign: bool) {
        let pause = match depth {
            Depth::Node => PAUSE,
            Depth::Pods => DEEP_PAUSE,
        };
        let at = Instant::now() + pause;
        let waiting = self.due[depth as usize].get_or_insert(Due { at, depth, foreign, timer: false });
        waiting.foreign |= foreign;
    }

    fn bridges(&self) -> Vec<IfName> {
        let mut bridges: Vec<IfName> = self.memory.iter().map(|a| a.bridge.clone()).collect();
        bridges.push(self.parts.config.network.bridge.clone());
        bridges.sort();
        bridges.dedup();
        bridges
    }

    /// Somebody removed the socket, the lock or the whole folder, or left a tombstone.
    fn look_at_run_folder(&mut self) -> Result<(), LockError> {
        self.keep_lock()?;
        // It is made anew by the server, which says so.
        self.parts.socket.look();
        if !self.parts.config.run_dir.join("networks").exists() {
            self.soon(Depth::Node, false);
        }
        self.run.renew();
        self.parts.work.drain_tombstones();
        Ok(())
    }

    fn keep_lock(&mut self) -> Result<(), LockError> {
        if !self.parts.lock.is_lost() {
            return Ok(());
        }
        let run_dir = &self.parts.config.run_dir;
        match Lock::take(run_dir) {
            Ok(lock) => {
                warn!("{} was removed and is made anew", run_dir.display());
                self.parts.lock = lock;
            }
            // A folder that was moved away and back is held by ourselves.
            Err(error @ LockError::Taken { .. }) if self.parts.lock.is_lost() => {
                error!("{} was removed, and is no longer ours: {error}", run_dir.display());
                return Err(error);
            }
            Err(error) => error!("{error}"),
        }
        self.soon(Depth::Node, false);
        Ok(())
    }

    fn round(&mut self, due: Due) {
        let started = Instant::now();
        self.parts.board.round_begins();
        self.parts.work.drain_tombstones();
        let config = &self.parts.config;
        let share = self.parts.shares.get();
        let order = Order {
            run_dir: &config.run_dir,
            network: share.as_ref().ok().map(|share| (&config.network.name, &share.conf)),
            depth: due.depth,
            memory: &self.memory,
            resident: Some(self.parts.work.resident()),
        };
        let outcome = reconcile::reconcile(order);
        let took = started.elapsed();
        if due.timer
            && let Err(error) = reconcile::forget_flows(&order)
        {
            let error: cni::Error = error.into();
            warn!("flows of pods that are gone could not be removed: {error}");
        }
        if due.foreign {
            self.look_at_others();
        }
        self.parts.metrics.reconciled(took);
        match outcome {
            Ok(outcome) => {
                let first = !self.was_ready;
                self.done(outcome, took, share.as_deref());
                if first || due.timer || self.parts.installer.as_ref().is_some_and(|i| i.has_news()) {
                    self.install();
                }
            }
            Err(error) => {
                let serves = self.was_ready && !is_of_state(&error);
                let error: cni::Error = error.into();
                if serves {
                    // Under churn the kernel may not manage to list its links in one go. Pods can be served all the same.
                    warn!("could not look at everything, and tries again: {error}");
                } else {
                    error!("reconcile failed: {error}");
                    self.parts.board.set_not_ready(error.to_string());
                }
                self.again();
            }
        }
        memory::give_back();
        self.run.renew();
        self.parts.board.round_ends(self.parts.config.reconcile);
        // While events keep coming, most of the time belongs to the pods.
        for due in self.due.iter_mut().flatten() {
            due.at = due.at.max(Instant::now() + (took * SHARE).min(LONGEST_PAUSE));
        }
    }

    fn done(&mut self, outcome: Outcome, took: Duration, share: Result<&Share, &String>) {
        for repair in &outcome.repairs {
            info!(kind = repair.kind.as_str(), "repaired: {}", repair.what);
            self.parts.metrics.repaired(repair.kind.as_str(), 1);
        }
        let repairs: Vec<String> = outcome.repairs.iter().map(|repair| repair.what.clone()).collect();
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.parts.board.reconciled(took_ms, &repairs);
        debug!("reconciled {} attachments in {took_ms} ms", outcome.attachments.len());
        self.memory = outcome.attachments;
        let lacks_bridge = self.lacks_bridge(&outcome.troubles);
        let problems: Vec<Problem> = outcome.troubles.into_iter().map(problem).collect();
        let known = self.parts.board.problems();
        for new in problems.iter().filter(|problem| !known.contains(problem)) {
            warn!("{}", new.what);
        }
        self.parts.board.set_problems(Finder::Keeper, problems);
        let share = match share {
            Ok(share) => share,
            // Pods that run are looked after; new ones need a block, and are told so.
            Err(reason) => {
                self.parts.board.set_not_ready(reason.clone());
                self.works(&format!("STATUS=no pods yet: {reason}"));
                return;
            }
        };
        self.grow(share);
        self.tell_firewall_of_tunnels();
        if let Some(reason) = lacks_bridge {
            // Somebody may just have removed it, or the kernel is busy: what worked before may fail once or twice.
            let since = *self.bridgeless.get_or_insert_with(Instant::now);
            if !self.was_ready || since.elapsed() >= RETRY {
                self.works(&format!("STATUS=no pods: {reason}"));
                self.parts.board.set_not_ready(reason);
            }
            self.again();
            return;
        }
        self.bridgeless = None;
        self.parts.board.set_ready();
        if !self.was_ready {
            self.was_ready = true;
            let since = self.parts.begun.elapsed();
            info!("ready after {} ms with {} attachments", since.as_millis(), self.memory.len());
        }
        self.works("STATUS=ready");
    }

    /// Everything is looked at once more, soon.
    fn again(&mut self) {
        let again = Due { at: Instant::now() + RETRY, depth: Depth::Pods, foreign: false, timer: false };
        self.due[Depth::Pods as usize].get_or_insert(again);
    }

    /// Why no pod can have its gateway: a round that had trouble left our network without its bridge. Whatever else was
    /// troublesome, and a kernel that does not say, is no reason to refuse pods.
    fn lacks_bridge(&self, troubles: &[Trouble]) -> Option<String> {
        let name = &self.parts.config.network.bridge;
        let about = format!("bridge {name}: ");
        let trouble = troubles.iter().find(|trouble| trouble.what.starts_with(&about))?;
        let found = netlink::RtSocket::open().and_then(|mut host| host.link(name));
        let is_there = found.map_or(true, |link| link.is_some_and(|it| it.kind.as_deref() == Some("bridge")));
        (!is_there).then(|| trouble.what.clone())
    }

    /// The service manager waits for this. It comes with the first round also where there is no block yet: what waits for the
    /// agent is held up no longer, and a node that boots without its store is not restarted over and over.
    fn works(&mut self, status: &str) {
        if self.told.as_deref() != Some(status) {
            notify::notify(&format!("READY=1\n{status}"));
            self.told = Some(status.to_owned());
        }
    }

    /// What leaves by a tunnel must fit: the firewall sees to it, and may have been flushed.
    fn tell_firewall_of_tunnels(&mut self) {
        let tunnels = self.parts.shares.tunnels();
        if tunnels.is_empty() && self.tunnels.is_empty() {
            return;
        }
        let ours = &self.tunnels;
        match nft::Firewall::open().and_then(|mut firewall| firewall.set_tunnels(ours, &tunnels)) {
            Ok(done) => {
                done.iter().for_each(|what| info!("{what}"));
                self.tunnels = tunnels;
            }
            Err(error) => warn!("the firewall cannot be told of tunnels: {error}"),
        }
    }

    /// Asks for another block before one is full, so that no pod has to wait for it.
    fn grow(&self, share: &Share) {
        let Some(cluster) = &self.parts.cluster else { return };
        let used: Vec<IpAddr> =
            self.memory.iter().flat_map(|a| &a.addresses).map(|a| a.address.addr()).collect();
        for room in share.rooms() {
            let free = room.capacity.saturating_sub(used.iter().filter(|ip| room.has(**ip)).count() as u64);
            if free < FEW.min(room.capacity / 4) {
                cluster.want_more(room.blocks[0]);
            }
        }
    }

    /// Only when pods can be served: a runtime that finds a config sends pods.
    fn install(&mut self) {
        let Some(installer) = self.parts.installer.as_ref().filter(|_| self.was_ready) else { return };
        match installer.keep() {
            Ok(kept) => {
                kept.done.iter().for_each(|what| info!("{what}"));
                self.install_error = None;
                self.parts.board.set_installed(kept.files);
            }
            Err(error) => {
                let error = error.to_string();
                if self.install_error.as_ref() != Some(&error) {
                    error!("{error}");
                }
                self.install_error = Some(error);
                self.parts.board.set_installed(installer.check());
            }
        }
    }
}

/// Is it the folder of our records that cannot be used? Without it no pod can be served.
fn is_of_state(error: &engine::Error) -> bool {
    match error {
        engine::Error::State(StateError::Busy { .. }) => false,
        engine::Error::State(_) => true,
        _ => false,
    }
}

fn watched(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

fn problem(trouble: Trouble) -> Problem {
    Problem { what: trouble.what, command: trouble.command }
}
