//! Where it happens: a node for each contender, and the sandboxes of its pods, all made before anything is timed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use testkit::{Lab, Node, Pod};

use crate::options::Scale;

/// A node with sandboxes for its pods and a directory for what its plugin keeps.
pub(crate) struct Seat {
    pub(crate) node: Node,
    pub(crate) pods: Vec<Pod>,
    pub(crate) dir: PathBuf,
}

impl Seat {
    pub(crate) fn make((lab, memory): (&Lab, &Directory), name: &str, pods: usize) -> Result<Self> {
        let node = lab.node(name)?;
        let pods = (0..pods).map(|i| node.pod(&i.to_string())).collect::<Result<_>>()?;
        let dir = memory.path.join(name);
        fs::create_dir(&dir).with_context(|| format!("cannot make directory {}", dir.display()))?;
        Ok(Self { node, pods, dir })
    }
}

pub(crate) struct BenchSite {
    pub(crate) podwire: Seat,
    pub(crate) routed: Seat,
    pub(crate) reference: Seat,
    pub(crate) floor: Seat,
    /// The agents' nodes, by the mode of their pods; the first has sandboxes enough for those who stay, too.
    pub(crate) agent: Seat,
    pub(crate) agent_bridge: Seat,
    pub(crate) memory: Directory,
    _lab: Lab,
}

impl BenchSite {
    pub(crate) fn make(scale: &Scale) -> Result<Self> {
        let lab = Lab::new("bench")?;
        let memory = Directory::make(&lab)?;
        let seat_with = |name: &str, pods: usize| Seat::make((&lab, &memory), name, pods);
        let seat = |name: &str| seat_with(name, scale.pods);
        Ok(Self {
            podwire: seat("podwire")?,
            routed: seat("routed")?,
            reference: seat("reference")?,
            floor: seat("floor")?,
            agent: seat_with("agent", scale.pods.max(scale.resident))?,
            agent_bridge: seat("agent-bridge")?,
            memory,
            _lab: lab,
        })
    }
}

/// The directory for the state of all plugins. In memory, where a node's /run is: the disk is nobody's merit or fault.
pub(crate) struct Directory {
    path: PathBuf,
    pub(crate) in_memory: bool,
}

impl Directory {
    pub(crate) fn make(lab: &Lab) -> Result<Self> {
        let memory = ["/run", "/dev/shm"].map(Path::new).into_iter().find(|dir| is_tmpfs(dir));
        let Some(memory) = memory else {
            return Ok(Self { path: lab.dir().to_owned(), in_memory: false });
        };
        sweep(memory);
        let path = memory.join(lab.prefix());
        fs::create_dir(&path).with_context(|| format!("cannot make directory {}", path.display()))?;
        Ok(Self { path, in_memory: true })
    }
}

impl Drop for Directory {
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

/// Removes the directories of runs that were killed; a lab does so with its own, but it does not look here.
fn sweep(memory: &Path) {
    let Ok(entries) = fs::read_dir(memory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner =
            name.to_str().and_then(|name| name.strip_prefix("pwt-")?.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Another run may be sweeping the same one.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
