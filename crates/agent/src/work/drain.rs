//! Serves tombstones before an ADD or GC. An ADD fails if the tombstone of its own attachment cannot be served.
//!
//! A tombstone cancels the request that is working on its attachment. Only an ADD of the same attachment waits for the end of
//! that request. For other requests the tombstone stays, and the cancelled request serves it at its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Tombstone;
use cni::Error;
use engine::{Caller, Delegates, Wait};
use types::AttachmentKey;

use super::attachment_queues::RequestPurpose;
use super::{TIMEOUT, Work, attachment_of, try_again, uses_addresses_of};
use crate::conditions::Source;
use crate::log::{self, RequestOutcome, RequestSubject};
use crate::tombstones::{DrainReport, DrainScope, TombstoneOutcome};

/// For callers that try again later if the attachment is busy.
pub(super) const NO_WAIT: Duration = Duration::ZERO;
/// The stack of a worker.
const STACK: usize = 256 << 10;

impl Work {
    /// Serves all tombstones. Called at the start and by each round.
    pub(crate) fn drain_tombstones(self: &Arc<Self>) -> DrainReport {
        let report = self.drain.round(&|| self.start_round(DrainScope::All));
        self.agent_status.set(Source::Tombstones, self.drain.findings());
        report.unwrap_or_else(|timeout| DrainReport {
            failed: vec![timeout.to_string()],
            ..DrainReport::default()
        })
    }

    /// Called before something new is created. Fails if the tombstone of this attachment cannot be drained.
    pub(super) fn drain_before(self: &Arc<Self>, key: Option<&AttachmentKey>) -> Result<(), Error> {
        let Some(report) = self
            .drain
            .drain_all(&|| self.start_round(DrainScope::SkipRecentlyFailed))
            .map_err(|timeout| try_again(timeout.to_string()))?
        else {
            return Ok(());
        };
        if report != DrainReport::default() {
            self.agent_status.set(Source::Tombstones, self.drain.findings());
        }
        let Some(key) = key else { return Ok(()) };
        // The request needs its own tombstone to be served, so it waits.
        self.drain_key(key, TIMEOUT);
        match self.drain.blocked_reason(key) {
            Some(reason) => Err(try_again(format!("cannot create {key} now: {reason}"))),
            None => Ok(()),
        }
    }

    /// Uses a separate thread, so that a hanging IPAM plugin of a stored DEL blocks neither a worker nor the reconciler.
    fn start_round(self: &Arc<Self>, scope: DrainScope) {
        let work = Arc::clone(self);
        let run = move || work.drain.run(scope, &|tombstone| work.serve_tombstone(tombstone, NO_WAIT));
        let thread = std::thread::Builder::new().name("tombstones".to_owned()).stack_size(STACK);
        if let Err(error) = thread.spawn(run) {
            tracing::warn!(%error, "cannot start the tombstone thread; serving tombstones on the calling thread");
            self.drain.run(scope, &|tombstone| self.serve_tombstone(tombstone, NO_WAIT));
        }
    }

    /// Serves the tombstone of this attachment.
    pub(super) fn drain_key(&self, key: &AttachmentKey, timeout: Duration) {
        let report = self.drain.drain_key(key, &|tombstone| self.serve_tombstone(tombstone, timeout));
        if report != DrainReport::default() {
            self.agent_status.set(Source::Tombstones, self.drain.findings());
        }
    }

    /// Serves a tombstone's DEL. Keeps the attachment's slot until the tombstone is removed. Otherwise an ADD that still finds
    /// the tombstone would take it for a newer DEL. A running ADD of the attachment is cancelled, and awaited for up to
    /// `timeout`.
    fn serve_tombstone(&self, tombstone: &Tombstone, timeout: Duration) -> TombstoneOutcome {
        let call = match &tombstone.call {
            Ok(call) => call,
            Err(error) => return TombstoneOutcome::Invalid(format!("it cannot be read: {error}")),
        };
        let request = match Self::parse(call.clone()) {
            Ok(request) => request,
            Err(failure) => return TombstoneOutcome::Invalid(format!("it cannot be served: {failure}")),
        };
        let Some((key, RequestPurpose::Del)) = attachment_of(&request) else {
            return TombstoneOutcome::Invalid("it is not a DEL".to_owned());
        };
        let started = Instant::now();
        let slot = self.attachment_queues.join_first(key);
        if slot.wait(timeout).is_err() {
            return TombstoneOutcome::Pending;
        }
        // Another thread served it meanwhile. The attachment that exists now may be new.
        if matches!(tombstone.path.try_exists(), Ok(false)) {
            return TombstoneOutcome::AlreadyServed;
        }
        let allocation = self.allocations.get();
        let caller = Caller {
            request: Some(&call.request_id),
            cancelled: &|| false,
            wait: Wait::UntilLinkRemoved,
            kernel_cache: Some(&self.kernel_cache),
            delegates: Delegates::Allowed(&self.delegates),
            networks: Some(self.networks(&allocation, None)),
            policies: Some(&*self.policies),
            warn: &log::engine_warning,
        };
        let outcome = (self.serve)(&request, &caller);
        if uses_addresses_of(&request, &self.network) {
            self.check_addresses(&outcome);
        }
        match &outcome {
            Ok(done) => {
                self.metrics.drained_tombstone();
                let outcome = RequestOutcome::Ok { addresses: &done.addresses, collected: None };
                let subject = RequestSubject::of(&request, &call.request_id).via_tombstone();
                self.report(&subject, &outcome, started.elapsed());
            }
            // The condition is logged.
            Err(error) => {
                self.metrics.request("DEL", RequestOutcome::Failed(error).word(), started.elapsed());
            }
        }
        match outcome.map(|_| self.drain.tombstone_files().remove(tombstone)) {
            Ok(Ok(())) => TombstoneOutcome::Served,
            Ok(Err(error)) => TombstoneOutcome::Failed(error.to_string()),
            Err(error) => TombstoneOutcome::Failed(error.to_string()),
        }
    }
}
