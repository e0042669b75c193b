//! Reconciles the firewall's tables: their structure, and the elements of all pods.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam::RangeSet;
use netconf::{Addresses, NetConf};
use nft::{Firewall, FirewallPod, ListedElements, NetworkChain, PodElement, PodElements, Structure};
use types::{AttachmentKey, Code, Finding, NetworkName};

use super::{ReconcileRound, RepairKind};
use crate::firewall::{self, FirewallMember, LivePods};
use crate::state::Attachment;
use crate::{Error, lease};

impl ReconcileRound<'_> {
    pub(super) fn firewall(&mut self) {
        let attachments = std::mem::take(&mut self.outcome.attachments);
        if let Err(error) = self.reconcile_tables(&attachments) {
            // New pods need the tables too, so the finding is not degraded.
            let finding = self.finding("tables podwire", error);
            self.outcome.findings.push(finding);
        }
        self.outcome.attachments = attachments;
    }

    fn reconcile_tables(&mut self, attachments: &[Attachment]) -> Result<(), Error> {
        let members: Vec<FirewallMember<'_>> = attachments.iter().filter_map(FirewallMember::of).collect();
        let pods: Vec<FirewallPod<'_>> = members.iter().map(FirewallMember::pod).collect();
        let mut tables = Firewall::open()?;
        let chain = self.request.network.and_then(|(name, conf)| firewall::chain_of(name, conf));
        if let Some(kernel_cache) = self.request.kernel_cache {
            kernel_cache.retain_chain(chain.as_ref().map(NetworkChain::id));
        }
        let mut structure = Structure::of(&pods);
        // The tables of the agent's network exist before its first pod.
        if let Some((_, conf)) = self.request.network.filter(|(_, conf)| conf.spoof_check || conf.ip_masq) {
            let guard = firewall::guard(conf.spoof_check, lease::addressing(conf));
            structure = structure.with(conf.mode, guard, chain.as_ref());
        }
        let drift = tables.drift(&structure)?;
        if !drift.is_empty() {
            let kernel_cache = self.request.kernel_cache;
            let other = tables.other_version(&structure)?.filter(|_| kernel_cache.is_some());
            if let Some(revision) =
                other.filter(|it| !kernel_cache.is_some_and(|cache| cache.may_replace(*it)))
            {
                let message = format!(
                    "another version of Podwire on this node replaced the tables (revision {revision:#010x}) within a \
                     minute; stop one of the two agents"
                );
                self.outcome.findings.push(Finding::new(Code::FirewallDrift, "tables podwire", message));
                return Ok(());
            }
            tables.repair(&structure, &pods)?;
            firewall::remove_deleted(&self.state, attachments)?;
            self.repaired(RepairKind::Firewall, format_args!("repaired the firewall: {}", drift.join(", ")));
        }
        let (mut listing, mut is_changed) = (tables.list_elements()?, false);
        for index in tables.missing_in(&listing, &pods)? {
            let Some(attachment) = members.get(index).map(FirewallMember::attachment) else { continue };
            let Some(network) = self.state.existing_network(&attachment.key.network) else { continue };
            // The record is locked, so that a concurrent DEL does not leave elements behind.
            if firewall::restore_pod(&self.state, &network, attachment)? {
                self.repaired(
                    RepairKind::Firewall,
                    format_args!("restored attachment {} in the firewall", attachment.key),
                );
                is_changed = true;
            }
        }
        if is_changed {
            listing = tables.list_elements()?;
        }
        self.remove_surplus(&mut tables, &listing, attachments)
    }

    /// Removes elements that a pod of this run directory should not have. They may permit it to use addresses of other pods, or
    /// drop its packets.
    fn remove_surplus(
        &mut self,
        tables: &mut Firewall,
        listing: &ListedElements,
        attachments: &[Attachment],
    ) -> Result<(), Error> {
        let mut surplus = listing.surplus_of(&firewall::known(attachments)?);
        if surplus.elements.is_empty() {
            return Ok(());
        }
        // Observed after the listing, because an ADD writes its record first.
        let live = LivePods::observe(&mut self.host, Some(&self.state))?;
        surplus.elements.retain(|element| live.owners.is_unwanted(element));
        self.remove_elements(tables, surplus, &live)
    }

    /// Removes bindings of addresses that no pod of this node has and that are not in its blocks.
    pub(super) fn remove_orphaned_bindings(&mut self) -> Result<(), Error> {
        let mut tables = Firewall::open()?;
        let mut surplus = tables.pod_elements()?;
        let live = LivePods::observe(&mut self.host, Some(&self.state))?;
        let orphaned = self.orphaned_bindings(&surplus.elements, &live);
        surplus.elements.retain(|element| orphaned.contains(element));
        self.remove_elements(&mut tables, surplus, &live)
    }

    fn remove_elements(
        &mut self,
        tables: &mut Firewall,
        surplus: PodElements,
        live: &LivePods,
    ) -> Result<(), Error> {
        let observe_again = || Ok(LivePods::observe(&mut self.host, Some(&self.state))?.owners);
        for element in tables.remove_surplus::<Error>(surplus, observe_again)? {
            let reason = match live.owners.is_unwanted(&element) {
                true => "its pod should not have it",
                false => "no pod of this node has the address",
            };
            self.repaired(RepairKind::Firewall, format_args!("removed {}: {reason}", element.element));
        }
        Ok(())
    }

    /// Bindings of addresses of other nodes that two consecutive inspections found without a pod. They would drop the traffic of a pod
    /// on another node that has the address now. An address is claimed before it is bound.
    fn orphaned_bindings(
        &self,
        elements: &[PodElement],
        LivePods { owners, has_unrecorded_links }: &LivePods,
    ) -> BTreeSet<PodElement> {
        let (Some(kernel_cache), Some((name, conf))) = (self.request.kernel_cache, self.request.network)
        else {
            return BTreeSet::new();
        };
        let mut orphaned = BTreeSet::new();
        let bindings = elements.iter().filter(|element| element.is_binding());
        for element in bindings.filter(|element| !has_unrecorded_links && owners.is_orphan(element)) {
            let is_local = element.address().map_or(Ok(true), |ip| self.is_local(ip, name, conf));
            if is_local.is_ok_and(|local| !local) {
                orphaned.insert(element.clone());
            }
        }
        let before = kernel_cache.replace_orphans(orphaned.clone());
        orphaned.into_iter().filter(|element| before.contains(element)).collect()
    }

    /// Whether the address is in a range of a network of this run directory. For the agent's network the current blocks count, for
    /// other networks all current and former ranges.
    fn is_local(&self, address: IpAddr, name: &NetworkName, conf: &NetConf) -> Result<bool, Error> {
        let has_address = |conf: &&NetConf| match &conf.addresses {
            Addresses::Own(pools) => {
                pools.sets().iter().flat_map(RangeSet::ranges).any(|range| range.subnet().contains(&address))
            }
            Addresses::Delegated(_) | Addresses::Absent => false,
        };
        if self.request.other_networks.iter().chain([&conf]).any(has_address) {
            return Ok(true);
        }
        for network in self.state.networks()? {
            if network.name() != AttachmentKey::network_dir(name) && network.covers(address)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use serde_json::json;
    use testkit::Lab;

    use super::*;
    use crate::reconcile::{ReconcileRequest, inspect_pods, reconcile};
    use crate::{KernelCache, recover};

    const REMOTE: [&str; 4] = [
        "bound4 { 10.88.9.9 }",
        "via4 { 10.88.9.9 . pw0 }",
        "bound6 { fd88:0:0:9::9 }",
        "via6 { fd88:0:0:9::9 . pw0 }",
    ];

    #[test]
    fn a13_bindings_of_addresses_of_other_nodes_are_removed() {
        let lab = Lab::new("unbind").unwrap();
        let node = lab.node("n").unwrap();
        let (dir, kernel_cache) = (tempfile::tempdir().unwrap(), KernelCache::default());
        let config = json!({"cniVersion": "1.1.0", "name": "blue", "type": "podwire-cni", "bridge": "pw0",
            "subnet": "10.88.1.0/24,fd88:0:0:1::/64", "isGateway": true, "spoofCheck": true});
        let conf =
            NetConf::parse(&cni::NetworkConfig::from_slice(config.to_string().as_bytes()).unwrap()).unwrap();
        let name = NetworkName::try_from("blue").unwrap();
        let request = ReconcileRequest {
            run_dir: dir.path(),
            network: Some((&name, &conf)),
            other_networks: &[],
            mode: Some((&name, conf.mode)),
            earlier_records: &[],
            kernel_cache: Some(&kernel_cache),
            policies: None,
            is_only_agent: || true,
            warn: |message| panic!("{message}"),
        };
        let round = || {
            let both = || [reconcile(request).unwrap(), inspect_pods(request, &|| false).unwrap()];
            let outcomes = node.enter(both).unwrap();
            assert!(outcomes.iter().all(|outcome| outcome.findings.is_empty()), "{outcomes:?}");
            let repairs = outcomes.into_iter().flat_map(|outcome| outcome.repairs);
            repairs.map(|repair| repair.message).collect::<Vec<_>>()
        };
        let sh = |command: &str| node.sh(&["sh", "-c", command]).unwrap();
        let add = |elements: &[&str]| {
            elements.iter().for_each(|e| drop(sh(&format!("nft 'add element inet podwire {e}'"))));
        };
        round();
        // Another network of this run directory, with a claim of an ADD in progress.
        let red = dir.path().join("networks/red");
        let state = crate::state::NodeState::open(dir.path()).unwrap();
        recover::network(&state, &"red".try_into().unwrap(), None).unwrap();
        fs::write(red.join("index/10.77.0.1-10.77.0.254.used"), "").unwrap();
        let record = File::create(red.join("attachments/c1@eth0.pending")).unwrap();
        record.lock().unwrap();
        fs::hard_link(red.join("attachments/c1@eth0.pending"), red.join("addresses/10.66.0.2")).unwrap();
        let local = [
            "bound4 { 10.88.1.99 }",
            "bound6 { fd88:0:0:1::99 }",
            "bound4 { 10.77.0.9 }",
            "bound4 { 10.66.0.2 }",
            "pods4 { 10.88.9.9 }",
        ];
        add(&local);
        add(&REMOTE);
        assert_eq!(
            round().iter().filter(|message| message.starts_with("removed")).count(),
            0,
            "found only once"
        );
        let cancelled = node.enter(|| inspect_pods(request, &|| true).unwrap()).unwrap();
        assert_eq!(cancelled.repairs, [], "a cancelled inspection changes nothing");
        let removed = round();
        let removed: Vec<&String> = removed.iter().filter(|message| message.starts_with("removed")).collect();
        assert_eq!(removed.len(), REMOTE.len(), "{removed:?}");
        let table = sh("nft list table inet podwire");
        for address in ["10.88.1.99", "fd88:0:0:1::99", "10.77.0.9", "10.66.0.2"] {
            assert!(table.contains(address), "{address}: {table}");
        }
        assert!(!table.contains("fd88:0:0:9::9") && table.contains("10.88.9.9"), "{table}");
        // Pods of another run directory are known only from their links.
        sh("ip link add pwother type veth peer name peer");
        sh("ip link set pwother alias 'podwire:green/c1/eth0 10.60.0.2/32'");
        add(&REMOTE);
        for _ in 0..3 {
            round();
        }
        assert!(sh("nft list table inet podwire").contains("fd88:0:0:9::9"));
    }

    /// The agent of another version would replace the tables again.
    #[test]
    fn tables_of_another_version_are_replaced_once_a_minute() {
        let lab = Lab::new("versions").unwrap();
        let node = lab.node("n").unwrap();
        let (dir, kernel_cache) = (tempfile::tempdir().unwrap(), KernelCache::default());
        let config = json!({"cniVersion": "1.1.0", "name": "blue", "type": "podwire-cni", "bridge": "pw0",
            "subnet": "10.88.1.0/24", "isGateway": true, "spoofCheck": true});
        let conf =
            NetConf::parse(&cni::NetworkConfig::from_slice(config.to_string().as_bytes()).unwrap()).unwrap();
        let name = NetworkName::try_from("blue").unwrap();
        let round = || {
            let request = ReconcileRequest {
                run_dir: dir.path(),
                network: Some((&name, &conf)),
                other_networks: &[],
                mode: Some((&name, conf.mode)),
                earlier_records: &[],
                kernel_cache: Some(&kernel_cache),
                policies: None,
                is_only_agent: || true,
                warn: |message| panic!("{message}"),
            };
            node.enter(|| reconcile(request).unwrap()).unwrap().findings
        };
        let revision = || node.sh(&["nft", "list", "map", "inet", "podwire", "revision"]).unwrap();
        let set_revision = |number: &str| {
            let command = format!(
                "nft 'flush map inet podwire revision; add element inet podwire revision {{ 1 : {number} }}'"
            );
            node.sh(&["sh", "-c", &command]).unwrap();
        };
        assert_eq!(round(), []);
        let own = revision();
        for number in ["0x7", "0x8"] {
            set_revision(number);
            assert_eq!(round(), []);
            assert_eq!(revision(), own, "{number}: replaced");
        }
        set_revision("0x7");
        let other = revision();
        let findings = round();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].message.contains("another version of Podwire"), "{findings:?}");
        assert_eq!(revision(), other);
        // Tables that differ from the other version's are repaired without a pause.
        node.sh(&["nft", "flush", "chain", "inet", "podwire", "guard"]).unwrap();
        assert_eq!(round(), []);
        assert_eq!(revision(), own);
    }
}
