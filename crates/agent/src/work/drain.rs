//! Which tombstones are served when: all of them before something new is made, and one's own before all.
//!
//! Who works on an attachment is cancelled by its tombstone, but only an ADD of the same one waits for its end. For all
//! others it stays where it is, and the one who was in its way serves it at last.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Tombstone;
use cni::Error;
use engine::{Caller, Delegates, Wait};
use types::AttachmentKey;

use super::turns::RequestPurpose;
use super::{TIMEOUT, Work, is_of_addresses, keyed, try_again};
use crate::conditions::Source;
use crate::log::{self, RequestOutcome, RequestSubject};
use crate::tombstones::{Buried, DrainReport, DrainScope};

/// For those who come another time if it is not their turn.
pub(super) const AT_ONCE: Duration = Duration::ZERO;
/// As much as a worker has.
const STACK: usize = 256 << 10;

impl Work {
    /// Serves all tombstones; for the start, and for whoever looks after things from time to time.
    pub(crate) fn drain_tombstones(self: &Arc<Self>) -> DrainReport {
        let report = self.drain.round(&|| self.start_round(DrainScope::All));
        self.agent_status.set(Source::Tombstones, self.drain.findings());
        report.unwrap_or_else(|undrained| DrainReport {
            failed: vec![undrained.to_string()],
            ..DrainReport::default()
        })
    }

    /// Before something new is made. For an attachment whose own tombstone cannot be drained, that is an error.
    pub(super) fn drain_before(self: &Arc<Self>, key: Option<&AttachmentKey>) -> Result<(), Error> {
        let Some(report) = self
            .drain
            .pass(&|| self.start_round(DrainScope::Rested))
            .map_err(|undrained| try_again(undrained.to_string()))?
        else {
            return Ok(());
        };
        if report != DrainReport::default() {
            self.agent_status.set(Source::Tombstones, self.drain.findings());
        }
        let Some(key) = key else { return Ok(()) };
        // Its own one is worth waiting for.
        self.drain_key(key, TIMEOUT);
        match self.drain.obstacle(key) {
            Some(why) => Err(try_again(format!("{key} cannot be made now: {why}"))),
            None => Ok(()),
        }
    }

    /// On a thread of its own: neither a worker nor the reconciler is held by an IPAM plugin that hangs in somebody's DEL.
    fn start_round(self: &Arc<Self>, which: DrainScope) {
        let work = Arc::clone(self);
        let run = move || work.drain.run(which, &|tombstone| work.bury(tombstone, AT_ONCE));
        let thread = std::thread::Builder::new().name("tombstones".to_owned()).stack_size(STACK);
        if let Err(error) = thread.spawn(run) {
            tracing::warn!("cannot start a thread for tombstones: {error}");
            self.drain.run(which, &|tombstone| self.bury(tombstone, AT_ONCE));
        }
    }

    /// What was left for this key.
    pub(super) fn drain_key(&self, key: &AttachmentKey, timeout: Duration) {
        let report = self.drain.one(key, &|tombstone| self.bury(tombstone, timeout));
        if report != DrainReport::default() {
            self.agent_status.set(Source::Tombstones, self.drain.findings());
        }
    }

    /// Serves a tombstone's DEL. Its turn lasts until it is taken away: an ADD that saw it then would think that it was
    /// left for it. Who works on the attachment is cancelled, and waited for as long as the caller likes.
    fn bury(&self, tombstone: &Tombstone, timeout: Duration) -> Buried {
        let call = match &tombstone.call {
            Ok(call) => call,
            Err(error) => return Buried::Senseless(format!("it cannot be read: {error}")),
        };
        let request = match Self::parse(call.clone()) {
            Ok(request) => request,
            Err(failure) => return Buried::Senseless(format!("it cannot be served: {failure}")),
        };
        let Some((key, RequestPurpose::Del)) = keyed(&request) else {
            return Buried::Senseless("it is not a DEL".to_owned());
        };
        let started = Instant::now();
        let turn = self.turns.cut_in(key);
        if turn.begin(timeout).is_err() {
            return Buried::Pending;
        }
        // Served by another one meanwhile: what is there now may be new.
        if matches!(tombstone.path.try_exists(), Ok(false)) {
            return Buried::Gone;
        }
        let allocation = self.allocations.get();
        let caller = Caller {
            request: Some(&call.request_id),
            cancelled: &|| false,
            wait: Wait::UntilGone,
            kernel_cache: Some(&self.kernel_cache),
            delegates: Delegates::Allowed(&self.delegates),
            networks: Some(self.networks(&allocation)),
            warn: &log::engine_warning,
        };
        let outcome = (self.serve)(&request, &caller);
        if is_of_addresses(&request, &self.network) {
            self.check_addresses(&outcome);
        }
        match &outcome {
            Ok(done) => {
                self.metrics.drained_tombstone();
                let ending = RequestOutcome::Ok { addresses: &done.addresses, collected: None };
                let subject = RequestSubject::of(&request, &call.request_id).via_tombstone();
                self.tell(&subject, &ending, started.elapsed());
            }
            // The condition logs it.
            Err(error) => {
                self.metrics.request("DEL", RequestOutcome::Failed(error).word(), started.elapsed());
            }
        }
        match outcome.map(|_| self.drain.tombstone_files().remove(tombstone)) {
            Ok(Ok(())) => Buried::Done,
            Ok(Err(error)) => Buried::Failed(error.to_string()),
            Err(error) => Buried::Failed(error.to_string()),
        }
    }
}
