//! Checks for routes and addresses of other programs in the pod network. If the node has no pods yet, they
//! prevent readiness. Later ones are only reported.

use engine::overlap::{self, NetworkExtent, ObservedNetworks};
use netlink::RtSocket;
use types::{Finding, Severity};

use super::{Due, Reconciler};
use config::Config;

impl Reconciler {
    /// Lists routes, which may be many: on the timer, after a suspected change, and until the agent is ready and there is no overlap.
    pub(super) fn check_overlap(&mut self, due: Due) {
        if self.was_ready && !due.unmanaged && self.overlaps.is_empty() {
            return;
        }
        let subnets = &self.parts.config.network.subnets;
        let host = RtSocket::open().map_err(engine::Error::from);
        let observed = host.and_then(|mut host| ObservedNetworks::of(&mut host, subnets));
        let operation = "list routes and addresses to check for overlap with the pod network";
        if let Some(observed) =
            self.report_step("routes overlap", operation, observed.map_err(cni::Error::from))
        {
            self.overlaps = self.found(&observed);
        }
    }

    /// Whether the network must not be set up on this node.
    pub(super) fn is_blocked(&self) -> bool {
        self.overlaps.iter().any(|found| found.severity == Severity::NotReady)
    }

    fn found(&self, observed: &ObservedNetworks) -> Vec<Finding> {
        let config = &self.parts.config;
        match self.was_ready {
            true => {
                let found = overlap::findings(&network(config), observed).into_iter();
                found.map(Finding::degraded).map(without_subnet_change).collect()
            }
            false => at_start(config, observed),
        }
    }
}

/// The network's subnets cannot be changed while it has other nodes or pods.
fn without_subnet_change(found: Finding) -> Finding {
    let message = format!("{}; remove that route or address if nothing needs it", found.message);
    Finding { message, ..found }
}

fn network(config: &Config) -> NetworkExtent<'_> {
    let own = &config.network;
    NetworkExtent { name: &own.name, bridge: &own.bridge, subnets: &own.subnets }
}

/// The overlaps with the agent's network. The fix is another subnet if the network has no pods yet.
pub(crate) fn at_start(config: &Config, observed: &ObservedNetworks) -> Vec<Finding> {
    let network = network(config);
    // All nodes of a cluster have the same subnets: one node cannot change them.
    let is_alone = config.cluster.margin == 0;
    let other = is_alone.then(|| overlap::alternative(&network, observed)).flatten().map(|subnets| {
        let subnets: Vec<String> = subnets.iter().map(ToString::to_string).collect();
        subnets.join(",")
    });
    let of = |found: Finding| match (found.severity, &other) {
        (Severity::NotReady, Some(other)) => config.propose(found, "network.subnets", other),
        (Severity::NotReady, None) => without_subnet_change(found),
        (Severity::Degraded, _) => found,
    };
    overlap::findings(&network, observed).into_iter().map(of).collect()
}
