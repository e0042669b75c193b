//! IPAM plugins that networks of this agent name. Their configs are the runtime's: requests bring them, and they are in its
//! directory. The plugins are not run here, because one that hangs would hold up the rounds; CNI STATUS asks them.

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

    /// Configs of the runtime's directory that lead to this agent. Those that cannot be read are left out, as runtimes do.
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
            LocalPaths::parse(one).is_ok_and(|place| place.agent.as_ref() == Some(&config.socket))
        };
        all.filter(is_own).collect()
    }

    /// CNI STATUS of a config answers for itself. The runtime may not use this file at all, so the agent stays ready.
    fn ipam_finding(&self, config: &NetworkConfig) -> Option<Finding> {
        let own = &self.parts.config;
        let allowed = engine::Delegates::Allowed(&own.delegates);
        Some(engine::ipam_program(config, allowed, &own.run_dir)?.degraded())
    }
}
