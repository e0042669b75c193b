//! The agent keeps the capabilities that it needs and gives the others up, also for the programs that it runs.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities};
use tracing::warn;

/// Why each of them: links, routes and rules; entering namespaces; hearing of changes inside them; opening
/// `/proc/PID/ns/net` of another user's process; files in directories of other users, such as a /opt/cni/bin that was
/// unpacked with its packer's owner, or a plugin below somebody's home. deploy/podwire.service has the same list.
const NEEDED: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::NET_BROADCAST)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::DAC_OVERRIDE);

/// A capability without which a command cannot do its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    NetAdmin,
    SysAdmin,
}

impl Capability {
    pub fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::SysAdmin => "CAP_SYS_ADMIN",
        }
    }

    fn set(self) -> CapabilitySet {
        match self {
            Self::NetAdmin => CapabilitySet::NET_ADMIN,
            Self::SysAdmin => CapabilitySet::SYS_ADMIN,
        }
    }
}

/// Those that this thread lacks. If the kernel does not answer, all are missing.
pub fn missing_capabilities(needed: &[Capability]) -> Vec<Capability> {
    let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    needed.iter().copied().filter(|one| !effective.contains(one.set())).collect()
}

/// For the calling thread and those that it starts afterwards. Not being allowed to give up is no reason not to work.
pub(crate) fn drop_others() {
    if let Err(errno) = restrict() {
        warn!("capabilities could not be given up: {errno}");
    }
}

fn restrict() -> Result<(), Errno> {
    let given = capabilities(None)?;
    let mut sets = given;
    // From the bounding set first: that needs CAP_SETPCAP, which is not kept. Who has not even that was started with
    // little, and a service manager has done this already.
    let bounding =
        if sets.effective.contains(CapabilitySet::SETPCAP) { CapabilitySet::all() } else { NEEDED };
    for capability in bounding.difference(NEEDED).iter() {
        match remove_capability_from_bounding_set(capability) {
            // Newer capabilities than this kernel knows.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
    }
    sets.effective &= NEEDED;
    sets.permitted &= NEEDED;
    sets.inheritable &= NEEDED;
    // A service manager may have done this, and not allow it again.
    if sets == given { Ok(()) } else { set_capabilities(None, sets) }
}
