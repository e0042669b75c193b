//! One network: its bridge, its addresses, and firewalls that drop its packets.

use std::collections::BTreeMap;
use std::path::Path;

use ipnet::IpNet;
use netconf::{Addresses, NetConf};
use netlink::RtSocket;
use nft::{Certainty, ForeignDrop, ForeignFamily};
use types::{AttachMode, Code, Finding, Fix, IfName, NetworkName};

use crate::condition::{Failed, not_a_bridge};
use crate::overlap;
use crate::state::{Attachment, State, StateError};
use crate::{Error, firewall};

/// A network as its config describes it, or as far as its pods tell.
pub(super) struct Subject<'a> {
    pub(super) name: NetworkName,
    bridge: IfName,
    /// Those that the node routes.
    pub(super) subnets: Vec<IpNet>,
    /// None: known by its pods only.
    conf: Option<&'a NetConf>,
    is_routed: bool,
    has_firewall: bool,
    /// The bridges of pods, each with the number of its pods. They may have been attached with an earlier config.
    used: BTreeMap<IfName, usize>,
}

impl<'a> Subject<'a> {
    pub(super) fn of_conf(name: &NetworkName, conf: &'a NetConf, pods: &[&Attachment]) -> Self {
        Self {
            name: name.clone(),
            bridge: conf.bridge.clone(),
            subnets: overlap::routed_subnets(conf),
            conf: Some(conf),
            is_routed: conf.mode == AttachMode::Routed || conf.is_gateway,
            has_firewall: conf.spoof_check || conf.ip_masq,
            used: used(pods),
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
        })
    }

    pub(super) fn needs_nft(&self) -> bool {
        self.has_firewall
    }

    pub(super) fn for_overlap(&self) -> overlap::Network<'_> {
        overlap::Network { name: &self.name, bridge: &self.bridge, subnets: &self.subnets }
    }

    /// New pods need the name of the bridge; running pods are affected when their bridge is gone or down.
    pub(super) fn bridge_findings(&self, run_dir: &Path) -> Result<Vec<Finding>, Error> {
        let mut host = RtSocket::open()?;
        let mut found = Vec::new();
        let unused = self.conf.iter().map(|conf| &conf.bridge).filter(|name| !self.used.contains_key(*name));
        for (bridge, running) in
            self.used.iter().map(|(name, pods)| (name, *pods)).chain(unused.map(|name| (name, 0)))
        {
            match host.link(bridge)? {
                Some(link) if link.kind.as_deref() != Some("bridge") => {
                    let failed = Failed { code: Code::BridgeNameTaken, object: "link", run_dir };
                    found.push(not_a_bridge(&mut host, bridge, link).finding(&failed));
                }
                Some(link) if link.up => {}
                link => found.extend((running > 0).then(|| lost_bridge(bridge, running, link.is_some()))),
            }
        }
        Ok(found)
    }

    /// Whether a record can be written, and every address family has an address left.
    pub(super) fn addresses(&self, run_dir: &Path) -> Option<Finding> {
        let Addresses::Own(pools) = &self.conf?.addresses else { return None };
        let has_room = || match State::open_existing(run_dir)?.and_then(|it| it.existing_network(&self.name))
        {
            Some(network) => network.has_room(pools),
            None => Ok(()),
        };
        let error = has_room().err()?;
        let object = format!("network {}", self.name);
        let code = match error {
            StateError::Exhausted { .. } => Code::AddressesExhausted,
            _ => Code::RunDirUnusable,
        };
        Some(Error::from(error).finding(&Failed { code, object: &object, run_dir }))
    }

    /// Chains of other programs that drop packets of pods: those that certainly do, and those that probably do.
    pub(super) fn dropped(&self) -> Result<(Vec<Finding>, Vec<Finding>), Error> {
        if !self.is_routed {
            return Ok((Vec::new(), Vec::new()));
        }
        let drops = match nft::foreign_drops(&[&self.bridge]) {
            Ok(drops) => drops,
            // Without nftables there are no chains.
            Err(nft::Error::Unsupported { .. }) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let concerned = drops.iter().filter(|drop| self.has_family(drop.family));
        let (certain, likely): (Vec<&ForeignDrop>, _) =
            concerned.partition(|drop| drop.certainty == Certainty::Certain);
        let findings = |drops: Vec<&ForeignDrop>| drops.into_iter().map(ForeignDrop::finding).collect();
        Ok((findings(certain), findings(likely)))
    }

    /// Do pods have addresses that a table of this family sees? Those of another IPAM plugin are not known.
    fn has_family(&self, family: ForeignFamily) -> bool {
        match family {
            ForeignFamily::Inet => true,
            ForeignFamily::Ip => {
                self.subnets.is_empty() || self.subnets.iter().any(|net| net.addr().is_ipv4())
            }
            ForeignFamily::Ip6 => {
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
fn used(pods: &[&Attachment]) -> BTreeMap<IfName, usize> {
    let mut used = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod.bridge != pod.host_link) {
        *used.entry(pod.bridge.clone()).or_default() += 1;
    }
    used
}

fn lost_bridge(bridge: &IfName, running: usize, exists: bool) -> Finding {
    let (pods, they_are) = match running {
        1 => ("1 pod has".to_owned(), "it is"),
        count => (format!("{count} pods have"), "they are"),
    };
    let object = format!("bridge {bridge}");
    if exists {
        let message = format!("bridge {bridge} is down, and {pods} no network until it is up");
        let fix = Fix::words(["ip", "link", "set", bridge.as_str(), "up"]);
        return Finding::new(Code::BridgeDown, object, message).fix(fix);
    }
    let message = format!("bridge {bridge} is gone, and {pods} no network until {they_are} restarted");
    Finding::new(Code::BridgeMissing, object, message).degraded()
}
