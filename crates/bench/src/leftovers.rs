//! Objects that remain after all pods are removed: links, firewall entries, routes, addresses.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use netlink::{NetNs, RtSocket};
use testkit::{Ns, Snapshot, wait_until};

use crate::networks::BenchNetwork;
use crate::site::BenchNode;

/// The kernel completes some removals asynchronously.
const SETTLE: Duration = Duration::from_secs(5);

/// Snapshot of a node with its network and without pods.
pub(crate) struct Before {
    snapshot: Snapshot,
}

impl Before {
    pub(crate) fn take(bench_node: &BenchNode) -> Result<Self> {
        Ok(Self { snapshot: Snapshot::of(&bench_node.node)? })
    }

    /// Describes the difference if the plugin did not restore the node.
    pub(crate) fn changed(&self, bench_node: &BenchNode) -> Option<String> {
        self.snapshot.wait_for_same(&bench_node.node, SETTLE).err().map(|error| format!("{error:#}"))
    }
}

/// Links other than loopback and bridges on the node, and any link but loopback in the pods.
pub(crate) fn links(bench_node: &BenchNode) -> Vec<String> {
    let mut found: Vec<String> = links_in(&bench_node.node, Some("bridge")).err().into_iter().collect();
    found.extend(bench_node.pods.iter().filter_map(|pod| links_in(pod, None).err()));
    found
}

fn links_in(ns: &Ns, fine: Option<&str>) -> Result<(), String> {
    let mut left = Vec::new();
    let removed = wait_until("removal of all links", SETTLE, || {
        let links = RtSocket::open_in(&NetNs::open(ns.path())?)?.links()?;
        let stays = |kind: Option<&str>| kind.is_some() && kind == fine;
        left = links
            .into_iter()
            .filter(|l| l.name != "lo" && !stays(l.kind.as_deref()))
            .map(|l| l.name)
            .collect();
        Ok(left.is_empty())
    });
    removed.map_err(|error| format!("links in {}: {} ({error:#})", ns.name(), left.join(", ")))
}

/// Expected numbers of recorded attachments and addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) attachments: usize,
    pub(crate) addresses: usize,
}

impl Recorded {
    pub(crate) const NOTHING: Self = Self { attachments: 0, addresses: 0 };
}

pub(crate) fn podwire_state(
    bench_node: &BenchNode,
    network: BenchNetwork,
    expected: Recorded,
) -> Result<Option<String>> {
    let dir = bench_node.dir.join("state/networks").join(network.name()?.as_str());
    let found = Recorded {
        attachments: names(&dir.join("attachments"))?.len(),
        addresses: names(&dir.join("addresses"))?.len(),
    };
    Ok((found != expected).then(|| {
        let Recorded { attachments, addresses } = found;
        format!("{}: {attachments} attachments and {addresses} addresses still recorded", dir.display())
    }))
}

/// host-local has a file per address, a lock file and cursor files.
pub(crate) fn reference_state(bench_node: &BenchNode, network: BenchNetwork) -> Result<Option<String>> {
    let dir: PathBuf = bench_node.dir.join("ipam").join(network.name()?.as_str());
    let addresses = names(&dir)?.iter().filter(|name| name.parse::<IpAddr>().is_ok()).count();
    Ok((addresses > 0).then(|| format!("{}: {addresses} addresses still recorded", dir.display())))
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}
