//! Drops all capabilities that the agent does not need, also for the programs that it runs.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities};
use tracing::warn;

/// NET_ADMIN for links, routes and rules; SYS_ADMIN to enter namespaces; NET_BROADCAST to receive events from them; SYS_PTRACE
/// to open `/proc/PID/ns/net` of other users' processes; DAC_OVERRIDE for directories of other users, such as an unpacked
/// /opt/cni/bin or a plugin below /home. deploy/podwire.service has the same list.
const NEEDED: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::NET_BROADCAST)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::DAC_OVERRIDE);

/// A capability that a command requires.
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

/// The capabilities that this thread lacks. All of them if the kernel cannot be queried.
pub fn missing_capabilities(needed: &[Capability]) -> Vec<Capability> {
    let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    needed.iter().copied().filter(|capability| !effective.contains(capability.set())).collect()
}

/// Applies to the calling thread and threads that it starts later. A failure is only logged.
pub(crate) fn drop_unneeded() {
    if let Err(errno) = restrict() {
        warn!(error = %errno, "cannot drop unneeded capabilities");
    }
}

fn restrict() -> Result<(), Errno> {
    let given = capabilities(None)?;
    let mut sets = given;
    // The bounding set is first, because that needs CAP_SETPCAP, which is dropped as well. A process without it was started
    // by a service manager that restricted the bounding set.
    let bounding =
        if sets.effective.contains(CapabilitySet::SETPCAP) { CapabilitySet::all() } else { NEEDED };
    for capability in bounding.difference(NEEDED).iter() {
        match remove_capability_from_bounding_set(capability) {
            // The kernel does not know this newer capability.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
    }
    sets.effective &= NEEDED;
    sets.permitted &= NEEDED;
    sets.inheritable &= NEEDED;
    // A service manager may have restricted the sets already and may not allow another call.
    if sets == given { Ok(()) } else { set_capabilities(None, sets) }
}
