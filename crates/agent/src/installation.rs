//! Plugin and CNI config in the runtime's directories, on a thread of its own: a slow disk delays no repair of routes or tables.
//!
//! ```text
//! reconciler: pods can be served ─┐
//! allocation: blocks, MTU ────────┼─► installation thread ─► files, conditions
//! inotify, timer ─────────────────┘
//! ```

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use install::runtimes::{Runtimes, config_times};
use install::{InstallError, Installer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::{error, info};
use types::Severity;

use crate::agent_status::{AgentStatus, WatchedThread};
use crate::allocation::NodeAllocations;
use crate::conditions::Source;
use crate::reconciler::ReconcileRequests;
use crate::thread::StopFlag;
use crate::waker::{Slot, Waker};
use config::Config;

/// How often the configuration of runtimes is polled. It takes some stat calls.
const POLL: Duration = Duration::from_secs(1);
/// After files were checked, they are left alone for so long: a program may change them all the time.
const REST: Duration = Duration::from_millis(40);
/// How soon a wait that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Whether files may be installed: a runtime that finds a config sends pods, so pods must be served first.
#[derive(Debug)]
pub(crate) struct InstallState {
    /// The number of attachments when pods could be served for the first time.
    served: Slot<Option<usize>>,
    was_tried: AtomicBool,
}

impl InstallState {
    /// `waker` wakes the installation thread.
    pub(crate) fn new(waker: &Waker) -> Self {
        Self { served: Slot::new(None, vec![waker.clone()]), was_tried: AtomicBool::new(false) }
    }

    /// Pods are served from now on.
    pub(crate) fn allow(&self, attachments: usize) {
        self.served.set(Some(attachments));
    }

    /// Whether the files were installed, or could not be.
    pub(crate) fn was_tried(&self) -> bool {
        self.was_tried.load(Ordering::Acquire)
    }
}

/// What the installation thread works with.
pub(crate) struct InstallationParts {
    pub(crate) config: Arc<Config>,
    pub(crate) installer: Arc<Installer>,
    pub(crate) state: Arc<InstallState>,
    pub(crate) allocations: Arc<NodeAllocations>,
    pub(crate) agent_status: Arc<AgentStatus>,
    pub(crate) reconciler: ReconcileRequests,
    pub(crate) waker: Waker,
    /// When the agent started.
    pub(crate) begun: Instant,
}

pub(crate) struct Installation {
    parts: InstallationParts,
    watch: install::FileWatch,
    /// When the files are checked without an event.
    timer: Instant,
    poll_at: Instant,
    /// The configuration of runtimes, as it was polled last.
    runtimes: Option<Vec<(PathBuf, SystemTime)>>,
    was_installed: bool,
    /// No runtime that uses the installed config finds its plugins.
    lacks_plugins: bool,
}

impl Installation {
    pub(crate) fn new(parts: InstallationParts) -> Result<Self, InstallError> {
        let now = Instant::now();
        Ok(Self {
            watch: install::FileWatch::new(&parts.installer)?,
            parts,
            timer: now,
            poll_at: now,
            runtimes: None,
            was_installed: false,
            lacks_plugins: false,
        })
    }

    pub(crate) fn run(mut self, stop: &StopFlag) {
        // Of this thread alone: pods that wait come first. Where it is not allowed, the priority stays.
        let _ = rustix::process::setpriority_process(None, 5);
        loop {
            self.parts.waker.clear();
            if stop.is_set() {
                return;
            }
            let served = self.parts.state.served.get();
            if let Some(attachments) = served {
                self.parts.agent_status.busy_since(WatchedThread::Installation, Instant::now());
                self.check(attachments);
                self.parts.agent_status.idle(WatchedThread::Installation);
                self.wait(&[PollFd::new(&self.parts.waker, PollFlags::IN)], REST);
            }
            let mut fds = vec![PollFd::new(&self.parts.waker, PollFlags::IN)];
            let mut timeout = self.parts.config.reconcile;
            if served.is_some() {
                fds.push(PollFd::from_borrowed_fd(self.watch.as_fd(), PollFlags::IN));
                timeout = self.timer.min(self.poll_at).saturating_duration_since(Instant::now());
            }
            self.wait(&fds, timeout);
        }
    }

    fn wait(&self, fds: &[PollFd<'_>], timeout: Duration) {
        let mut fds = fds.to_vec();
        let waited = Timespec::try_from(timeout).map_err(|_| Errno::INVAL);
        match waited.and_then(|timeout| poll(&mut fds, Some(&timeout))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                error!(error = %errno, "the installation thread cannot wait for events");
                std::thread::sleep(RETRY);
            }
        }
    }

    /// Installs what is missing or differs, if there is a reason to check.
    fn check(&mut self, attachments: usize) {
        let now = Instant::now();
        let is_time = self.timer <= now;
        if is_time {
            self.timer = now + self.parts.config.reconcile;
        }
        let is_polled = self.poll_at <= now;
        let has_other_runtimes = is_polled && self.poll_runtimes(now);
        let is_touched = self.watch.changed().unwrap_or(true);
        if let Ok(network) = self.parts.allocations.default_network() {
            self.parts.installer.set_network(network);
        }
        let is_stale = self.parts.installer.has_events();
        if is_time || has_other_runtimes || is_touched || is_stale || !self.parts.state.was_tried() {
            self.install(attachments);
        } else if is_polled && self.lacks_plugins {
            // The operator waits for the next check.
            self.check_plugins();
        }
    }

    /// Whether the configuration of a runtime changed.
    fn poll_runtimes(&mut self, now: Instant) -> bool {
        self.poll_at = now + POLL;
        let times = config_times(Path::new("/"));
        let before = self.runtimes.replace(times);
        before.is_some() && before != self.runtimes
    }

    fn install(&mut self, attachments: usize) {
        let InstallationParts { installer, agent_status, .. } = &self.parts;
        match installer.keep() {
            Ok(kept) => {
                kept.done.iter().for_each(|what| info!("{what}"));
                agent_status.set_installed(kept.files);
                if !std::mem::replace(&mut self.was_installed, true) {
                    announce(self.parts.begun, attachments);
                }
                agent_status.set(Source::Install, Vec::new());
                self.check_plugins();
            }
            Err(error) => {
                agent_status.set(Source::Install, vec![installer.incomplete(&error)]);
                agent_status.set_installed(installer.check());
            }
        }
        if !self.parts.state.was_tried.swap(true, Ordering::AcqRel) {
            // Ready means that the files are in place. The reconciler notifies the service manager.
            self.parts.agent_status.set_started();
            self.parts.reconciler.request_round();
        }
    }

    /// Whether the runtimes that use the installed config find the plugin. Their configuration may change at any time.
    fn check_plugins(&mut self) {
        let config = &self.parts.config;
        let Some(install) = &config.install else { return };
        let plugin = install.plugin_dir.join(&config.plugin.name);
        let lost = Runtimes::detect(Path::new("/")).findings(&install.config_dir, &plugin);
        self.lacks_plugins = lost.iter().any(|found| found.severity == Severity::NotReady);
        self.parts.agent_status.set(Source::Runtimes, lost);
    }
}

/// Logged before it is ready: a client that finds it ready finds it in the log.
pub(crate) fn announce(begun: Instant, attachments: usize) {
    info!("ready after {} ms with {attachments} attachments", begun.elapsed().as_millis());
}
