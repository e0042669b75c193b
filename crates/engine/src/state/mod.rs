//! Node-local state: the attachments and the owner of each address.
//!
//! It consists of plain files under one directory (default /run/podwire). `ls` shows the current state, and any process may be
//! killed at any instruction:
//!
//! ```text
//! podwire.lock                       marks the directory as Podwire's; locked while it is created or emptied
//! boot                               boot ID of this state; with another ID the state is discarded
//! sysctls                            changed sysctls of the host with their old values
//! networks/NET/lock                  flock for the short critical section; contains '1' while one is active
//! networks/NET/attachments/KEY.ready    one record per attachment (JSON); .pending while it is created or undone
//! networks/NET/addresses/10.83.0.7   hard link to the record of the owner: the claim
//! networks/NET/index/RANGE           bitmap of RANGE to find a free address quickly; rebuilt from the claims
//! networks/NET/index/RANGE.resting   bitmap of quarantined addresses: the kernel may have conntrack entries of the last owner
//! networks/NET/index/RANGE.used      bitmap of addresses that were allocated before: other hosts may have a neighbour entry
//! networks/NET/index/last            round-robin position of each range set
//! ```
//!
//! There are two locks. The kernel releases both when their holder dies:
//! - The network's `lock` is held for microseconds around allocation and release. A holder that dies leaves the '1' behind. The
//!   next process sees it, removes claims without a record, and rebuilds the index.
//! - A lock on the record's file is held for a complete ADD or DEL. A `.pending` record without a lock was left by a killed
//!   process. The next process undoes it.

mod allocate;
mod boot;
mod directories;
mod file;
mod held;
mod index;
mod network;
mod record;
mod repair;
mod section;
mod sysctls;
mod thread_lock;

pub use directories::{LOCKS, RunDirs};
pub use file::StateError;
pub use held::HeldAttachment;
pub use network::{
    Allocation, AllocationRequest, Begin, ListedRecord, NetworkState, RecordPhase, RemoveConntrack,
};
pub use record::{Addressing, Attachment, PodAddress, PodName, SCHEMA, Wiring};
pub use repair::{OrphanCheck, RecoveredLink};
pub(crate) use sysctls::sysctl_key;
pub use sysctls::{Sysctl, SysctlChange, SysctlChanges, SysctlLog, SysctlUse};

use std::path::{Path, PathBuf};

use types::{AttachmentKey, NetworkName};

/// The directory of node-local state. It is checked to belong to this boot.
#[derive(Debug, Clone)]
pub struct NodeState {
    dir: PathBuf,
}

impl NodeState {
    /// Opens the directory for changes. Creates it if it does not exist, and empties it if it is of another boot.
    /// A directory that another user could change is refused.
    pub fn open(dir: &Path) -> Result<Self, StateError> {
        files::check_dir(dir)?;
        boot::ensure_current(dir)?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Opens the directory only if it exists and is of this boot. For callers that only read or remove.
    pub fn open_existing(dir: &Path) -> Result<Option<Self>, StateError> {
        files::check_dir(dir)?;
        Ok(boot::is_current(dir)?.then(|| Self { dir: dir.to_owned() }))
    }

    /// Whether [`NodeState::open`] would accept the directory. Changes nothing.
    pub(crate) fn check(dir: &Path) -> Result<(), StateError> {
        files::check_dir(dir)?;
        boot::check(dir)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The state of a network. If it does not exist, it is created with the attachments from `recovered_links`: after a loss of
    /// the directory, their addresses must not be assigned to other pods.
    pub fn network<E: From<StateError>>(
        &self,
        name: &NetworkName,
        recovered_links: impl FnOnce() -> Result<Vec<RecoveredLink>, E>,
    ) -> Result<NetworkState, E> {
        if let Some(network) = self.existing_network(name) {
            return Ok(network);
        }
        let _lock = boot::lock(&self.dir)?;
        // Another process may have created it while this one waited.
        match self.existing_network(name) {
            Some(network) => Ok(network),
            None => Ok(NetworkState::create(self.network_path(name), &recovered_links()?)?),
        }
    }

    /// The state of a network, if it exists.
    pub fn existing_network(&self, name: &NetworkName) -> Option<NetworkState> {
        NetworkState::existing(self.network_path(name))
    }

    /// All networks with state in this directory.
    pub fn networks(&self) -> Result<Vec<NetworkState>, StateError> {
        NetworkState::all_in(&self.dir.join("networks"))
    }

    pub fn sysctls(&self) -> SysctlLog {
        SysctlLog::new(self.dir.join("sysctls"))
    }

    /// Removes the complete state. For `podwire cleanup`, after the kernel objects were removed.
    pub fn remove(self) -> Result<(), StateError> {
        boot::remove(&self.dir)
    }

    fn network_path(&self, name: &NetworkName) -> PathBuf {
        self.dir.join("networks").join(AttachmentKey::network_dir(name))
    }
}

#[cfg(test)]
mod tests;
