//! Leases are measured by CLOCK_BOOTTIME, which includes suspend and does not change with the wall clock. The clock restarts
//! at boot, so all leases of an earlier boot have expired: their holders do not exist any more.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::fault::{EmbeddedFault, io_fault};

const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EmbeddedLease {
    pub(super) ttl_ms: u64,
    pub(super) boot: String,
    /// Milliseconds since that boot.
    pub(super) ends_ms: u64,
}

impl EmbeddedLease {
    pub(super) fn new(ttl: Duration) -> Result<Self, EmbeddedFault> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
        Ok(Self { ttl_ms, boot: boot_id()?.to_owned(), ends_ms: now_ms().saturating_add(ttl_ms) })
    }

    pub(super) fn renewed(&self) -> Result<Self, EmbeddedFault> {
        Self::new(Duration::from_millis(self.ttl_ms))
    }

    /// None if the lease has expired.
    pub(super) fn remaining(&self) -> Result<Option<Duration>, EmbeddedFault> {
        let remaining = self.ends_ms.saturating_sub(now_ms());
        Ok((self.boot == boot_id()? && remaining > 0).then(|| Duration::from_millis(remaining)))
    }
}

fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

/// Read once, because it does not change while the process runs.
fn boot_id() -> Result<&'static str, EmbeddedFault> {
    static ID: OnceLock<String> = OnceLock::new();
    match ID.get() {
        Some(id) => Ok(id),
        None => {
            let id = fs::read_to_string(BOOT_ID_FILE).map_err(io_fault("read", Path::new(BOOT_ID_FILE)))?;
            Ok(ID.get_or_init(|| id.trim().to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_of_another_boot_has_expired() {
        let lease = EmbeddedLease::new(Duration::from_secs(3600)).unwrap();
        let remaining = lease.remaining().unwrap().unwrap();
        assert!(
            remaining <= Duration::from_secs(3600) && remaining > Duration::from_secs(3500),
            "{remaining:?}"
        );
        assert_eq!(EmbeddedLease { boot: "another".to_owned(), ..lease.clone() }.remaining().unwrap(), None);
        assert_eq!(EmbeddedLease { ends_ms: 1, ..lease }.remaining().unwrap(), None);
    }
}
