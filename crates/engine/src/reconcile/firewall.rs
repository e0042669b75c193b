//! The firewall's tables: their structure, and every pod in them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam::RangeSet;
use netconf::{Addresses, NetConf};
use nft::{Firewall, FirewallPod, ListedElements, NetworkChain, PodElement, PodElements, Structure};
use types::{AttachmentKey, Code, Finding, NetworkName};

use super::{ReconcileRound, RepairKind};
use crate::firewall::{self, FirewallMember, Living};
use crate::state::Attachment;
use crate::{Error, lease};

impl ReconcileRound<'_> {
    pub(super) fn firewall(&mut self) {
        let attachments = std::mem::take(&mut self.outcome.attachments);
        if let Err(error) = self.look_at_tables(&attachments) {
            // New pods need the tables too: a cause that concerns all of them keeps its severity.
            let found = self.finding("tables podwire", error);
            self.outcome.findings.push(found);
        }
        self.outcome.attachments = attachments;
    }

    fn look_at_tables(&mut self, attachments: &[Attachment]) -> Result<(), Error> {
        let members: Vec<FirewallMember<'_>> = attachments.iter().filter_map(FirewallMember::of).collect();
        let pods: Vec<FirewallPod<'_>> = members.iter().map(FirewallMember::pod).collect();
        let mut tables = Firewall::open()?;
        let chain = self.order.network.and_then(|(name, conf)| firewall::chain_of(name, conf));
        if let Some(kernel_cache) = self.order.kernel_cache {
            kernel_cache.keep_chain(chain.as_ref().map(NetworkChain::id));
        }
        let mut structure = Structure::of(&pods);
        // The tables of the agent's own network are ready when the first pod comes.
        if let Some((_, conf)) = self.order.network.filter(|(_, conf)| conf.spoof_check || conf.ip_masq) {
            let guard = firewall::guard(conf.spoof_check, lease::addressing(conf));
            structure = structure.with(conf.mode, guard, chain.as_ref());
        }
        let drift = tables.drift(&structure)?;
        if !drift.is_empty() {
            let kernel_cache = self.order.kernel_cache;
            let other = tables.other_version(&structure)?.filter(|_| kernel_cache.is_some());
            if let Some(revision) =
                other.filter(|it| !kernel_cache.is_some_and(|known| known.may_replace(*it)))
            {
                let message = format!(
                    "another version of Podwire on this node replaced the tables (revision {revision:#010x}) within a \
                     minute; stop one of the two agents"
                );
                self.outcome.findings.push(Finding::new(Code::FirewallDrift, "tables podwire", message));
                return Ok(());
            }
            tables.repair(&structure, &pods)?;
            firewall::take_back(&self.state, attachments)?;
            self.repaired(RepairKind::Firewall, format_args!("firewall put right: {}", drift.join(", ")));
        }
        let (mut listing, mut is_changed) = (tables.list_elements()?, false);
        for lacking in tables.missing_in(&listing, &pods)? {
            let Some(attachment) = members.get(lacking).map(FirewallMember::attachment) else { continue };
            let Some(network) = self.state.existing_network(&attachment.key.network) else { continue };
            // With its record held: a DEL at the same time must not be followed by what it has just removed.
            if firewall::put_one_back(&self.state, &network, attachment)? {
                self.repaired(
                    RepairKind::Firewall,
                    format_args!("{} put back into the firewall", attachment.key),
                );
                is_changed = true;
            }
        }
        if is_changed {
            listing = tables.list_elements()?;
        }
        self.remove_surplus(&mut tables, &listing, attachments)
    }

    /// Removes elements that a pod of this run directory should not have: they may permit it to use other pods' addresses, or drop
    /// its packets.
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
        // After the listing: an ADD writes its record first.
        let living = Living::now(&mut self.host, Some(&self.state))?;
        surplus.elements.retain(|element| living.alive.disowns(element));
        self.remove_elements(tables, surplus, &living)
    }

    /// Removes bindings of addresses that no pod of this node has and that are not in its blocks.
    pub(super) fn remove_unowned_bindings(&mut self) -> Result<(), Error> {
        let mut tables = Firewall::open()?;
        let mut surplus = tables.pod_elements()?;
        let living = Living::now(&mut self.host, Some(&self.state))?;
        let unowned = self.unowned_bindings(&surplus.elements, &living);
        surplus.elements.retain(|element| unowned.contains(element));
        self.remove_elements(&mut tables, surplus, &living)
    }

    fn remove_elements(
        &mut self,
        tables: &mut Firewall,
        surplus: PodElements,
        living: &Living,
    ) -> Result<(), Error> {
        let now = || Ok(Living::now(&mut self.host, Some(&self.state))?.alive);
        for element in tables.remove_surplus::<Error>(surplus, now)? {
            let why = match living.alive.disowns(&element) {
                true => "its pod should not have it",
                false => "no pod of this node has the address",
            };
            self.repaired(RepairKind::Firewall, format_args!("removed {}: {why}", element.element));
        }
        Ok(())
    }

    /// Bindings of addresses that are not this node's, if two consecutive inspections find them without a pod: they would drop the
    /// traffic of a pod of another node that has the address now. An address is claimed before it is bound.
    fn unowned_bindings(
        &self,
        elements: &[PodElement],
        Living { alive, has_others }: &Living,
    ) -> BTreeSet<PodElement> {
        let (Some(kernel_cache), Some((name, conf))) = (self.order.kernel_cache, self.order.network) else {
            return BTreeSet::new();
        };
        let mut unowned = BTreeSet::new();
        let bindings = elements.iter().filter(|element| element.is_binding());
        for element in bindings.filter(|element| !has_others && alive.lacks(element)) {
            let is_local = element.address().map_or(Ok(true), |ip| self.is_local(ip, name, conf));
            if is_local.is_ok_and(|local| !local) {
                unowned.insert(element.clone());
            }
        }
        let before = kernel_cache.replace_unowned(unowned.clone());
        unowned.into_iter().filter(|element| before.contains(element)).collect()
    }

    /// Whether the address is in a range of a network of this run directory. The agent's own network has the blocks that it
    /// has now; of others only the ranges that they ever had are known.
    fn is_local(&self, address: IpAddr, name: &NetworkName, conf: &NetConf) -> Result<bool, Error> {
        if let Addresses::Own(pools) = &conf.addresses
            && pools.sets().iter().flat_map(RangeSet::ranges).any(|range| range.subnet().contains(&address))
        {
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
    use crate::reconcile::{Order, inspect_pods, reconcile};
    use crate::{KernelCache, relearn};

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
        let round = || {
            let order = Order {
                run_dir: dir.path(),
                network: Some((&name, &conf)),
                mode: Some((&name, conf.mode)),
                memory: &[],
                kernel_cache: Some(&kernel_cache),
                is_only_agent: || true,
                warn: |message| panic!("{message}"),
            };
            let both = || [reconcile(order).unwrap(), inspect_pods(order).unwrap()];
            let outcomes = node.enter(both).unwrap();
            assert!(outcomes.iter().all(|outcome| outcome.findings.is_empty()), "{outcomes:?}");
            let repairs = outcomes.into_iter().flat_map(|outcome| outcome.repairs);
            repairs.map(|repair| repair.what).collect::<Vec<_>>()
        };
        let sh = |words: &str| node.sh(&["sh", "-c", words]).unwrap();
        let add = |elements: &[&str]| {
            elements.iter().for_each(|e| drop(sh(&format!("nft 'add element inet podwire {e}'"))));
        };
        round();
        // Another network of this run directory, with an ADD under way that has a claim.
        let red = dir.path().join("networks/red");
        let state = crate::state::NodeState::open(dir.path()).unwrap();
        relearn::network(&state, &"red".try_into().unwrap(), None).unwrap();
        fs::write(red.join("index/10.77.0.1-10.77.0.254.used"), "").unwrap();
        let record = File::create(red.join("attachments/c1@eth0.pending")).unwrap();
        record.lock().unwrap();
        fs::hard_link(red.join("attachments/c1@eth0.pending"), red.join("addresses/10.66.0.2")).unwrap();
        let stay = [
            "bound4 { 10.88.1.99 }",
            "bound6 { fd88:0:0:1::99 }",
            "bound4 { 10.77.0.9 }",
            "bound4 { 10.66.0.2 }",
            "pods4 { 10.88.9.9 }",
        ];
        add(&stay);
        add(&REMOTE);
        assert_eq!(round().iter().filter(|what| what.starts_with("removed")).count(), 0, "seen only once");
        let removed = round();
        let removed: Vec<&String> = removed.iter().filter(|what| what.starts_with("removed")).collect();
        assert_eq!(removed.len(), REMOTE.len(), "{removed:?}");
        let table = sh("nft list table inet podwire");
        for there in ["10.88.1.99", "fd88:0:0:1::99", "10.77.0.9", "10.66.0.2"] {
            assert!(table.contains(there), "{there}: {table}");
        }
        assert!(!table.contains("fd88:0:0:9::9") && table.contains("10.88.9.9"), "{table}");
        // Pods of another run directory are known by their links only.
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
            let order = Order {
                run_dir: dir.path(),
                network: Some((&name, &conf)),
                mode: Some((&name, conf.mode)),
                memory: &[],
                kernel_cache: Some(&kernel_cache),
                is_only_agent: || true,
                warn: |message| panic!("{message}"),
            };
            node.enter(|| reconcile(order).unwrap()).unwrap().findings
        };
        let revision = || node.sh(&["nft", "list", "map", "inet", "podwire", "revision"]).unwrap();
        let other = |number: &str| {
            let text = format!(
                "nft 'flush map inet podwire revision; add element inet podwire revision {{ 1 : {number} }}'"
            );
            node.sh(&["sh", "-c", &text]).unwrap();
        };
        assert_eq!(round(), []);
        let own = revision();
        for number in ["0x7", "0x8"] {
            other(number);
            assert_eq!(round(), []);
            assert_eq!(revision(), own, "{number}: replaced");
        }
        other("0x7");
        let theirs = revision();
        let found = round();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("another version of Podwire"), "{found:?}");
        assert_eq!(revision(), theirs);
        // Tables that are not as the other version made them are repaired in any case.
        node.sh(&["nft", "flush", "chain", "inet", "podwire", "guard"]).unwrap();
        assert_eq!(round(), []);
        assert_eq!(revision(), own);
    }
}
