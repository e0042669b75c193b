//! Checks pod subnets for overlaps with routes and addresses outside of their network.

use std::collections::BTreeMap;

use engine::overlap::{self, NetworkExtent, ObservedNetworks};
use engine::reconcile::failure;
use ipnet::IpNet;
use netconf::NetConf;
use netlink::RtSocket;
use types::{AttachMode, IfName, NetworkName};

use super::check::Check;
use super::node::CheckedNode;

const CHECK: &str = "pod subnets";

type Networks = BTreeMap<NetworkName, (IfName, Vec<IpNet>)>;

pub(super) fn subnets(node: &CheckedNode) -> Vec<Check> {
    let networks = networks(node);
    let all: Vec<IpNet> = networks.values().flat_map(|(_, subnets)| subnets).copied().collect();
    let host = RtSocket::open().map_err(engine::Error::from);
    let observed = match host.and_then(|mut host| ObservedNetworks::of(&mut host, &all)) {
        Ok(observed) => observed,
        Err(error) => return vec![Check::problem(CHECK, failure(error, &node.directories.run_dir))],
    };
    let mut checks = Vec::new();
    for (name, (bridge, subnets)) in &networks {
        let found = overlap::findings_of_config(&NetworkExtent { name, bridge, subnets }, &observed);
        checks.extend(found.into_iter().map(|found| node.as_reported(CHECK, found)));
    }
    if checks.is_empty() {
        checks.push(Check::ok(CHECK, "no overlap with another route or address of this node"));
    }
    checks
}

/// Networks of the agent, of configs and of pods, in order of precedence.
fn networks(node: &CheckedNode) -> Networks {
    let mut networks = Networks::new();
    let of_agent = node.status().map(|status| &status.network).and_then(|network| {
        let name = NetworkName::try_from(network.name.as_str()).ok()?;
        Some((name, (IfName::try_from(network.bridge.as_str()).ok()?, network.subnets.clone())))
    });
    networks.extend(of_agent);
    for config in &node.configs {
        if let Ok(conf) = NetConf::parse(config) {
            networks
                .entry(config.name.clone())
                .or_insert((conf.bridge.clone(), overlap::routed_subnets(&conf)));
        }
    }
    let mut of_pods = Networks::new();
    for pod in node.attachments.iter().filter(|pod| !networks.contains_key(&pod.key.network)) {
        let (_, subnets) = of_pods.entry(pod.key.network.clone()).or_insert((pod.bridge.clone(), Vec::new()));
        let gateways = pod.wiring.gateways.iter().map(IpNet::trunc);
        // Without a gateway the subnet is not routed by this node.
        let own = pod.ips().map(IpNet::from).filter(|_| pod.mode == AttachMode::Routed);
        subnets.extend(gateways.chain(own));
        subnets.sort();
        subnets.dedup();
    }
    networks.extend(of_pods);
    networks
}
