//! Reasons to check the node before the timer does: a failed request, an address or route of another program, and changes of the
//! nft program and the run directory, which are polled every second. Then `podwire status` and `/v1/ready` report the fault that made
//! a request fail within seconds.

use std::time::{Duration, Instant};

use types::Code;

use super::{Due, PAUSE, Reconciler};
use crate::conditions::Source;

const POLL: Duration = Duration::from_secs(1);
/// The shortest time between two listings of the routes and chains of other programs.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The result of the last poll, and when the next one is.
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
    pub(super) fn check_unmanaged_soon(&mut self) {
        let soon = self.not_before.max(Instant::now() + PAUSE);
        let at = self.unmanaged_checked_at.map_or(soon, |checked| soon.max(checked + MIN_INTERVAL));
        self.schedule(Due { at, unmanaged: true, timer: false });
    }

    /// If the last check of unmanaged objects is too recent, this round skips it and a later round does it.
    pub(super) fn limit_unmanaged_checks(&mut self, due: Due) -> Due {
        let is_early = self.unmanaged_checked_at.is_some_and(|checked| checked.elapsed() < MIN_INTERVAL);
        if due.timer || !due.unmanaged || !is_early {
            return due;
        }
        self.check_unmanaged_soon();
        Due { unmanaged: false, ..due }
    }

    /// Schedules a round if nft was installed or removed, or if the run directory has other conditions than the last round
    /// reported. It takes some stat calls.
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
            self.schedule_round(false);
        }
        if self.parts.agent_status.has(Code::IpamUnavailable) {
            // The operator may have just installed the plugin.
            self.check_ipam();
        }
    }
}
