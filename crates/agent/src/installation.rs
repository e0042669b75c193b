//! Installs plugin and CNI config in the runtime's directories. Runs on its own thread, so that a slow disk delays no repair of
//! routes or tables.
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
/// Pause after each check, because a program may change the files continuously.
const PAUSE: Duration = Duration::from_millis(40);
/// Delay after a failed poll(2).
const RETRY: Duration = Duration::from_secs(1);

/// Whether files may be installed. A runtime that finds a config sends pods, so the agent must be able to serve pods first.
#[derive(Debug)]
pub(crate) struct InstallState {
    /// The number of attachments when pods could first be served.
    served: Slot<Option<usize>>,
    was_tried: AtomicBool,
}

impl InstallState {
    /// `waker` wakes the installation thread.
    pub(crate) fn new(waker: &Waker) -> Self {
        Self { served: Slot::new(None, vec![waker.clone()]), was_tried: AtomicBool::new(false) }
    }

    /// The agent serves pods from now on.
    pub(crate) fn allow(&self, attachments: usize) {
        self.served.set(Some(attachments));
    }

    /// Whether the first attempt to install the files is over.
    pub(crate) fn was_tried(&self) -> bool {
        self.was_tried.load(Ordering::Acquire)
    }
}

pub(crate) struct InstallationParts {
    pub(crate) config: Arc<Config>,
    pub(crate) installer: Arc<Installer>,
    pub(crate) state: Arc<InstallState>,
    pub(crate) allocations: Arc<NodeAllocations>,
    pub(crate) agent_status: Arc<AgentStatus>,
    pub(crate) reconciler: ReconcileRequests,
    pub(crate) waker: Waker,
    /// When the agent started.
    pub(crate) started: Instant,
}

pub(crate) struct Installation {
    parts: InstallationParts,
    watch: install::FileWatch,
    /// When the files are checked next without an event.
    timer: Instant,
    poll_at: Instant,
    /// Modification times of the runtimes' configuration at the last poll.
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
        // Only for this thread: waiting pods have priority. Without permission the priority is unchanged.
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
                self.wait(&[PollFd::new(&self.parts.waker, PollFlags::IN)], PAUSE);
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
                error!(error = %errno, "poll failed in the installation thread; retrying");
                std::thread::sleep(RETRY);
            }
        }
    }

    /// Installs missing or changed files, if there is a reason to check.
    fn check(&mut self, attachments: usize) {
        let now = Instant::now();
        let is_due = self.timer <= now;
        if is_due {
            self.timer = now + self.parts.config.reconcile;
        }
        let is_polled = self.poll_at <= now;
        let runtimes_changed = is_polled && self.poll_runtimes(now);
        let files_changed = self.watch.changed().unwrap_or(true);
        if let Ok(network) = self.parts.allocations.default_network() {
            self.parts.installer.set_network(network);
        }
        let is_stale = self.parts.installer.has_changes();
        if is_due || runtimes_changed || files_changed || is_stale || !self.parts.state.was_tried() {
            self.install(attachments);
        } else if is_polled && self.lacks_plugins {
            // Checked on each poll, so that a fix of the operator takes effect soon.
            self.check_plugins();
        }
    }

    /// Returns whether the configuration of a runtime changed since the last poll.
    fn poll_runtimes(&mut self, now: Instant) -> bool {
        self.poll_at = now + POLL;
        let times = config_times(Path::new("/"));
        let before = self.runtimes.replace(times);
        before.is_some() && before != self.runtimes
    }

    fn install(&mut self, attachments: usize) {
        let InstallationParts { installer, agent_status, .. } = &self.parts;
        match installer.reconcile() {
            Ok(installed) => {
                installed.done.iter().for_each(|change| info!("{change}"));
                agent_status.set_installed(installed.files);
                if !std::mem::replace(&mut self.was_installed, true) {
                    announce(self.parts.started, attachments);
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
            // Ready means that the files are installed. The reconciler notifies the service manager.
            self.parts.agent_status.set_started();
            self.parts.reconciler.request_round();
        }
    }

    /// Checks that the runtimes that use the installed config find the plugin. Their configuration may change at any time.
    fn check_plugins(&mut self) {
        let config = &self.parts.config;
        let Some(install) = &config.install else { return };
        let plugin = install.plugin_dir.join(&config.plugin.name);
        let findings = Runtimes::detect(Path::new("/")).findings(&install.config_dir, &plugin);
        self.lacks_plugins = findings.iter().any(|finding| finding.severity == Severity::NotReady);
        self.parts.agent_status.set(Source::Runtimes, findings);
    }
}

/// Called before the agent is reported as ready, so that a client that finds it ready finds this line in the log.
pub(crate) fn announce(started: Instant, attachments: usize) {
    info!("ready after {} ms with {attachments} attachments", started.elapsed().as_millis());
}
