//! Another IPAM plugin that a config names: without it no pod of the network can be started.

use std::path::Path;
use std::time::Duration;

use cni::NetworkConfig;
use types::{Code, Finding};

use crate::Error;
use crate::condition::FailureContext;
use crate::delegate::{Delegate, Delegates};

/// Whether the IPAM plugin of a config can be run. It is not run.
pub fn ipam_program(config: &NetworkConfig, allowed: Delegates<'_>, run_dir: &Path) -> Option<Finding> {
    let plugin = netconf::external_ipam(config)?;
    Delegate::find(plugin, config, allowed).err().map(|error| unavailable(plugin, error, run_dir))
}

/// Why an IPAM plugin cannot be used.
pub(crate) struct IpamFault {
    pub(crate) finding: Finding,
    /// The code of the plugin's own error, which CNI STATUS passes on.
    pub(crate) code: Option<cni::ErrorCode>,
}

/// Whether the IPAM plugin of a config can be run and is ready: the plugin itself is asked, and has so long to answer.
pub(crate) fn ipam_status(
    config: &NetworkConfig,
    (allowed, timeout): (Delegates<'_>, Duration),
    run_dir: &Path,
) -> Option<IpamFault> {
    let plugin = netconf::external_ipam(config)?;
    let asked = Delegate::find(plugin, config, allowed).and_then(|found| found.within(timeout).status());
    asked.err().map(|error| {
        let code = match &error {
            Error::Cni(own) => Some(own.code),
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
