//! Checks the IPAM plugins of networks that use this agent, according to the configs in the runtime's directory. The plugins are
//! not run here, because one that hangs would delay rounds. CNI STATUS runs them.

use cni::NetworkConfig;
use install::cni_configs::CniConfig;
use install::runtimes::Runtimes;
use netconf::LocalPaths;
use types::Finding;

use super::Reconciler;
use crate::conditions::Source;

impl Reconciler {
    pub(super) fn check_ipam(&self) {
        let found = self.configs().iter().filter_map(|config| self.ipam_finding(config)).collect();
        self.parts.agent_status.set(Source::Ipam, found);
    }

    /// Configs in the runtime's directory that name this agent. Unreadable ones are left out, as runtimes do.
    fn configs(&self) -> Vec<NetworkConfig> {
        let config = &self.parts.config;
        let directory = match &config.install {
            Some(install) => install.config_dir.clone(),
            None => Runtimes::directories().configs,
        };
        let plugin = &config.plugin.name;
        let parts = CniConfig::naming(plugin, &directory).into_iter().flat_map(|file| file.parts(plugin));
        let all = parts.filter_map(|part| NetworkConfig::from_slice(part.to_string().as_bytes()).ok());
        let is_own = |one: &NetworkConfig| {
            LocalPaths::parse(one).is_ok_and(|paths| paths.agent.as_ref() == Some(&config.socket))
        };
        all.filter(is_own).collect()
    }

    /// The agent stays ready, because the runtime may not use this config. CNI STATUS reports the fault to a runtime that does.
    fn ipam_finding(&self, config: &NetworkConfig) -> Option<Finding> {
        let own = &self.parts.config;
        let allowed = engine::Delegates::Allowed(&own.delegates);
        Some(engine::ipam_program(config, allowed, &own.run_dir)?.degraded())
    }
}
