//! Checks capabilities before an ADD starts. A process without them could neither finish nor undo it.

use rustix::thread::{CapabilitySet, capabilities};

use crate::Error;

/// NET_ADMIN is for links, rules and routes, SYS_ADMIN for entering the pod's namespace.
const NEEDED: [(CapabilitySet, &str); 2] =
    [(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"), (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN")];

pub(crate) fn check() -> Result<(), Error> {
    // If the capabilities cannot be read, the first privileged call reports what is missing.
    let Ok(granted) = capabilities(None) else { return Ok(()) };
    let missing: Vec<_> = NEEDED
        .iter()
        .filter(|(needed, _)| !granted.effective.contains(*needed))
        .map(|(_, name)| *name)
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(Error::Privileges(missing.join(" and "))) }
}
