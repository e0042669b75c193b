//! One moment by both clocks. The agent stores [`Instant`]s and converts them to wall-clock time for output. So setting the wall
//! clock later, for example by NTP after boot, changes no age.

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

    /// Converts an earlier moment to wall-clock time.
    pub(crate) fn wall_time(&self, earlier: Instant) -> Timestamp {
        let age = self.instant.saturating_duration_since(earlier);
        let time = self.wall.checked_sub(age).and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Timestamp(time.unwrap_or_default().as_secs())
    }
}

/// Unix time, for values that other hosts or later runs of the agent read.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
