//! Reports unmanaged chains that drop traffic of pods. With `accept_forward`, keeps rules in them that accept it.

use tracing::info;
use types::{AttachmentKey, IfName};

use super::Reconciler;
use crate::conditions::Source;

impl Reconciler {
    /// Reports unmanaged forward chains that drop traffic of pods.
    pub(super) fn check_unmanaged(&mut self) {
        self.reconcile_rules();
        let bridges = self.bridges();
        let names: Vec<&IfName> = bridges.iter().collect();
        let drops = nft::unmanaged_drops(&names);
        if let Some(drops) = self.report_step("chains unmanaged", "check unmanaged firewall chains", drops) {
            let found = drops.iter().map(nft::UnmanagedDrop::finding).collect();
            self.parts.agent_status.set(Source::Firewall, found);
        }
    }

    /// Adds Podwire's rules to unmanaged chains, or removes the rules if they are not configured.
    fn reconcile_rules(&mut self) {
        let config = &self.parts.config;
        let network = &config.network;
        let changes = if config.cluster.accept_forward {
            let allocated = self.parts.allocations.default_network();
            let subnets = allocated.as_ref().map_or(&*network.subnets, |network| network.cluster());
            nft::accept_in_unmanaged(&network.name, subnets)
        } else {
            let own = AttachmentKey::network_dir(&network.name);
            nft::withdraw_from_unmanaged(&|name| name == own)
        };
        let operation = "reconcile the rules that accept pods in unmanaged chains";
        let changes = self.report_step("rules accept-forward", operation, changes);
        changes.iter().flatten().for_each(|what| info!("{what}"));
    }
}
