//! Requests of other threads to reconcile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::waker::Waker;

/// Wakes the reconciler with a reason.
#[derive(Debug, Clone)]
pub(crate) struct ReconcileRequests {
    flags: Arc<RequestFlags>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct RequestFlags {
    round: AtomicBool,
    fault: AtomicBool,
    stop: AtomicBool,
}

/// The requests since the last call of [`ReconcileRequests::take`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Requested {
    pub(crate) round: bool,
    pub(crate) fault: bool,
}

impl ReconcileRequests {
    /// `waker` wakes the reconciler.
    pub(crate) fn new(waker: Waker) -> Self {
        Self { flags: Arc::default(), waker }
    }

    /// For components that wake the reconciler after they set a slot that it reads.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(crate) fn request_round(&self) {
        self.set(&self.flags.round);
    }

    /// An ADD or STATUS failed: the node may have a fault that the reconciler does not know yet.
    pub(crate) fn report_fault(&self) {
        self.set(&self.flags.fault);
    }

    /// Requests the end of the thread. A running round is finished first.
    pub(crate) fn stop(&self) {
        self.set(&self.flags.stop);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.flags.stop.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Requested {
        // First, so that later requests wake the reconciler again.
        self.waker.clear();
        let take = |flag: &AtomicBool| flag.swap(false, Ordering::AcqRel);
        Requested { round: take(&self.flags.round), fault: take(&self.flags.fault) }
    }

    fn set(&self, flag: &AtomicBool) {
        flag.store(true, Ordering::Release);
        self.waker.wake();
    }
}
