//! The state file of a lab. It carries the lab's state from one `podwire lab` command to the next.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use files::Replacement;
use serde::{Deserialize, Serialize};

use super::underlay::Port;
use super::{AttachedPod, Cluster, ClusterOrigin, PendingPod, Plan, PodPlacement, Power};
use crate::service::ProcessLifetime;
use crate::{EtcdCluster, Lab, Node, ProcessIdentity};

const FILE: &str = "lab.json";
const VERSION: u32 = 1;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Prefix of the namespace names of saved labs.
const MARK: &str = "pwlab-";
const MAX_NAME_LENGTH: usize = 24;

/// The name, directory and program of a lab that outlives the command that created it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedLab {
    name: String,
    pub(super) dir: PathBuf,
    pub(super) program: PathBuf,
}

/// State of a lab according to its state file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LabState {
    Up,
    /// The command that created it did not complete.
    Unfinished,
    /// The host was rebooted since: nothing of the lab is running.
    Stale,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Saved {
    version: u32,
    boot: String,
    condition: LabState,
    plan: Plan,
    serial: u32,
    etcd: Vec<Option<ProcessIdentity>>,
    nodes: Vec<SavedNode>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    placements: BTreeMap<String, PodPlacement>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedNode {
    agent: Option<ProcessIdentity>,
    has_power: bool,
    is_cut: bool,
    pods: Vec<SavedPod>,
    lost: Vec<String>,
    /// Pods that are not attached yet; they have no addresses.
    #[serde(default, rename = "begun")]
    pending: Vec<SavedPod>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedPod {
    name: String,
    id: String,
    addresses: Vec<IpAddr>,
}

impl SavedLab {
    /// `dir` is the lab's directory, `program` the program of its agents.
    pub fn new(name: &str, dir: &Path, program: &Path) -> Result<Self> {
        // '-' is not allowed, so that no lab name is a prefix of another lab's namespaces.
        let is_allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
        ensure!(
            (1..=MAX_NAME_LENGTH).contains(&name.len()) && name.bytes().all(is_allowed),
            "{name:?} is not a valid lab name: use up to {MAX_NAME_LENGTH} of a-z, 0-9 and '_'"
        );
        Ok(Self { name: name.to_owned(), dir: dir.to_owned(), program: program.to_owned() })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn prefix(&self) -> String {
        format!("{MARK}{}", self.name)
    }

    /// Names of labs with existing namespaces.
    pub fn names_in_kernel() -> Result<Vec<String>> {
        let all = crate::sweep::namespaces_of(MARK.trim_end_matches('-'))?;
        let names = all.iter().filter_map(|name| name.strip_prefix(MARK)?.split('-').next());
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Reads the state from the state file; an error if the file is missing or unreadable.
    pub fn condition(&self) -> Result<LabState> {
        let saved = Saved::read(&self.dir)?;
        Ok(if saved.boot == boot_id()? { saved.condition } else { LabState::Stale })
    }

    /// The number of nodes in the state file.
    pub fn node_count(&self) -> Result<usize> {
        Ok(Saved::read(&self.dir)?.plan.nodes)
    }
}

impl Saved {
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let saved: Self = serde_json::from_slice(&text)
            .with_context(|| format!("{} is corrupt or was written by another version", path.display()))?;
        ensure!(saved.version == VERSION, "{} has the unsupported version {}", path.display(), saved.version);
        Ok(saved)
    }

    pub(super) fn processes(&self) -> Vec<ProcessIdentity> {
        // Start times are relative to the boot, so those of an earlier boot identify no process.
        if boot_id().is_ok_and(|boot| boot != self.boot) {
            return vec![];
        }
        self.etcd.iter().chain(self.nodes.iter().map(|node| &node.agent)).flatten().copied().collect()
    }
}

impl Cluster {
    /// Opens the cluster of an earlier command and completes the work of a command that was killed. The caller holds the
    /// lab's lock.
    pub fn open(saved_lab: &SavedLab) -> Result<Self> {
        let mut cluster = Self::read(saved_lab)?;
        cluster.complete_interrupted_steps()?;
        Ok(cluster)
    }

    /// Opens the cluster for reading. Another command may be changing it.
    pub fn read(saved_lab: &SavedLab) -> Result<Self> {
        let saved = Saved::read(&saved_lab.dir)?;
        match saved_lab.condition()? {
            LabState::Up => {}
            LabState::Unfinished => bail!("lab {} is incomplete: take it down", saved_lab.name),
            LabState::Stale => bail!("lab {} is from before the last boot: take it down", saved_lab.name),
        }
        let lab = Lab::saved(&saved_lab.prefix(), &saved_lab.dir, saved.serial)?;
        let mut cluster = Self::empty(&saved.plan, lab, ProcessLifetime::Detached)?;
        cluster.program = Some(saved_lab.program.clone());
        cluster.saved_lab = Some(saved_lab.clone());
        let hosts = (0..saved.etcd.len()).map(|index| {
            let (name, underlay_host) = (format!("etcd{}", index + 1), saved.plan.etcd_host(index));
            (Node::known(&cluster.lab.inner, &name), name, underlay_host.addresses[0].addr())
        });
        cluster.etcd = EtcdCluster::new(hosts.collect(), &saved.plan, &ProcessLifetime::Detached);
        for (member, identity) in cluster.etcd.members.iter_mut().zip(&saved.etcd) {
            identity.map(|identity| member.adopt(identity)).transpose()?;
        }
        *cluster.placements() = saved.placements;
        for (index, node) in saved.nodes.into_iter().enumerate() {
            cluster.restore_node(index, node)?;
        }
        cluster.origin = ClusterOrigin::Opened;
        Ok(cluster)
    }

    fn restore_node(&mut self, index: usize, saved: SavedNode) -> Result<()> {
        let node = Node::known(&self.lab.inner, &format!("n{}", index + 1));
        let mut host = self.new_cluster_node(index, node)?;
        saved.agent.map(|identity| host.agent.adopt(identity)).transpose()?;
        host.power = if saved.has_power { Power::On } else { Power::Off };
        host.port = if saved.is_cut { Port::Cut } else { Port::Forwarding };
        host.lost = saved.lost;
        for SavedPod { name, id, addresses } in saved.pods {
            let pod = host.node.known_pod(&name, &id);
            self.list().push(Arc::new(AttachedPod { name, node: host.name.clone(), pod, addresses }));
        }
        for SavedPod { name, id, .. } in saved.pending {
            self.pending().push(PendingPod { name, node: host.name.clone(), id });
        }
        self.nodes.push(host);
        Ok(())
    }

    /// Saves the next step before it starts. If this process is killed, the next command completes the step. A lab that is
    /// still being created is not repaired but replaced.
    pub(super) fn remember(&self) -> Result<()> {
        match self.origin {
            ClusterOrigin::Created => Ok(()),
            ClusterOrigin::Opened => self.save(LabState::Up),
        }
    }

    /// Writes the state file for the next command. Does nothing for a cluster that is removed with this process.
    pub fn save(&self, condition: LabState) -> Result<()> {
        let Some(saved_lab) = &self.saved_lab else { return Ok(()) };
        let saved = Saved {
            version: VERSION,
            boot: boot_id()?,
            condition,
            plan: self.plan.clone(),
            serial: self.lab.inner.serial(),
            etcd: self.etcd.members.iter().map(crate::EtcdMember::identity).collect(),
            nodes: self.nodes.iter().map(|host| self.saved_node(host)).collect(),
            placements: self.placements().clone(),
        };
        write(&saved_lab.dir, &serde_json::to_vec_pretty(&saved)?)
    }

    fn saved_node(&self, host: &super::ClusterNode) -> SavedNode {
        let pods = self.pods().into_iter().filter(|attached| attached.node == host.name);
        let pod = |attached: Arc<AttachedPod>| SavedPod {
            name: attached.name.clone(),
            id: attached.pod.id().to_owned(),
            addresses: attached.addresses.clone(),
        };
        SavedNode {
            agent: host.agent.identity(),
            has_power: host.power == Power::On,
            is_cut: host.port == Port::Cut,
            pods: pods.map(pod).collect(),
            lost: host.lost.clone(),
            pending: self
                .pending()
                .iter()
                .filter(|pending| pending.node == host.name)
                .map(unattached)
                .collect(),
        }
    }
}

fn unattached(pending: &PendingPod) -> SavedPod {
    SavedPod { name: pending.name.clone(), id: pending.id.clone(), addresses: vec![] }
}

/// Replaces the file atomically, because a command may be killed at any time. The lab's lock excludes other writers.
fn write(dir: &Path, bytes: &[u8]) -> Result<()> {
    let path = dir.join(FILE);
    files::replace(&path, bytes, Replacement::STATE)
        .with_context(|| format!("cannot write {}", path.display()))
}

fn boot_id() -> Result<String> {
    let id = fs::read_to_string(BOOT_ID).with_context(|| format!("cannot read {BOOT_ID}"))?;
    Ok(id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No command follows a symlink that another user created in the lab's directory.
    #[test]
    fn the_state_file_is_replaced_and_symlinks_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        fs::write(&other, "unchanged").unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join("lab.json.new")).unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join(FILE)).unwrap();
        for text in ["first", "second"] {
            write(dir.path(), text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(dir.path().join(FILE)).unwrap(), text);
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "unchanged");
    }

    #[test]
    fn lab_names_with_ambiguous_prefixes_are_rejected() {
        let saved_lab = |name| SavedLab::new(name, Path::new("/x"), Path::new("/y"));
        assert_eq!(saved_lab("a_1").unwrap().prefix(), "pwlab-a_1");
        for bad in ["", "a-b", "A", "a b", "..", "a/b", "abcdefghijklmnopqrstuvwxy"] {
            assert!(saved_lab(bad).is_err(), "{bad:?}");
        }
    }
}
