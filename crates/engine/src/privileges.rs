//! What the kernel will ask for, asked beforehand: who may not finish a pod may not undo it either.

use rustix::thread::{CapabilitySet, capabilities};

use crate::Error;

/// Links, rules and routes; and entering the pod's namespace.
const NEEDED: [(CapabilitySet, &str); 2] =
    [(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"), (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN")];

pub(crate) fn check() -> Result<(), Error> {
    // A kernel that does not say what we may do says so on the way.
    let Ok(ours) = capabilities(None) else { return Ok(()) };
    let missing: Vec<_> = NEEDED
        .iter()
        .filter(|(needed, _)| !ours.effective.contains(*needed))
        .map(|(_, name)| *name)
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(Error::Privileges(missing.join(" and "))) }
}
