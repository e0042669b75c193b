//! The lock files of run directory and network. A removed one is created again, because another agent could start otherwise.

use std::path::Path;

use tracing::{error, warn};
use types::{Code, Finding};

use super::Reconciler;
use crate::conditions::Source;
use crate::lock::{Lock, LockError, NetworkLock};

impl Reconciler {
    /// An error means that another agent holds a lock now.
    pub(super) fn check_locks(&mut self) -> Result<(), LockError> {
        let findings = self.check_network_lock()?.into_iter().chain(self.check_run_lock()?).collect();
        self.parts.agent_status.set(Source::Locks, findings);
        Ok(())
    }

    fn check_run_lock(&mut self) -> Result<Option<Finding>, LockError> {
        if !self.parts.lock.is_lost() {
            return Ok(None);
        }
        let run_dir = &self.parts.config.run_dir;
        let lost = match Lock::take(run_dir) {
            Ok(lock) => {
                warn!(directory = %run_dir.display(), "run directory or its lock was removed; restored");
                self.parts.lock = lock;
                None
            }
            Err(error @ LockError::Taken { .. }) if self.parts.lock.is_lost() => {
                error!(directory = %run_dir.display(), %error, "run directory was removed; another agent uses it");
                return Err(error);
            }
            // The directory was moved away and back: this agent holds the lock.
            Err(LockError::Taken { .. }) => None,
            Err(error) => Some(lost(self.parts.lock.path(), &error)),
        };
        self.schedule_round(false);
        Ok(lost)
    }

    fn check_network_lock(&mut self) -> Result<Option<Finding>, LockError> {
        if !self.parts.network_lock.is_lost() {
            return Ok(None);
        }
        let config = &self.parts.config;
        match NetworkLock::take(&config.network.name, &config.run_dir) {
            Ok(lock) => {
                warn!("lock of the network was removed; restored");
                self.parts.network_lock = lock;
                Ok(None)
            }
            Err(error @ LockError::NetworkTaken { .. }) => {
                error!("lost the lock of the network: {error}");
                Err(error)
            }
            Err(error) => Ok(Some(lost(self.parts.network_lock.path(), &error))),
        }
    }
}

fn lost(path: &Path, error: &LockError) -> Finding {
    let message = format!("the lock file was removed or replaced and cannot be created again: {error}");
    Finding::new(Code::RunDirUnusable, format_args!("file {}", path.display()), message).degraded()
}
