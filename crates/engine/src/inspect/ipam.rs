//! Inspects the delegated IPAM plugin of a config. Without it no pod of the network can be started.

use std::path::Path;
use std::time::Duration;

use cni::NetworkConfig;
use types::{Code, Finding};

use crate::Error;
use crate::condition::FailureContext;
use crate::delegate::{Delegate, Delegates};

/// Checks that the IPAM plugin of a config can be run, without running it.
pub fn ipam_program(config: &NetworkConfig, allowed: Delegates<'_>, run_dir: &Path) -> Option<Finding> {
    let plugin = netconf::external_ipam(config)?;
    Delegate::find(plugin, config, allowed).err().map(|error| unavailable(plugin, error, run_dir))
}

/// The reason why an IPAM plugin cannot be used.
pub(crate) struct IpamFault {
    pub(crate) finding: Finding,
    /// The code of the plugin's error. CNI STATUS returns it.
    pub(crate) code: Option<cni::ErrorCode>,
}

/// Checks that the IPAM plugin of a config can be run, and calls its STATUS with this timeout.
pub(crate) fn ipam_status(
    config: &NetworkConfig,
    (allowed, timeout): (Delegates<'_>, Duration),
    run_dir: &Path,
) -> Option<IpamFault> {
    let plugin = netconf::external_ipam(config)?;
    let outcome =
        Delegate::find(plugin, config, allowed).and_then(|delegate| delegate.within(timeout).status());
    outcome.err().map(|error| {
        let code = match &error {
            Error::Cni(error) => Some(error.code),
            _ => None,
        };
        let finding = unavailable(plugin, error, run_dir);
        match code {
            Some(cni::ErrorCode::LimitedConnectivity) => IpamFault { finding: finding.degraded(), code },
            _ => IpamFault { finding, code },
        }
    })
}

fn unavailable(plugin: &str, error: Error, run_dir: &Path) -> Finding {
    let object = format!("plugin {plugin}");
    error.finding(&FailureContext { code: Code::IpamUnavailable, object: &object, run_dir })
}
