//! What is still there when all pods are gone: links, firewall entries, routes, addresses.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use netlink::{NetNs, RtSocket};
use testkit::{Ns, Snapshot, wait_until};

use crate::networks::BenchNetwork;
use crate::site::Seat;

/// The kernel finishes some removals a little after it has answered.
const SETTLE: Duration = Duration::from_secs(5);

/// What a node looked like with its network made and no pod in it.
pub(crate) struct Before {
    snapshot: Snapshot,
}

impl Before {
    pub(crate) fn look(seat: &Seat) -> Result<Self> {
        Ok(Self { snapshot: Snapshot::of(&seat.node)? })
    }

    /// For a node whose plugin restores everything: a sentence if it did not.
    pub(crate) fn changed(&self, seat: &Seat) -> Option<String> {
        self.snapshot.wait_for_same(&seat.node, SETTLE).err().map(|error| format!("{error:#}"))
    }
}

/// Links other than loopback and bridges on the node, and any link but loopback in the pods.
pub(crate) fn links(seat: &Seat) -> Vec<String> {
    let mut found: Vec<String> = links_in(&seat.node, Some("bridge")).err().into_iter().collect();
    found.extend(seat.pods.iter().filter_map(|pod| links_in(pod, None).err()));
    found
}

fn links_in(ns: &Ns, fine: Option<&str>) -> Result<(), String> {
    let mut left = Vec::new();
    let gone = wait_until("all links to vanish", SETTLE, || {
        let links = RtSocket::open_in(&NetNs::open(ns.path())?)?.links()?;
        let stays = |kind: Option<&str>| kind.is_some() && kind == fine;
        left = links
            .into_iter()
            .filter(|l| l.name != "lo" && !stays(l.kind.as_deref()))
            .map(|l| l.name)
            .collect();
        Ok(left.is_empty())
    });
    gone.map_err(|error| format!("links in {}: {} ({error:#})", ns.name(), left.join(", ")))
}

/// How many attachments, and how many addresses, are expected to be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) attachments: usize,
    pub(crate) addresses: usize,
}

impl Recorded {
    pub(crate) const NOTHING: Self = Self { attachments: 0, addresses: 0 };
}

pub(crate) fn podwire_state(
    seat: &Seat,
    network: BenchNetwork,
    expected: Recorded,
) -> Result<Option<String>> {
    let dir = seat.dir.join("state/networks").join(network.name()?.as_str());
    let found = Recorded {
        attachments: names(&dir.join("attachments"))?.len(),
        addresses: names(&dir.join("addresses"))?.len(),
    };
    Ok((found != expected).then(|| {
        let Recorded { attachments, addresses } = found;
        format!("{}: {attachments} attachments and {addresses} addresses still recorded", dir.display())
    }))
}

/// host-local keeps a file for each address, beside its lock and its cursors.
pub(crate) fn reference_state(seat: &Seat, network: BenchNetwork) -> Result<Option<String>> {
    let dir: PathBuf = seat.dir.join("ipam").join(network.name()?.as_str());
    let addresses = names(&dir)?.iter().filter(|name| name.parse::<IpAddr>().is_ok()).count();
    Ok((addresses > 0).then(|| format!("{}: {addresses} addresses still recorded", dir.display())))
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}
