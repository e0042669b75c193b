//! Inspects one network: its bridge, its addresses, and firewalls that drop its packets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ipnet::IpNet;
use netconf::{Addresses, NetConf};
use netlink::{Link, RtSocket};
use nft::{Certainty, ChainFamily, UnmanagedDrop};
use types::{AttachMode, Code, Finding, IfName, NetworkName};

use crate::condition::{FailureContext, not_a_bridge, repair_command};
use crate::overlap;
use crate::state::{Attachment, NodeState, StateError};
use crate::{Error, bridge, firewall, mode};

/// A network, described by its config or derived from its pods.
pub(super) struct InspectedNetwork<'a> {
    pub(super) name: NetworkName,
    bridge: IfName,
    /// The subnets that the node routes.
    pub(super) subnets: Vec<IpNet>,
    /// None if the network is known only from its pods.
    conf: Option<&'a NetConf>,
    is_routed: bool,
    has_firewall: bool,
    /// The bridges of pods. Pods may have been attached with an earlier config.
    used: BTreeMap<IfName, UsedBridge>,
    /// Reports pods in another mode than new pods get.
    mixed_modes: Option<Finding>,
}

/// Pods and gateways of a bridge.
#[derive(Default)]
struct UsedBridge {
    pods: usize,
    gateways: BTreeSet<IpNet>,
}

impl<'a> InspectedNetwork<'a> {
    pub(super) fn of_conf(name: &NetworkName, conf: &'a NetConf, pods: &[&Attachment]) -> Self {
        Self {
            name: name.clone(),
            bridge: conf.bridge.clone(),
            subnets: overlap::routed_subnets(conf),
            conf: Some(conf),
            is_routed: conf.mode == AttachMode::Routed || conf.is_gateway,
            has_firewall: conf.spoof_check || conf.ip_masq,
            used: used(pods),
            mixed_modes: mode::mixed_modes(name, Some(conf.mode), pods),
        }
    }

    /// None without pods.
    pub(super) fn of_pods(pods: &[&Attachment]) -> Option<Self> {
        let first = pods.first()?;
        let mut subnets: Vec<IpNet> = pods.iter().flat_map(|pod| routed(pod)).collect();
        subnets.sort();
        subnets.dedup();
        Some(Self {
            name: first.key.network.clone(),
            bridge: first.bridge.clone(),
            is_routed: !subnets.is_empty(),
            subnets,
            conf: None,
            has_firewall: pods.iter().any(|pod| firewall::is_needed(pod)),
            used: used(pods),
            mixed_modes: mode::mixed_modes(&first.key.network, None, pods),
        })
    }

    pub(super) fn needs_nft(&self) -> bool {
        self.has_firewall
    }

    pub(super) fn for_overlap(&self) -> overlap::NetworkExtent<'_> {
        overlap::NetworkExtent { name: &self.name, bridge: &self.bridge, subnets: &self.subnets }
    }

    pub(super) fn mixed_modes(&self) -> Option<Finding> {
        self.mixed_modes.clone()
    }

    /// New pods need the name of the bridge. Running pods are affected if their bridge is missing, down, or lacks a gateway.
    pub(super) fn bridge_findings(&self, run_dir: &Path) -> Result<Vec<Finding>, Error> {
        let mut host = RtSocket::open()?;
        let mut findings = Vec::new();
        let unused = self.conf.iter().map(|conf| &conf.bridge).filter(|name| !self.used.contains_key(*name));
        let no_pods = UsedBridge::default();
        for (bridge, used) in self.used.iter().chain(unused.map(|name| (name, &no_pods))) {
            match host.link(bridge)? {
                Some(link) if link.kind.as_deref() != Some("bridge") => {
                    let failed = FailureContext { code: Code::BridgeNameTaken, object: "link", run_dir };
                    findings.push(not_a_bridge(&mut host, bridge, link).finding(&failed));
                }
                Some(link) if link.up => findings.extend(used.missing_gateways(&mut host, &link, run_dir)?),
                _ if used.pods == 0 => {}
                Some(_) => findings.push(used.down(bridge, run_dir)),
                None => findings.push(used.missing(bridge)),
            }
        }
        Ok(findings)
    }

    /// Checks that a record can be written and that every address family has a free address.
    pub(super) fn addresses(&self, run_dir: &Path) -> Option<Finding> {
        let Addresses::Own(pools) = &self.conf?.addresses else { return None };
        let check = || match NodeState::open_existing(run_dir)?.and_then(|it| it.existing_network(&self.name))
        {
            Some(network) => network.check_capacity(pools),
            None => Ok(()),
        };
        let error = check().err()?;
        let object = format!("network {}", self.name);
        let code = match error {
            StateError::Exhausted { .. } => Code::AddressesExhausted,
            _ => Code::RunDirUnusable,
        };
        Some(Error::from(error).finding(&FailureContext { code, object: &object, run_dir }))
    }

    /// Chains of other programs that drop packets of pods: first those that certainly do, then those that probably do.
    pub(super) fn dropped(&self) -> Result<(Vec<Finding>, Vec<Finding>), Error> {
        if !self.is_routed {
            return Ok((Vec::new(), Vec::new()));
        }
        let drops = match nft::unmanaged_drops(&[&self.bridge]) {
            Ok(drops) => drops,
            // Without nftables there are no chains.
            Err(nft::Error::Unsupported { .. }) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let concerned = drops.iter().filter(|drop| self.has_family(drop.family));
        let (certain, likely): (Vec<&UnmanagedDrop>, _) =
            concerned.partition(|drop| drop.certainty == Certainty::Certain);
        let findings = |drops: Vec<&UnmanagedDrop>| drops.into_iter().map(UnmanagedDrop::finding).collect();
        Ok((findings(certain), findings(likely)))
    }

    /// Whether pods have addresses of this family. Addresses of a delegated IPAM plugin are unknown and count as both.
    fn has_family(&self, family: ChainFamily) -> bool {
        match family {
            ChainFamily::Inet => true,
            ChainFamily::Ip => self.subnets.is_empty() || self.subnets.iter().any(|net| net.addr().is_ipv4()),
            ChainFamily::Ip6 => {
                self.subnets.is_empty() || self.subnets.iter().any(|net| net.addr().is_ipv6())
            }
        }
    }
}

/// The subnets of a pod that the node routes. Without a gateway, the pod is on a network that the node does not route.
fn routed(pod: &Attachment) -> impl Iterator<Item = IpNet> {
    let own = pod.ips().map(IpNet::from).filter(|_| pod.mode == AttachMode::Routed);
    pod.wiring.gateways.iter().map(IpNet::trunc).chain(own)
}

/// The bridges of pods. A record that was recovered from a link contains the link's name instead of the bridge's.
fn used(pods: &[&Attachment]) -> BTreeMap<IfName, UsedBridge> {
    let mut used: BTreeMap<IfName, UsedBridge> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod.bridge != pod.host_link) {
        let bridge = used.entry(pod.bridge.clone()).or_default();
        bridge.pods += 1;
        bridge.gateways.extend(&pod.wiring.gateways);
    }
    used
}

impl UsedBridge {
    /// The parts of a message that depend on the number of pods.
    fn pods_have(&self) -> (String, &'static str) {
        match self.pods {
            1 => ("1 pod has".to_owned(), "it is"),
            count => (format!("{count} pods have"), "they are"),
        }
    }

    fn down(&self, bridge: &IfName, run_dir: &Path) -> Finding {
        let message =
            format!("bridge {bridge} is down, and {} no network until it is up", self.pods_have().0);
        Finding::new(Code::BridgeDown, format_args!("bridge {bridge}"), message).fix(repair_command(run_dir))
    }

    fn missing(&self, bridge: &IfName) -> Finding {
        let (pods, they_are) = self.pods_have();
        let message = format!("bridge {bridge} is missing, and {pods} no network until {they_are} restarted");
        Finding::new(Code::BridgeMissing, format_args!("bridge {bridge}"), message).degraded()
    }

    /// For example, the kernel removes IPv6 addresses when a link is set down.
    fn missing_gateways(
        &self,
        host: &mut RtSocket,
        bridge: &Link,
        run_dir: &Path,
    ) -> Result<Option<Finding>, Error> {
        if self.gateways.is_empty() {
            return Ok(None);
        }
        let addresses = host.addresses(Some(bridge.index))?;
        let is_missing = |gateway: &&IpNet| !bridge::has_gateway(&addresses, gateway);
        let missing: Vec<String> = self.gateways.iter().filter(is_missing).map(ToString::to_string).collect();
        let (name, missing_text, pods) = (&bridge.name, missing.join(", "), self.pods_have().0);
        let message = format!(
            "bridge {name} lacks the gateway address {missing_text}, and {pods} no network outside of the subnet"
        );
        let finding = Finding::new(Code::GatewayMissing, format_args!("bridge {name}"), message);
        Ok((!missing.is_empty()).then(|| finding.fix(repair_command(run_dir))))
    }
}
