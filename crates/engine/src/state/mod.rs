//! Node-local state: which attachments there are, and who has which address.
//!
//! Plain files under one directory (default /run/podwire), so that `ls` shows the truth and any process may be killed at
//! any instruction:
//!
//! ```text
//! podwire.lock                       says that the directory is ours; held while it is made or emptied
//! boot                               the boot id this state belongs to; another one means: empty
//! sysctls                            what we changed on the machine, with the old values
//! networks/NET/lock                  flock for the short critical section; holds '1' while one is under way
//! networks/NET/attachments/KEY.ready    one record an attachment (JSON); .pending while it is made or undone
//! networks/NET/addresses/10.83.0.7   hard link to the record of the owner: the claim
//! networks/NET/index/RANGE           bitmap of RANGE, only to find a free address quickly; rebuilt from the claims
//! networks/NET/index/RANGE.resting   bitmap of addresses of which the kernel may remember the last owner
//! networks/NET/index/RANGE.used      bitmap of addresses that were handed out before: neighbours may remember them
//! networks/NET/index/last            where the round robin of each set stands
//! ```
//!
//! Two locks, both given back by the kernel when their holder dies:
//! - the network's `lock`, for microseconds, around allocation and release. A holder that dies leaves the '1' behind;
//!   the next one sees it and repairs: claims without a record go, the index is made anew.
//! - a lock on the record's own file, for the whole of an attach or detach. A `.pending` record that nobody holds
//!   was left by a process that was killed: whoever comes next undoes it.

mod allocate;
mod boot;
mod directories;
mod file;
mod gate;
mod held;
mod index;
mod network;
mod record;
mod repair;
mod section;
mod sysctls;

pub use directories::{LOCKS, RunDirs};
pub use file::StateError;
pub use held::HeldAttachment;
pub use network::{Allocation, AllocationRequest, Begin, Clean, ListedRecord, NetworkState, RecordPhase};
pub use record::{Addressing, Attachment, PodAddress, PodName, SCHEMA, Wiring};
pub use repair::{Freeing, Survivor};
pub(crate) use sysctls::sysctl_key;
pub use sysctls::{Changed, Sysctl, SysctlChanges, SysctlLog, SysctlUse};

use std::path::{Path, PathBuf};

use types::{AttachmentKey, NetworkName};

/// The directory of node-local state, checked to belong to this boot.
#[derive(Debug, Clone)]
pub struct NodeState {
    dir: PathBuf,
}

impl NodeState {
    /// Opens the directory for work; makes it if it is not there, empties it if it is of another boot.
    /// A directory that another user could change is refused.
    pub fn open(dir: &Path) -> Result<Self, StateError> {
        files::check_dir(dir)?;
        boot::ensure_current(dir)?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Opens the directory only if it exists and is of this boot. What only reads or removes has no reason to make one.
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

    /// A network's part of the state, made on first use. It then begins with what `survivors` finds alive: if the
    /// directory was lost, their addresses must not be given to others.
    pub fn network<E: From<StateError>>(
        &self,
        name: &NetworkName,
        survivors: impl FnOnce() -> Result<Vec<Survivor>, E>,
    ) -> Result<NetworkState, E> {
        if let Some(network) = self.existing_network(name) {
            return Ok(network);
        }
        let _lock = boot::lock(&self.dir)?;
        // Somebody else may have made it while we waited.
        match self.existing_network(name) {
            Some(network) => Ok(network),
            None => Ok(NetworkState::create(self.network_path(name), &survivors()?)?),
        }
    }

    /// A network's part of the state, if it ever had one.
    pub fn existing_network(&self, name: &NetworkName) -> Option<NetworkState> {
        NetworkState::existing(self.network_path(name))
    }

    /// All networks that have state here.
    pub fn networks(&self) -> Result<Vec<NetworkState>, StateError> {
        NetworkState::all_in(&self.dir.join("networks"))
    }

    pub fn sysctls(&self) -> SysctlLog {
        SysctlLog::new(self.dir.join("sysctls"))
    }

    /// Removes everything that is recorded. For `podwire cleanup`, after the kernel is clean.
    pub fn remove(self) -> Result<(), StateError> {
        boot::remove(&self.dir)
    }

    fn network_path(&self, name: &NetworkName) -> PathBuf {
        self.dir.join("networks").join(AttachmentKey::network_dir(name))
    }
}

#[cfg(test)]
mod tests;
