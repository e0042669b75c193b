//! What the routes' side knows, and when it looks next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::{Facts, Mesh, NodeRecord, Tunnels};
use tokio::time::Instant;
use tracing::{info, warn};
use types::NodeName;

use super::member::Census;
use super::routes::{Peers, Telling, Trials};
use super::tunnel::Tunnel;
use super::underlay::Position;

/// How long nodes that a wiped store does not know are kept. Pods run also where the agent does not, and a machine's agent
/// may be down for as long as an update takes; for whoever is gone for good, nobody could tell us any more.
const AWAITED: Duration = Duration::from_secs(3600);

/// The other nodes, and where this one is.
pub(super) struct Known {
    pub(super) mesh: Mesh,
    pub(super) position: Position,
    pub(super) tunnels: Tunnels,
    /// Whether the store has told all nodes: only then what is not among them goes.
    pub(super) is_complete: bool,
    /// When everything is compared.
    pub(super) look_at: Instant,
    /// When the others are written down.
    pub(super) save_at: Option<Instant>,
    /// Nodes that a wiped store does not know yet, and until when they are kept.
    pub(super) awaited: BTreeMap<NodeName, Instant>,
    /// Since when an address that was published is not there.
    pub(super) missing_since: Option<Instant>,
    /// What the tunnel devices should have been when they were last looked after, IPv6 and IPv4.
    pub(super) kept_tunnels: [Option<Tunnel>; 2],
    /// Why a tunnel device is not as it should be.
    pub(super) tunnel_troubles: Vec<String>,
    /// Links of others that have a name which a tunnel should have.
    pub(super) in_the_way: Vec<u32>,
    pub(super) peers: Peers,
    pub(super) telling: Telling,
    pub(super) trials: Trials,
}

impl Known {
    /// With the others as they were remembered.
    pub(super) fn new(facts: Facts, remembered: Vec<NodeRecord>) -> Self {
        let mut mesh = Mesh::new(facts);
        mesh.set_peers(remembered);
        Self {
            mesh,
            position: Position::default(),
            tunnels: Tunnels::default(),
            is_complete: false,
            look_at: Instant::now(),
            save_at: None,
            awaited: BTreeMap::new(),
            missing_since: None,
            kept_tunnels: [None, None],
            tunnel_troubles: Vec::new(),
            in_the_way: Vec::new(),
            peers: Peers::default(),
            telling: Telling::default(),
            trials: Trials::default(),
        }
    }

    /// All nodes of the store take the place of those that were known, with two exceptions. After the store was wiped, those
    /// who are not in it yet register again in a moment, and their pods are where they were. And whose record cannot be read
    /// is not gone.
    pub(super) fn set_all(&mut self, census: Census) {
        let Census { nodes, unread, was_wiped } = census;
        self.is_complete = true;
        let told: BTreeSet<&NodeName> = nodes.iter().map(|record| &record.name).collect();
        let is_kept = |name: &NodeName| was_wiped || unread.contains(name) || self.awaited.contains_key(name);
        let absent = self.mesh.peers().filter(|record| !told.contains(&record.name));
        let kept: Vec<NodeRecord> = absent.filter(|record| is_kept(&record.name)).cloned().collect();
        if was_wiped {
            self.await_return(kept.iter().map(|record| &record.name).filter(|name| !unread.contains(*name)));
        }
        if kept.is_empty() {
            self.awaited.clear();
            return self.mesh.set_peers(nodes);
        }
        self.mesh.set_peers(kept);
        nodes.into_iter().for_each(|record| self.set_peer(record));
    }

    fn await_return<'a>(&mut self, names: impl Iterator<Item = &'a NodeName>) {
        let until = Instant::now() + AWAITED;
        for name in names {
            self.awaited.entry(name.clone()).or_insert(until);
        }
        if !self.awaited.is_empty() {
            let count = self.awaited.len();
            warn!(
                "this node's record was gone from the store, and {count} nodes that are known here are not in it: they are kept for an hour"
            );
            self.look_at = self.look_at.min(until);
        }
    }

    /// A node that the store knows. What it says counts more than what we remember of those who are awaited.
    pub(super) fn set_peer(&mut self, record: NodeRecord) {
        self.awaited.remove(&record.name);
        let is_rival = |other: &&NodeRecord| {
            self.awaited.contains_key(&other.name)
                && other.blocks.iter().any(|a| record.blocks.iter().any(|b| a.contains(b) || b.contains(a)))
        };
        if !self.awaited.is_empty() {
            let rivals: Vec<NodeName> =
                self.mesh.peers().filter(is_rival).map(|other| other.name.clone()).collect();
            for name in rivals {
                self.awaited.remove(&name);
                self.mesh.remove_peer(&name);
            }
        }
        self.mesh.set_peer(record);
    }

    /// Who did not come back in time is gone.
    pub(super) fn give_up(&mut self) {
        let now = Instant::now();
        let late: Vec<NodeName> =
            self.awaited.iter().filter(|(_, until)| **until <= now).map(|(name, _)| name.clone()).collect();
        for name in late {
            info!("{name} did not register again: its routes go");
            self.save_at.get_or_insert(now);
            self.awaited.remove(&name);
            self.mesh.remove_peer(&name);
        }
    }
}
