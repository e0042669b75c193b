//! What one command of `podwire lab` leaves for the next: a file in the lab's directory.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use files::Replacement;
use serde::{Deserialize, Serialize};

use super::underlay::Port;
use super::{AttachedPod, Begun, Cluster, ClusterOrigin, Plan, Power};
use crate::service::ProcessLifetime;
use crate::{EtcdCluster, Lab, Node, ProcessIdentity};

const FILE: &str = "lab.json";
const VERSION: u32 = 1;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// What the names of all namespaces of such labs begin with.
const MARK: &str = "pwlab-";
const LONGEST_NAME: usize = 24;

/// Where a lab that lives on has its things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedLab {
    name: String,
    pub(super) dir: PathBuf,
    pub(super) program: PathBuf,
}

/// What the file says of a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LabState {
    Up,
    /// Whoever made it has not come to the end.
    Unfinished,
    /// The machine was started since: nothing of it runs.
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
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedNode {
    agent: Option<ProcessIdentity>,
    has_power: bool,
    is_cut: bool,
    pods: Vec<SavedPod>,
    lost: Vec<String>,
    /// Pods that are not attached yet; they have no addresses.
    #[serde(default)]
    begun: Vec<SavedPod>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedPod {
    name: String,
    id: String,
    addresses: Vec<IpAddr>,
}

impl SavedLab {
    /// `dir` is the lab's own directory, `program` what is started as the agent.
    pub fn new(name: &str, dir: &Path, program: &Path) -> Result<Self> {
        // Without '-', so that no name is the beginning of another lab's namespaces.
        let is_tame = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
        ensure!(
            (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_tame),
            "{name:?} is no name for a lab: use up to {LONGEST_NAME} of a-z, 0-9 and '_'"
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

    /// Names of labs of which namespaces exist.
    pub fn names_in_kernel() -> Result<Vec<String>> {
        let all = crate::sweep::namespaces_of(MARK.trim_end_matches('-'))?;
        let names = all.iter().filter_map(|name| name.strip_prefix(MARK)?.split('-').next());
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// What its file says; an error if there is none that can be read.
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
            .with_context(|| format!("{} is damaged, or of another version", path.display()))?;
        ensure!(saved.version == VERSION, "{} is of version {}", path.display(), saved.version);
        Ok(saved)
    }

    pub(super) fn processes(&self) -> Vec<ProcessIdentity> {
        // Start times count from the boot: those of an earlier one mean nothing.
        if boot_id().is_ok_and(|boot| boot != self.boot) {
            return vec![];
        }
        self.etcd.iter().chain(self.nodes.iter().map(|node| &node.agent)).flatten().copied().collect()
    }
}

impl Cluster {
    /// What an earlier command made; what one that was killed left undone is done now. The caller sees to it that nobody
    /// else works on the lab.
    pub fn open(kept: &SavedLab) -> Result<Self> {
        let saved = Saved::read(&kept.dir)?;
        match kept.condition()? {
            LabState::Up => {}
            LabState::Unfinished => bail!("lab {} was not made to the end: take it down", kept.name),
            LabState::Stale => bail!("lab {} is from before the last boot: take it down", kept.name),
        }
        let lab = Lab::kept(&kept.prefix(), &kept.dir, saved.serial)?;
        let mut cluster = Self::empty(&saved.plan, lab, ProcessLifetime::Kept)?;
        cluster.program = Some(kept.program.clone());
        cluster.kept = Some(kept.clone());
        let hosts = (0..saved.etcd.len()).map(|index| {
            let (name, place) = (format!("etcd{}", index + 1), saved.plan.etcd_place(index));
            (Node::known(&cluster.lab.inner, &name), name, place.addresses[0].addr())
        });
        cluster.etcd = EtcdCluster::new(hosts.collect(), &saved.plan, &ProcessLifetime::Kept);
        for (member, identity) in cluster.etcd.members.iter_mut().zip(&saved.etcd) {
            identity.map(|identity| member.adopt(identity)).transpose()?;
        }
        for (index, node) in saved.nodes.into_iter().enumerate() {
            cluster.know_node(index, node)?;
        }
        cluster.origin = ClusterOrigin::Opened;
        cluster.settle()?;
        Ok(cluster)
    }

    fn know_node(&mut self, index: usize, saved: SavedNode) -> Result<()> {
        let node = Node::known(&self.lab.inner, &format!("n{}", index + 1));
        let mut machine = self.machine(index, node)?;
        saved.agent.map(|identity| machine.agent.adopt(identity)).transpose()?;
        machine.power = if saved.has_power { Power::On } else { Power::Off };
        machine.port = if saved.is_cut { Port::Cut } else { Port::Whole };
        machine.lost = saved.lost;
        for SavedPod { name, id, addresses } in saved.pods {
            let pod = machine.node.known_pod(&name, &id);
            self.list().push(Arc::new(AttachedPod { name, node: machine.name.clone(), pod, addresses }));
        }
        for SavedPod { name, id, .. } in saved.begun {
            self.begun().push(Begun { name, node: machine.name.clone(), id });
        }
        self.machines.push(machine);
        Ok(())
    }

    /// What is about to be done, for whoever comes after us if we are killed meanwhile. A lab that is being made is not
    /// mended but replaced.
    pub(super) fn remember(&self) -> Result<()> {
        match self.origin {
            ClusterOrigin::Made => Ok(()),
            ClusterOrigin::Opened => self.save(LabState::Up),
        }
    }

    /// For the next command. It does nothing for a cluster that goes with this process.
    pub fn save(&self, condition: LabState) -> Result<()> {
        let Some(kept) = &self.kept else { return Ok(()) };
        let saved = Saved {
            version: VERSION,
            boot: boot_id()?,
            condition,
            plan: self.plan.clone(),
            serial: self.lab.inner.serial(),
            etcd: self.etcd.members.iter().map(crate::EtcdMember::identity).collect(),
            nodes: self.machines.iter().map(|machine| self.saved_node(machine)).collect(),
        };
        write(&kept.dir, &serde_json::to_vec_pretty(&saved)?)
    }

    fn saved_node(&self, machine: &super::ClusterNode) -> SavedNode {
        let pods = self.pods().into_iter().filter(|wired| wired.node == machine.name);
        let pod = |wired: Arc<AttachedPod>| SavedPod {
            name: wired.name.clone(),
            id: wired.pod.id().to_owned(),
            addresses: wired.addresses.clone(),
        };
        SavedNode {
            agent: machine.agent.identity(),
            has_power: machine.power == Power::On,
            is_cut: machine.port == Port::Cut,
            pods: pods.map(pod).collect(),
            lost: machine.lost.clone(),
            begun: self.begun().iter().filter(|begun| begun.node == machine.name).map(unattached).collect(),
        }
    }
}

fn unattached(begun: &Begun) -> SavedPod {
    SavedPod { name: begun.name.clone(), id: begun.id.clone(), addresses: vec![] }
}

/// Whole or not at all: a command may be killed at any time. One command at a time works on a lab.
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

    /// A command follows no symlink that another user put into the lab's directory.
    #[test]
    fn the_file_of_a_lab_is_replaced_whole_and_nothing_else_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join("lab.json.new")).unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join(FILE)).unwrap();
        for text in ["first", "second"] {
            write(dir.path(), text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(dir.path().join(FILE)).unwrap(), text);
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
    }

    #[test]
    fn names_of_labs_do_not_run_into_each_other() {
        let kept = |name| SavedLab::new(name, Path::new("/x"), Path::new("/y"));
        assert_eq!(kept("a_1").unwrap().prefix(), "pwlab-a_1");
        for bad in ["", "a-b", "A", "a b", "..", "a/b", "abcdefghijklmnopqrstuvwxy"] {
            assert!(kept(bad).is_err(), "{bad:?}");
        }
    }
}
