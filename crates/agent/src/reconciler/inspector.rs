//! The inspector: one thread that enters the namespaces of all pods, repairs drift inside and reports other changes. A namespace
//! that blocks, or thousands of them, delay neither rounds of the node nor routes.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::reconcile::{self, ReconcileRequest};
use rustix::event::{Timespec, poll};
use rustix::io::Errno;
use tracing::{error, info};
use types::{Code, Finding};

use super::{RETRY, lower_priority, watched};
use crate::agent_status::{AgentStatus, WatchedThread};
use crate::allocation::NodeAllocations;
use crate::conditions::Source;
use crate::metrics::Metrics;
use crate::thread::StopFlag;
use crate::waker::Waker;
use crate::work::Work;
use crate::{lock, log, memory};
use config::Config;

/// An inspection begins this long after an event, because it is expensive and every DEL causes such events. It is short enough
/// for a repair within a second.
const PAUSE: Duration = Duration::from_millis(600);

pub(crate) struct Inspector {
    pub(crate) config: Arc<Config>,
    pub(crate) allocations: Arc<NodeAllocations>,
    pub(crate) agent_status: Arc<AgentStatus>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) work: Arc<Work>,
    /// The reconciler wakes it after events inside pods, and after each round of its timer.
    pub(crate) waker: Waker,
}

impl Inspector {
    pub(crate) fn run(self, stop: &StopFlag) {
        lower_priority();
        // The first inspection does not wait for an event: pods may have changed while no agent was running.
        let mut due = Some(Instant::now());
        let mut found = Vec::new();
        loop {
            let is_woken = self.wait(due).unwrap_or_else(|errno| {
                error!(error = %errno, "the inspector cannot wait for events");
                std::thread::sleep(RETRY);
                true
            });
            self.waker.clear();
            if stop.is_set() {
                return;
            }
            if is_woken {
                due.get_or_insert_with(|| Instant::now() + PAUSE);
            }
            if due.take_if(|due| *due <= Instant::now()).is_some() {
                self.agent_status.busy_since(WatchedThread::Inspector, Instant::now());
                due = (!self.inspect(&mut found, stop)).then(|| Instant::now() + RETRY);
                self.agent_status.idle(WatchedThread::Inspector);
                memory::release_free_memory();
            }
        }
    }

    /// Waits until the thread is woken or an inspection is due. Returns whether it was woken.
    fn wait(&self, due: Option<Instant>) -> Result<bool, Errno> {
        let pause = due.map(|due| due.saturating_duration_since(Instant::now()));
        let timeout = pause.map(Timespec::try_from).transpose().map_err(|_| Errno::INVAL)?;
        match poll(&mut [watched(self.waker.as_fd())], timeout.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Returns whether all pods could be inspected. `found` are the findings of the last inspection, which last if this one fails or is
    /// cancelled by `stop`.
    fn inspect(&self, found: &mut Vec<Finding>, stop: &StopFlag) -> bool {
        let config = &self.config;
        let network = self.allocations.default_network().ok();
        let mut has_locked_records = false;
        let request = ReconcileRequest {
            run_dir: &config.run_dir,
            network: network.as_ref().map(|network| (&config.network.name, network.conf())),
            other_networks: &[],
            mode: None,
            earlier_records: &[],
            kernel_cache: Some(self.work.kernel_cache()),
            policies: Some(self.work.policies()),
            is_only_agent: || lock::agents_here().is_ok_and(|all| all.len() <= 1),
            warn: log::engine_warning,
        };
        let outcome = reconcile::inspect_pods(request, &|| stop.is_set());
        let inspected = outcome.map(|outcome| {
            has_locked_records = outcome.has_locked_records;
            let repairs: Vec<String> = outcome.repairs.iter().map(|repair| repair.message.clone()).collect();
            for repair in &outcome.repairs {
                info!(kind = repair.kind.as_str(), "repaired: {}", repair.message);
                self.metrics.repaired(repair.kind.as_str(), 1);
            }
            self.agent_status.repaired(repairs.len() as u64, &repairs);
            *found = outcome.findings;
        });
        if stop.is_set() {
            return false;
        }
        let failed = inspected.err().map(|error| reconcile::failure(error, &config.run_dir).degraded());
        let is_inspected = failed.is_none() && !has_locked_records;
        let findings = found.iter().cloned().chain(failed).chain(self.report_orphans());
        self.agent_status.set(Source::Pods, findings.collect());
        is_inspected
    }

    /// Elements of removed pods stay in the firewall until the operator removes them. Elements that a running pod should not have are
    /// removed by a round, and reported while that fails. Returns why they could not be listed.
    fn report_orphans(&self) -> Option<Finding> {
        match engine::firewall_orphans(&self.config.run_dir) {
            Ok(orphans) => {
                self.agent_status.set(Source::Elements, orphans.into_iter().collect());
                None
            }
            Err(error) => {
                let message = format!("cannot list orphaned firewall elements: {}", cni::Error::from(error));
                Some(Finding::new(Code::RepairFailed, "elements orphaned", message))
            }
        }
    }
}
