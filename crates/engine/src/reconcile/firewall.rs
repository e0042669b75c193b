//! The firewall's tables: their structure as we make it, and every pod in them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam::RangeSet;
use netconf::{Addresses, NetConf};
use nft::{Firewall, NetworkChain, Pod};
use types::{AttachmentKey, Mac, NetworkName};

use super::{Depth, Kind, Round};
use crate::firewall::{self, Living, Member};
use crate::state::Attachment;
use crate::{Error, lease};

impl Round<'_> {
    pub(super) fn firewall(&mut self) {
        let attachments = std::mem::take(&mut self.outcome.attachments);
        if let Err(error) = self.look_at_tables(&attachments).and_then(|()| self.unbind()) {
            // New pods need the tables too: a cause that concerns all of them keeps its severity.
            let found = self.finding("tables podwire", error);
            self.outcome.findings.push(found);
        }
        self.outcome.attachments = attachments;
    }

    fn look_at_tables(&mut self, attachments: &[Attachment]) -> Result<(), Error> {
        let members: Vec<Member<'_>> = attachments.iter().filter_map(Member::of).collect();
        let mut pods: Vec<Pod<'_>> = members.iter().map(Member::pod).collect();
        let mut tables = Firewall::open()?;
        let chain = self.order.network.and_then(|(name, conf)| firewall::chain_of(name, conf));
        let first = self.order.network.and_then(|(_, conf)| first_pod(conf, chain.as_ref()));
        pods.extend(first);
        let mut damage = tables.damage(&pods)?;
        if !damage.is_empty() {
            // Another process may have replaced rules while they were listed.
            let again = tables.damage(&pods)?;
            damage.retain(|fault| again.contains(fault));
        }
        pods.truncate(members.len());
        if !damage.is_empty() {
            if pods.is_empty() {
                first.map_or(Ok(()), |first| prepare(&mut tables, &first))?;
            } else {
                tables.repair(&pods)?;
                firewall::take_back(&self.state, attachments)?;
                first.map_or(Ok(()), |first| tables.prepare(&first))?;
            }
            self.repaired(Kind::Firewall, format_args!("firewall put right: {}", damage.join(", ")));
        }
        if let Some((name, _)) = self.order.network {
            tables.keep(name, chain.as_ref())?;
        }
        for lacking in tables.missing_of(&pods)? {
            let Some(attachment) = members.get(lacking).map(Member::attachment) else { continue };
            let Some(network) = self.state.existing_network(&attachment.key.network) else { continue };
            // With its record held: a DEL at the same time must not be followed by what it has just removed.
            if firewall::put_one_back(&self.state, &network, attachment)? {
                self.repaired(Kind::Firewall, format_args!("{} put back into the firewall", attachment.key));
            }
        }
        Ok(())
    }

    /// Removes bindings of addresses that are not this node's, if two rounds in a row find them without a pod: they would drop
    /// the traffic of a pod of another node that has the address now. An address is claimed before it is bound.
    fn unbind(&mut self) -> Result<(), Error> {
        let (Depth::Pods, Some(resident), Some((name, conf))) =
            (self.order.depth, self.order.resident, self.order.network)
        else {
            return Ok(());
        };
        let mut tables = Firewall::open()?;
        let Some(mut bindings) = tables.bindings()? else { return Ok(()) };
        // After the bindings: see above.
        let Living { alive, has_others } = Living::now(&mut self.host, Some(&self.state))?;
        let mut unowned = BTreeSet::new();
        for element in bindings.elements.iter().filter(|element| !has_others && alive.lacks(element)) {
            if element
                .address()
                .map_or(Ok(true), |ip| self.is_local(ip, name, conf))
                .is_ok_and(|local| !local)
            {
                unowned.insert(element.clone());
            }
        }
        let before = resident.replace_unowned(unowned.clone());
        bindings.elements.retain(|element| unowned.contains(element) && before.contains(element));
        if !bindings.elements.is_empty() && tables.unbind(&bindings)? {
            for element in &bindings.elements {
                self.repaired(
                    Kind::Firewall,
                    format_args!("removed {}: no pod of this node has the address", element.element),
                );
            }
        }
        Ok(())
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

/// Where there are no pods, what somebody put between ours may be in the way.
fn prepare(tables: &mut Firewall, first: &Pod<'_>) -> Result<(), Error> {
    tables.prepare(first)?;
    if !tables.damage(std::slice::from_ref(first))?.is_empty() {
        tables.repair(&[])?;
        tables.prepare(first)?;
    }
    Ok(())
}

/// A pod of the agent's own network before there is one: the tables are ready when the first comes.
fn first_pod<'a>(conf: &'a NetConf, masquerade: Option<&'a NetworkChain>) -> Option<Pod<'a>> {
    let guard = firewall::guard(conf.spoof_check, lease::addressing(conf));
    (conf.spoof_check || conf.ip_masq).then_some(Pod {
        link: &conf.bridge,
        mac: Mac::local([0; 5]),
        mode: conf.mode,
        bridge: None,
        addresses: &[],
        masquerade,
        guard,
        ports: &[],
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use serde_json::json;
    use testkit::Lab;

    use super::*;
    use crate::reconcile::{Order, reconcile};
    use crate::{Resident, relearn};

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
        let (dir, resident) = (tempfile::tempdir().unwrap(), Resident::default());
        let config = json!({"cniVersion": "1.1.0", "name": "blue", "type": "podwire-cni", "bridge": "pw0",
            "subnet": "10.88.1.0/24,fd88:0:0:1::/64", "isGateway": true, "spoofCheck": true});
        let conf = NetConf::parse(&cni::Config::from_slice(config.to_string().as_bytes()).unwrap()).unwrap();
        let name = NetworkName::try_from("blue").unwrap();
        let round = || {
            let order = Order {
                run_dir: dir.path(),
                network: Some((&name, &conf)),
                mode: Some((&name, conf.mode)),
                depth: Depth::Pods,
                memory: &[],
                unrepaired: &[],
                resident: Some(&resident),
                is_only_agent: || true,
                warn: |message| panic!("{message}"),
            };
            let outcome = node.enter(|| reconcile(order).unwrap()).unwrap();
            assert_eq!(outcome.findings, []);
            outcome.repairs.into_iter().map(|repair| repair.what).collect::<Vec<_>>()
        };
        let sh = |words: &str| node.sh(&["sh", "-c", words]).unwrap();
        let add = |elements: &[&str]| {
            elements.iter().for_each(|e| drop(sh(&format!("nft 'add element inet podwire {e}'"))));
        };
        round();
        // Another network of this run directory, with an ADD under way that has a claim.
        let red = dir.path().join("networks/red");
        let state = crate::state::State::open(dir.path()).unwrap();
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
}
