//! What the routes' side knows, and when it looks next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::{Facts, Mesh, NodeRecord, Tunnels};
use tokio::time::Instant;
use tracing::{info, warn};
use types::NodeName;

use super::underlay::Position;

/// How long nodes that a wiped store does not know are kept. Their agents try again every few seconds.
const AWAITED: Duration = Duration::from_secs(60);

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
    pub(super) told: Vec<String>,
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
            told: Vec::new(),
        }
    }

    /// The store was wiped: those who are not in it yet register again in a moment, and their pods are where they were.
    pub(super) fn keep_awaited(&mut self, survivors: Vec<NodeRecord>) {
        let known: BTreeSet<NodeName> = survivors.iter().map(|record| record.name.clone()).collect();
        let awaited: Vec<NodeRecord> =
            self.mesh.peers().filter(|record| !known.contains(&record.name)).cloned().collect();
        let until = Instant::now() + AWAITED;
        for record in &awaited {
            self.awaited.entry(record.name.clone()).or_insert(until);
        }
        if !awaited.is_empty() {
            warn!("the store was wiped: {} nodes are not in it yet, and are kept for a while", awaited.len());
            self.look_at = self.look_at.min(until);
        }
        self.mesh.set_peers(awaited);
        survivors.into_iter().for_each(|record| self.set_peer(record));
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
            self.awaited.remove(&name);
            self.mesh.remove_peer(&name);
        }
    }
}
