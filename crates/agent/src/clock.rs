//! One moment by both clocks. The agent stores [`Instant`]s and converts them when it shows them: a wall clock that is set
//! later, as at a boot before NTP answers, then changes no age.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use api::Timestamp;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) instant: Instant,
    pub(crate) wall: SystemTime,
}

impl Now {
    pub(crate) fn read() -> Self {
        Self { instant: Instant::now(), wall: SystemTime::now() }
    }

    /// The time of an earlier moment by the wall clock of this one.
    pub(crate) fn wall_time(&self, earlier: Instant) -> Timestamp {
        let age = self.instant.saturating_duration_since(earlier);
        let time = self.wall.checked_sub(age).and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Timestamp(time.unwrap_or_default().as_secs())
    }
}

/// Seconds since 1970, for what other machines or other runs of the agent read.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
