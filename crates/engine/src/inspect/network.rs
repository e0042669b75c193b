//! One network: its bridge, its addresses, and firewalls that drop its packets.

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

/// A network as its config describes it, or as far as its pods tell.
pub(super) struct InspectedNetwork<'a> {
    pub(super) name: NetworkName,
    bridge: IfName,
    /// Those that the node routes.
    pub(super) subnets: Vec<IpNet>,
    /// None: known by its pods only.
    conf: Option<&'a NetConf>,
    is_routed: bool,
    has_firewall: bool,
    /// The bridges of pods. They may have been attached with an earlier config.
    used: BTreeMap<IfName, UsedBridge>,
    /// Pods in another mode than new ones.
    differing: Option<Finding>,
}

/// What the pods of a bridge need of it.
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
            differing: mode::differing(name, Some(conf.mode), pods),
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
            differing: mode::differing(&first.key.network, None, pods),
        })
    }

    pub(super) fn needs_nft(&self) -> bool {
        self.has_firewall
    }

    pub(super) fn for_overlap(&self) -> overlap::NetworkExtent<'_> {
        overlap::NetworkExtent { name: &self.name, bridge: &self.bridge, subnets: &self.subnets }
    }

    pub(super) fn differing_mode(&self) -> Option<Finding> {
        self.differing.clone()
    }

    /// New pods need the name of the bridge; running pods are affected when their bridge is gone or down, or has no gateway.
    pub(super) fn bridge_findings(&self, run_dir: &Path) -> Result<Vec<Finding>, Error> {
        let mut host = RtSocket::open()?;
        let mut found = Vec::new();
        let unused = self.conf.iter().map(|conf| &conf.bridge).filter(|name| !self.used.contains_key(*name));
        let none = UsedBridge::default();
        for (bridge, used) in self.used.iter().chain(unused.map(|name| (name, &none))) {
            match host.link(bridge)? {
                Some(link) if link.kind.as_deref() != Some("bridge") => {
                    let failed = FailureContext { code: Code::BridgeNameTaken, object: "link", run_dir };
                    found.push(not_a_bridge(&mut host, bridge, link).finding(&failed));
                }
                Some(link) if link.up => found.extend(used.lost_gateways(&mut host, &link, run_dir)?),
                _ if used.pods == 0 => {}
                Some(_) => found.push(used.down(bridge, run_dir)),
                None => found.push(used.gone(bridge)),
            }
        }
        Ok(found)
    }

    /// Whether a record can be written, and every address family has an address left.
    pub(super) fn addresses(&self, run_dir: &Path) -> Option<Finding> {
        let Addresses::Own(pools) = &self.conf?.addresses else { return None };
        let has_room =
            || match NodeState::open_existing(run_dir)?.and_then(|it| it.existing_network(&self.name)) {
                Some(network) => network.has_room(pools),
                None => Ok(()),
            };
        let error = has_room().err()?;
        let object = format!("network {}", self.name);
        let code = match error {
            StateError::Exhausted { .. } => Code::AddressesExhausted,
            _ => Code::RunDirUnusable,
        };
        Some(Error::from(error).finding(&FailureContext { code, object: &object, run_dir }))
    }

    /// Chains of other programs that drop packets of pods: those that certainly do, and those that probably do.
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

    /// Do pods have addresses that a table of this family sees? Those of another IPAM plugin are not known.
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

/// The subnets of a pod that the node routes. Without a gateway the pod is on a network that is not the node's.
fn routed(pod: &Attachment) -> impl Iterator<Item = IpNet> {
    let own = pod.ips().map(IpNet::from).filter(|_| pod.mode == AttachMode::Routed);
    pod.wiring.gateways.iter().map(IpNet::trunc).chain(own)
}

/// The bridges of pods. A record that was recovered from a link does not know the bridge and names the link instead.
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
    /// The subject of a sentence, and how to go on about it.
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

    fn gone(&self, bridge: &IfName) -> Finding {
        let (pods, they_are) = self.pods_have();
        let message = format!("bridge {bridge} is gone, and {pods} no network until {they_are} restarted");
        Finding::new(Code::BridgeMissing, format_args!("bridge {bridge}"), message).degraded()
    }

    /// The kernel removes the IPv6 addresses of a link that is set down.
    fn lost_gateways(
        &self,
        host: &mut RtSocket,
        bridge: &Link,
        run_dir: &Path,
    ) -> Result<Option<Finding>, Error> {
        if self.gateways.is_empty() {
            return Ok(None);
        }
        let carried = host.addresses(Some(bridge.index))?;
        let is_missing = |gateway: &&IpNet| !bridge::carries(&carried, gateway);
        let missing: Vec<String> = self.gateways.iter().filter(is_missing).map(ToString::to_string).collect();
        let (name, missing_text, pods) = (&bridge.name, missing.join(", "), self.pods_have().0);
        let message = format!(
            "bridge {name} lacks the gateway address {missing_text}, and {pods} no network outside of the subnet"
        );
        let found = Finding::new(Code::GatewayMissing, format_args!("bridge {name}"), message);
        Ok((!missing.is_empty()).then(|| found.fix(repair_command(run_dir))))
    }
}
