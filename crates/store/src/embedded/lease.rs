//! Leases run by a clock that nobody sets and that goes on while the machine sleeps. It begins anew with every boot, and so
//! do they: whoever held one before is gone.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::fault::{EmbeddedFault, io_fault};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EmbeddedLease {
    pub(super) ttl_ms: u64,
    pub(super) boot: String,
    /// Milliseconds since that boot.
    pub(super) ends_ms: u64,
}

impl EmbeddedLease {
    pub(super) fn begin(ttl: Duration) -> Result<Self, EmbeddedFault> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
        Ok(Self { ttl_ms, boot: this_boot()?.to_owned(), ends_ms: now_ms().saturating_add(ttl_ms) })
    }

    pub(super) fn again(&self) -> Result<Self, EmbeddedFault> {
        Self::begin(Duration::from_millis(self.ttl_ms))
    }

    /// None: it is over.
    pub(super) fn left(&self) -> Result<Option<Duration>, EmbeddedFault> {
        let left = self.ends_ms.saturating_sub(now_ms());
        Ok((self.boot == this_boot()? && left > 0).then(|| Duration::from_millis(left)))
    }
}

fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

/// Read once: it does not change while a process lives.
fn this_boot() -> Result<&'static str, EmbeddedFault> {
    static ID: OnceLock<String> = OnceLock::new();
    match ID.get() {
        Some(id) => Ok(id),
        None => {
            let id = fs::read_to_string(BOOT_ID).map_err(io_fault("read", Path::new(BOOT_ID)))?;
            Ok(ID.get_or_init(|| id.trim().to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_of_another_boot_is_over() {
        let lease = EmbeddedLease::begin(Duration::from_secs(3600)).unwrap();
        let left = lease.left().unwrap().unwrap();
        assert!(left <= Duration::from_secs(3600) && left > Duration::from_secs(3500), "{left:?}");
        assert_eq!(EmbeddedLease { boot: "another".to_owned(), ..lease.clone() }.left().unwrap(), None);
        assert_eq!(EmbeddedLease { ends_ms: 1, ..lease }.left().unwrap(), None);
    }
}
