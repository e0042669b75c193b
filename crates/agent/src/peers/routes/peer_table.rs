//! The firewall's table of peers decides which node may send which inner sources through the tunnels. It is applied before a tunnel
//! device is created, and changes with the records of nodes.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use model::SourceChanges;
use nft::{PeerRules, PeerTable, Surplus};
use tracing::{debug, info};
use types::{Code, Finding, IfName, PeerSource};

use super::{PAUSE, Routes};

/// The table, and when it is compared as a whole.
#[derive(Default)]
pub(crate) struct PeerTableState {
    table: Option<PeerTable>,
    /// The rules that were applied last.
    rules: Option<PeerRules>,
    /// The table may have drifted.
    is_due: bool,
    compared_at: Option<Instant>,
    /// Duration of the last comparison.
    took: Duration,
}

/// The pause between two comparisons is this many times the duration of the last one.
const PAUSE_FACTOR: u32 = 10;

impl PeerTableState {
    pub(super) fn make_due(&mut self) {
        self.is_due = true;
    }

    fn table(&mut self, network: &types::NetworkName) -> Result<&mut PeerTable, nft::Error> {
        match &mut self.table {
            Some(table) => Ok(table),
            empty => Ok(empty.insert(PeerTable::open(network)?)),
        }
    }
}

impl Routes {
    /// The table was changed, by another process or by this agent: both cause the same event.
    pub(super) fn peer_table_changed(&mut self) {
        self.known.peer_table.make_due();
        self.compare_within(PAUSE.max(self.known.peer_table.took * PAUSE_FACTOR));
    }

    /// Creates, repairs or deletes the table. `wanted` are the needed tunnels, IPv4 and IPv6. After an error, no tunnel may be created.
    pub(super) fn reconcile_peer_table(&mut self, wanted: (bool, bool)) -> Result<(), Finding> {
        let table = format!("table podwire-peers-{}", self.config.network.name);
        let failed = |message: String| Finding::new(Code::RepairFailed, &table, message);
        let rules = self.peer_rules(wanted).map_err(|error| failed(error.to_string()))?;
        let kept = match rules {
            Some(rules) => self.compare_peer_table(rules),
            None if self.known.is_complete => self.delete_peer_table(),
            // There may be peers that the store has not listed yet.
            None => Ok(()),
        };
        kept.map_err(|error| {
            self.known.peer_table.make_due();
            error.missing_program().unwrap_or_else(|| {
                failed(format!("the firewall cannot distinguish peers from other hosts: {error}"))
            })
        })
    }

    /// Whether there are peers, but no table that prevents pods from sending to their tunnels.
    pub(super) fn lacks_peer_table(&self) -> bool {
        self.known.peer_table.rules.is_none() && self.known.mesh.peers().next().is_some()
    }

    /// None if this node has neither a tunnel nor peers. Without a tunnel it receives nothing, but its pods must not send to the tunnels
    /// of peers: a peer with transport `direct` may have a tunnel, too.
    fn peer_rules(&mut self, (v4, v6): (bool, bool)) -> Result<Option<PeerRules>, netlink::Error> {
        let config = std::sync::Arc::clone(&self.config);
        // An earlier agent may have created the devices.
        let mut existing = |name: Option<IfName>| match name {
            Some(name) => self.kernel.socket.link(&name),
            None => Ok(None),
        };
        let devices = (existing(config.cluster.tunnel4().ok())?, existing(config.cluster.tunnel6().ok())?);
        // A tunnel is created only after the table was compared: a process that removed the device may have removed the table, and
        // its event may arrive later.
        if (v4 && devices.0.is_none()) || (v6 && devices.1.is_none()) {
            self.known.peer_table.make_due();
        }
        let (v4, v6) = (v4 || devices.0.is_some(), v6 || devices.1.is_some());
        if !v4 && !v6 && self.known.mesh.peers().next().is_none() {
            return Ok(None);
        }
        // An address that is missing for a moment is expected to return.
        let before = self.known.peer_table.rules.iter().flat_map(|rules| rules.locals.iter().copied());
        let own = (config.cluster.vni, config.cluster.vxlan_port);
        let tunnels = [devices.0, devices.1].into_iter().flatten().filter_map(|link| link.vxlan);
        let ends = tunnels.filter(|vxlan| (vxlan.vni, vxlan.port) == own).filter_map(|vxlan| vxlan.local);
        let known: Vec<IpAddr> =
            self.known.position.addresses().into_iter().chain(before).chain(ends).collect();
        let local = |is_v4: bool| known.iter().copied().find(|address| address.is_ipv4() == is_v4);
        let locals =
            [local(true).filter(|_| v4), local(false).filter(|_| v6)].into_iter().flatten().collect();
        let lengths = |v4: bool| {
            let layouts = self.block_layouts.iter().filter(|layout| layout.subnet().addr().is_ipv4() == v4);
            layouts.map(model::BlockLayout::length).collect()
        };
        Ok(Some(PeerRules {
            vni: config.cluster.vni,
            port: config.cluster.vxlan_port,
            mac: self.record.tunnel_mac,
            locals,
            blocks4: lengths(true),
            blocks6: lengths(false),
        }))
    }

    /// Compares the whole table after drift, a changed configuration or some time. Otherwise only changes are applied.
    fn compare_peer_table(&mut self, rules: PeerRules) -> Result<(), nft::Error> {
        let network = &self.config.network.name;
        let (is_complete, reconcile) = (self.known.is_complete, self.config.reconcile);
        let (peers, mesh) = (&mut self.known.peer_table, &mut self.known.mesh);
        let begun = Instant::now();
        let is_old = peers.compared_at.is_none_or(|at| at + reconcile <= begun);
        let is_changed = peers.rules.as_ref() != Some(&rules);
        let SourceChanges { add, remove } = mesh.take_source_changes();
        if !is_old && !is_changed && !peers.is_due {
            let table = peers.table(network)?;
            table.add(&add)?;
            return table.remove(&remove);
        }
        let surplus = if is_complete { Surplus::Remove } else { Surplus::Keep };
        let done = peers.table(network)?.reconcile(&rules, &mesh.sources().collect::<Vec<_>>(), surplus)?;
        let is_first = peers.compared_at.is_none();
        peers.took = begun.elapsed();
        (peers.rules, peers.is_due, peers.compared_at) = (Some(rules), false, Some(begun));
        let done: Vec<String> = done.iter().map(|what| format!("firewall of tunnels: {what}")).collect();
        // Changes of this node or its peers are no repairs.
        if !is_first && !is_changed && add.is_empty() && remove.is_empty() {
            self.record_repairs("peer_table", done.len(), &done);
        } else {
            done.iter().for_each(|what| info!("{what}"));
        }
        Ok(())
    }

    fn delete_peer_table(&mut self) -> Result<(), nft::Error> {
        let network = &self.config.network.name;
        let peers = &mut self.known.peer_table;
        // Sources that change meanwhile are found by the first comparison.
        self.known.mesh.take_source_changes();
        let was_compared = peers.compared_at.is_some() && peers.rules.is_none();
        if was_compared && !peers.is_due {
            return Ok(());
        }
        if peers.table(network)?.delete()? {
            info!("firewall of tunnels: removed, this node has neither a tunnel nor peers");
        }
        (peers.rules, peers.is_due, peers.compared_at) = (None, false, Some(Instant::now()));
        Ok(())
    }

    /// Accepts more sources. To be called before routes to these peers are added.
    pub(super) fn add_sources(&mut self, added: &[PeerSource]) {
        self.change_sources(|table| table.add(added));
    }

    /// Stops accepting these sources.
    pub(super) fn remove_sources(&mut self, removed: &[PeerSource]) {
        self.change_sources(|table| table.remove(removed));
    }

    fn change_sources(&mut self, change: impl FnOnce(&mut PeerTable) -> Result<(), nft::Error>) {
        let peers = &mut self.known.peer_table;
        if peers.rules.is_none() {
            return;
        }
        let changed = peers.table(&self.config.network.name).and_then(change);
        if let Err(error) = changed {
            // Another process may have removed the table. The next comparison restores it with all sources.
            debug!(%error, "cannot change the sources of peers; comparing the whole table");
            self.known.peer_table.make_due();
            self.compare_within(PAUSE);
        }
    }
}
