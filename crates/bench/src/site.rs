//! The nodes of the contenders and the sandboxes of their pods, all created before the measurements.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use testkit::{Lab, Node, Pod};

use crate::options::Scale;

/// A node with sandboxes for its pods and a directory for the state of its plugin.
pub(crate) struct BenchNode {
    pub(crate) node: Node,
    pub(crate) pods: Vec<Pod>,
    pub(crate) dir: PathBuf,
}

impl BenchNode {
    pub(crate) fn create((lab, state): (&Lab, &StateDirectory), name: &str, pods: usize) -> Result<Self> {
        let node = lab.node(name)?;
        let pods = (0..pods).map(|i| node.pod(&i.to_string())).collect::<Result<_>>()?;
        let dir = state.path.join(name);
        fs::create_dir(&dir).with_context(|| format!("cannot create directory {}", dir.display()))?;
        Ok(Self { node, pods, dir })
    }
}

pub(crate) struct BenchSite {
    pub(crate) podwire: BenchNode,
    pub(crate) routed: BenchNode,
    pub(crate) reference: BenchNode,
    /// Only the netlink messages of an ADD and DEL: a lower bound for every plugin.
    pub(crate) floor: BenchNode,
    /// The same messages, sent by a process that is started for each ADD.
    pub(crate) spawned_floor: BenchNode,
    /// The agents' nodes by attach mode. The first also has sandboxes for the running pods of `cases::footprint`.
    pub(crate) agent: BenchNode,
    pub(crate) agent_bridge: BenchNode,
    pub(crate) state: StateDirectory,
    _lab: Lab,
}

impl BenchSite {
    pub(crate) fn create(scale: &Scale) -> Result<Self> {
        let lab = Lab::new("bench")?;
        let state = StateDirectory::create(&lab)?;
        let node_with = |name: &str, pods: usize| BenchNode::create((&lab, &state), name, pods);
        let bench_node = |name: &str| node_with(name, scale.pods);
        Ok(Self {
            podwire: bench_node("podwire")?,
            routed: bench_node("routed")?,
            reference: bench_node("reference")?,
            floor: bench_node("floor")?,
            spawned_floor: bench_node("spawned")?,
            agent: node_with("agent", scale.pods.max(scale.running_pods))?,
            agent_bridge: bench_node("agent-bridge")?,
            state,
            _lab: lab,
        })
    }
}

/// The state directory of all plugins. It is in memory, like /run, so that the disk does not affect the times.
pub(crate) struct StateDirectory {
    path: PathBuf,
    pub(crate) in_memory: bool,
}

impl StateDirectory {
    pub(crate) fn create(lab: &Lab) -> Result<Self> {
        let memory = ["/run", "/dev/shm"].map(Path::new).into_iter().find(|dir| is_tmpfs(dir));
        let Some(memory) = memory else {
            return Ok(Self { path: lab.dir().to_owned(), in_memory: false });
        };
        remove_stale_directories(memory);
        let path = memory.join(lab.prefix());
        fs::create_dir(&path).with_context(|| format!("cannot create directory {}", path.display()))?;
        Ok(Self { path, in_memory: true })
    }
}

impl Drop for StateDirectory {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {}: {e}", self.path.display());
        }
    }
}

fn is_tmpfs(dir: &Path) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    rustix::fs::statfs(dir).is_ok_and(|fs| u64::try_from(fs.f_type) == Ok(TMPFS_MAGIC))
}

/// Removes the directories of killed runs. A lab removes only its own directories.
fn remove_stale_directories(memory: &Path) {
    let Ok(entries) = fs::read_dir(memory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner =
            name.to_str().and_then(|name| name.strip_prefix("pwt-")?.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Another run may remove the same directory.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
