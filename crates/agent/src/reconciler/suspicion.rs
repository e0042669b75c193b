//! Reasons to check the node before the timer does: a failed request, an address or route of another program, and the state of
//! some files that is polled every second. So `podwire status` and `/v1/ready` report a fault soon after a request meets it.

use std::time::{Duration, Instant};

use engine::reconcile::Depth;
use types::Code;

use super::{Due, PAUSE, Reconciler};
use crate::conditions::Source;

const POLL: Duration = Duration::from_secs(1);
/// Checks that list the routes and the chains of other programs have this distance.
const DISTANCE: Duration = Duration::from_secs(1);

/// What was found last, and when it is to be polled again.
pub(super) struct Polled {
    pub(super) next: Instant,
    has_nft: Option<bool>,
}

impl Default for Polled {
    fn default() -> Self {
        Self { next: Instant::now(), has_nft: None }
    }
}

impl Reconciler {
    /// Another program may have changed the node. The next round checks its routes, addresses and chains too.
    pub(super) fn suspect(&mut self) {
        let soon = self.not_before.max(Instant::now() + PAUSE);
        let at = self.others_checked.map_or(soon, |checked| soon.max(checked + DISTANCE));
        self.schedule(Due { at, depth: Depth::Node, unmanaged: true, timer: false });
    }

    /// A round that events made due earlier leaves the check of routes and chains to a later one.
    pub(super) fn spaced(&mut self, due: Due) -> Due {
        let is_early = self.others_checked.is_some_and(|checked| checked.elapsed() < DISTANCE);
        if due.timer || !due.unmanaged || !is_early {
            return due;
        }
        self.suspect();
        Due { unmanaged: false, ..due }
    }

    /// Has a round check the node if nft comes or goes, or if the run directory is not as the last round reported it. It takes
    /// some stat calls.
    pub(super) fn poll(&mut self, now: Instant) {
        if now < self.polled.next {
            return;
        }
        self.polled.next = now + POLL;
        let has_nft = nft::check_program().is_ok();
        let had_nft = self.polled.has_nft.replace(has_nft);
        let run_dir = engine::run_dir_findings(&self.parts.config.run_dir);
        let (_, is_other_run_dir) = self.parts.agent_status.conditions_with(vec![(Source::RunDir, run_dir)]);
        let is_changed = is_other_run_dir || had_nft.is_some_and(|before| before != has_nft);
        if is_changed {
            self.soon(Depth::Node, false);
        }
        if self.parts.agent_status.has(Code::IpamUnavailable) {
            // The operator waits for the next check.
            self.check_ipam();
        }
    }
}
