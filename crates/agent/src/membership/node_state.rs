//! The state of a node that is saved over reboots, in STATE_DIR/NETWORK:
//!
//! ```text
//! uid          identity of this host, generated once
//! node.json    the node's last record in the store; its blocks stay in force while the store is unreachable
//! peers.json   records of the peers, for a boot while the store is unreachable
//! objects.json tenants, groups and policies, for the same purpose
//! pods.json    pods of other nodes and their identities, for the same purpose
//! mtu          MTU of the pods, for a boot before the node's link has an address
//! ```
//!
//! Each file is replaced atomically and flushed to disk.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use files::{Replacement, optional};
use model::{Catalog, NodeRecord, Object as _};
use rustix::rand::{GetRandomFlags, getrandom};
use types::{NetworkName, NodeName, NodeUid, cause};

use super::saved_objects;
use crate::identities::SavedPods;

#[derive(Debug, thiserror::Error)]
pub enum NodeStateDirError {
    #[error("cannot {operation} {}: {}", path.display(), cause(source))]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
    #[error("{} does not contain a node uid ({reason}): restore it, or remove it to join as a new node", path.display())]
    Uid { path: PathBuf, reason: types::NameError },
    #[error("the state directory is not safe: {0}")]
    Unsafe(#[from] files::UnsafeDir),
}

/// Saved objects of which at least one line cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "line {line} of {} cannot be read: until the store has answered, an existing table of policies stays, and pods with a tenant, \
     network or group are refused",
    path.display()
)]
pub(crate) struct UnreadableObjects {
    path: PathBuf,
    line: usize,
}

/// The files of a network's directory.
const FILES: [&str; 6] = ["node.json", "peers.json", "objects.json", "pods.json", "mtu", "uid"];
/// The embedded store and its files. Earlier versions created `log.new` and `gate`.
const STORE: &str = "store";
const STORE_FILES: [&str; 4] = ["log", "log.new", "gate", "lock"];

#[derive(Debug, Clone)]
pub(crate) struct NodeStateDir {
    dir: PathBuf,
}

impl NodeStateDir {
    pub(crate) fn of(state_dir: &Path, network: &NetworkName) -> Self {
        Self { dir: state_dir.join(network.as_str()) }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The uid of this host. Generates one if there is none.
    pub(crate) fn uid(&self) -> Result<NodeUid, NodeStateDirError> {
        if let Some(uid) = self.known_uid()? {
            return Ok(uid);
        }
        let mut bytes = [0; 16];
        getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|e| NodeStateDirError::Io {
            operation: "generate a uid for",
            path: self.dir.join("uid"),
            source: e.into(),
        })?;
        let uid = NodeUid::from_random(bytes);
        self.write("uid", format!("{uid}\n").as_bytes())?;
        Ok(uid)
    }

    /// The uid of this host, if it has one.
    pub(crate) fn known_uid(&self) -> Result<Option<NodeUid>, NodeStateDirError> {
        self.dir.parent().map_or(Ok(()), files::check_dir)?;
        files::check_dir(&self.dir)?;
        let path = self.dir.join("uid");
        match optional(files::read_text(&path)) {
            Ok(Some(text)) => NodeUid::try_from(text.trim())
                .map(Some)
                .map_err(|reason| NodeStateDirError::Uid { path, reason }),
            Ok(None) => Ok(None),
            Err(source) => Err(NodeStateDirError::Io { operation: "read", path, source }),
        }
    }

    /// The saved record. An unreadable one is ignored, because the store has it, too.
    pub(crate) fn record(&self) -> Option<NodeRecord> {
        let bytes = self.read_optional("node.json")?;
        NodeRecord::decode(&bytes)
            .inspect_err(|error| tracing::warn!(dir = %self.dir.display(), %error, "cannot read node.json"))
            .ok()
    }

    pub(crate) fn save_record(&self, record: &NodeRecord) -> Result<(), NodeStateDirError> {
        self.write("node.json", &record.encode())
    }

    /// The saved records of the peers.
    pub(crate) fn peers(&self) -> Vec<NodeRecord> {
        let Some(bytes) = self.read_optional("peers.json") else { return Vec::new() };
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.filter_map(|line| NodeRecord::decode(line).ok()).collect()
    }

    pub(crate) fn save_peers<'a>(
        &self,
        peers: impl Iterator<Item = &'a NodeRecord>,
    ) -> Result<(), NodeStateDirError> {
        let mut text = Vec::new();
        for peer in peers {
            text.extend(peer.encode());
            text.push(b'\n');
        }
        self.write("peers.json", &text)
    }

    /// The saved objects of the store. None if there is no file. An error if not all of them can be read: then none is known, because
    /// the others could allow what a missing one denies.
    pub(crate) fn objects(&self, defaults: Catalog) -> Result<Option<Catalog>, UnreadableObjects> {
        let Some(bytes) = self.read_optional("objects.json") else { return Ok(None) };
        let catalog = saved_objects::decode(defaults, &bytes);
        catalog.map(Some).map_err(|line| UnreadableObjects { path: self.dir.join("objects.json"), line })
    }

    pub(crate) fn save_objects(&self, objects: &Catalog) -> Result<(), NodeStateDirError> {
        self.write("objects.json", saved_objects::encode(objects).as_bytes())
    }

    /// The saved pods of other nodes.
    pub(crate) fn pods(&self) -> SavedPods {
        self.read_optional("pods.json").map(|text| SavedPods::decode(&text)).unwrap_or_default()
    }

    pub(crate) fn save_pods(&self, pods: &SavedPods) -> Result<(), NodeStateDirError> {
        self.write("pods.json", &pods.encode())
    }

    /// Unix time at which the copy of the cluster's records was written or last confirmed.
    pub(crate) fn saved_at(&self) -> Option<u64> {
        let modified = |name: &str| self.dir.join(name).metadata().and_then(|meta| meta.modified()).ok();
        let time = modified("peers.json").or_else(|| modified("node.json"))?;
        time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
    }

    /// Sets the time at which the saved records were last right, so that an agent that starts without the store can report it.
    pub(crate) fn confirm_peers(&self, time: SystemTime) -> io::Result<()> {
        let path = self.dir.join("peers.json");
        let file = optional(files::open(&path, File::options().write(true)))?;
        file.map_or(Ok(()), |file| file.set_modified(time))
    }

    /// The saved MTU. An unreadable one is ignored, because the agent determines it again.
    pub(crate) fn mtu(&self) -> Option<u32> {
        String::from_utf8(self.read_optional("mtu")?).ok()?.trim().parse().ok()
    }

    /// Reads a file that may be missing or unreadable.
    fn read_optional(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.dir.join(name);
        let read = optional(files::read(&path));
        read.inspect_err(|error| tracing::warn!(path = %path.display(), %error, "cannot read saved state"))
            .ok()
            .flatten()
    }

    pub(crate) fn save_mtu(&self, mtu: u32) -> Result<(), NodeStateDirError> {
        self.write("mtu", format!("{mtu}\n").as_bytes())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), NodeStateDirError> {
        let failed = |operation, path| move |source| NodeStateDirError::Io { operation, path, source };
        files::create_dir(&self.dir).map_err(failed("create the directory", self.dir.clone()))?;
        let path = self.dir.join(name);
        let written = files::replace(&path, bytes, Replacement::DURABLE);
        written.map_err(failed("write", path))
    }
}

/// Removed directories, and those that were not removed, each with the reason.
#[derive(Debug, Default)]
pub struct Forgotten {
    pub done: Vec<String>,
    pub left: Vec<String>,
    /// Names under which this host may still have a record in a shared store.
    pub names: Vec<NodeName>,
}

/// Removes the saved identity of this host for every network in a state directory. A directory belongs to a network if it has a
/// uid and only this user can write to it. Only files of Podwire are removed.
pub fn forget(state_dir: &Path) -> Forgotten {
    let mut forgotten = Forgotten::default();
    let Ok(entries) = fs::read_dir(state_dir) else { return forgotten };
    for dir in entries.flatten().map(|entry| entry.path()) {
        if dir.join("uid").symlink_metadata().is_err() {
            continue;
        }
        let node_state = NodeStateDir { dir };
        if let Err(reason) = node_state.verify() {
            forgotten.left.push(format!("directory {} stays: {reason}", node_state.dir.display()));
            continue;
        }
        // The embedded store is removed with the directory, so that no other node knows this one.
        let is_shared = !node_state.dir.join(STORE).exists();
        forgotten.names.extend(node_state.record().map(|record| record.name).filter(|_| is_shared));
        match node_state.remove() {
            Ok(()) => forgotten.done.push(format!("directory {} removed", node_state.dir.display())),
            Err(reason) => {
                forgotten.left.push(format!("directory {} stays: {reason}", node_state.dir.display()));
            }
        }
    }
    forgotten
}

impl NodeStateDir {
    /// Checks that this is a network's directory, and that it is safe to use.
    fn verify(&self) -> Result<(), String> {
        if self.dir.is_symlink() {
            return Err("it is a symlink".to_owned());
        }
        files::check_dir(&self.dir).map_err(|error| error.to_string())?;
        let text = files::read_text(&self.dir.join("uid"))
            .map_err(|error| format!("cannot read its uid: {error}"))?;
        NodeUid::try_from(text.trim()).map(drop).map_err(|error| error.to_string())
    }

    /// Removes Podwire's files, the uid last, so that another run can remove the remaining ones.
    fn remove(&self) -> Result<(), String> {
        let store = self.dir.join(STORE);
        if store.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            remove_leftovers(&store)?;
            remove_files(&store, &STORE_FILES)?;
            remove_dir(&store)?;
        }
        let (uid, other_files) =
            FILES.split_last().map_or(("", FILES.as_slice()), |(uid, files)| (*uid, files));
        remove_files(&self.dir, other_files)?;
        // Temporary files of earlier versions.
        let old_temp_files: Vec<String> = FILES.iter().map(|name| format!(".{name}.new")).collect();
        remove_files(&self.dir, &old_temp_files)?;
        remove_leftovers(&self.dir)?;
        let unmanaged: Vec<String> = names(&self.dir, |name| name != uid)?;
        if !unmanaged.is_empty() {
            return Err(format!("it contains files that Podwire did not write ({})", unmanaged.join(", ")));
        }
        remove_files(&self.dir, &[uid])?;
        remove_dir(&self.dir)
    }
}

fn names(dir: &Path, filter: impl Fn(&OsStr) -> bool) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(dir).map_err(|error| error.to_string())?;
    let names = entries.flatten().map(|entry| entry.file_name()).filter(|name| filter(name));
    Ok(names.map(|name| name.to_string_lossy().into_owned()).collect())
}

fn remove_files(dir: &Path, names: &[impl AsRef<Path>]) -> Result<(), String> {
    for path in names.iter().map(|name| dir.join(name)) {
        files::remove(&path).map_err(|error| format!("cannot remove {}: {error}", path.display()))?;
    }
    Ok(())
}

fn remove_leftovers(dir: &Path) -> Result<(), String> {
    let removed = files::remove_leftovers(dir, None, Duration::ZERO);
    removed.map(drop).map_err(|error| format!("cannot remove temporary files in {}: {error}", dir.display()))
}

/// A directory that is not empty contains files of other programs and is not removed.
fn remove_dir(dir: &Path) -> Result<(), String> {
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            let unmanaged = names(dir, |_| true)?.join(", ");
            Err(format!("{} contains files that Podwire did not write ({unmanaged})", dir.display()))
        }
        removed => removed.map_err(|error| format!("cannot remove {}: {error}", dir.display())),
    }
}

#[cfg(test)]
mod tests {
    use model::BlockAllocation;
    use types::Mac;

    use super::*;

    fn node_state(dir: &Path) -> NodeStateDir {
        NodeStateDir::of(dir, &"pods".try_into().unwrap())
    }

    fn record(name: &str) -> NodeRecord {
        NodeRecord {
            name: name.try_into().unwrap(),
            uid: NodeUid::from_random([1; 16]),
            addresses: vec!["192.0.2.1".parse().unwrap()],
            blocks: BlockAllocation::of_default(vec![
                "10.2.1.0/24".parse().unwrap(),
                "fd00:2::/72".parse().unwrap(),
            ]),
            tunnel_mac: Mac::local([1, 2, 3, 4, 5]),
            macs: Vec::new(),
            version: "0.1.0".to_owned(),
            transport: None,
        }
    }

    #[test]
    fn the_uid_is_generated_once() {
        let dir = tempfile::tempdir().unwrap();
        let uid = node_state(dir.path()).uid().unwrap();
        assert_eq!(node_state(dir.path()).uid().unwrap(), uid);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(node_state(other.path()).uid().unwrap(), uid);
    }

    #[test]
    fn a_corrupt_uid_is_reported_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        node_state(dir.path()).uid().unwrap();
        let path = dir.path().join("pods/uid");
        fs::write(&path, "not a uid").unwrap();
        let error = node_state(dir.path()).uid().unwrap_err().to_string();
        assert!(error.contains("restore it, or remove it"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "not a uid");
    }

    #[test]
    fn d_saved_objects_are_read_completely_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let node_state = node_state(dir.path());
        let defaults = || Catalog::new(model::objects::TenantNetwork::default_net(Vec::new(), 0));
        assert_eq!(node_state.objects(defaults()).unwrap(), None);
        let mut objects = defaults();
        let id = model::ObjectId::policy(&types::TenantName::default(), "p");
        objects.observe(&id, b"{}").unwrap_err();
        node_state.save_objects(&objects).unwrap();
        assert_eq!(node_state.objects(defaults()).unwrap(), Some(objects));
        let path = node_state.dir().join("objects.json");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}{{\n")).unwrap();
        let error = node_state.objects(defaults()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("line 2 of {} cannot be read", path.display())), "{error}");
    }

    #[test]
    fn a_saved_mtu_is_read_and_a_corrupt_one_ignored() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(node_state(dir.path()).mtu(), None);
        node_state(dir.path()).save_mtu(8950).unwrap();
        assert_eq!(node_state(dir.path()).mtu(), Some(8950));
        fs::write(dir.path().join("pods/mtu"), "large").unwrap();
        assert_eq!(node_state(dir.path()).mtu(), None);
    }

    #[test]
    fn forget_removes_only_directories_of_networks() {
        let dir = tempfile::tempdir().unwrap();
        let node_state = node_state(dir.path());
        node_state.uid().unwrap();
        node_state.save_record(&record("n1")).unwrap();
        // Temporary files of killed processes of earlier versions.
        for name in [".node.json.new", ".peers.json.new", ".mtu.new", ".uid.new"] {
            fs::write(node_state.dir().join(name), "").unwrap();
        }
        fs::create_dir(dir.path().join("unmanaged")).unwrap();
        let forgotten = forget(dir.path());
        assert_eq!((forgotten.done.len(), forgotten.left.len()), (1, 0));
        assert_eq!(forgotten.names[0].as_str(), "n1");
        assert!(!node_state.dir().exists() && dir.path().join("unmanaged").exists());
        assert!(forget(dir.path()).done.is_empty());
    }

    /// A directory of another program may contain files with these names.
    #[test]
    fn a14_forget_keeps_directories_of_other_programs() {
        let dir = tempfile::tempdir().unwrap();
        let create = |name: &str, uid: &str| {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("uid"), uid).unwrap();
            fs::write(dir.path().join(name).join("mtu"), "1500").unwrap();
            dir.path().join(name)
        };
        let uid = NodeUid::from_random([7; 16]).to_string();
        create("postgres", "1000");
        let open = create("open", &uid);
        fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let other_users = create("other-users", &uid);
        std::os::unix::fs::chown(&other_users, Some(1000), None).unwrap();
        let link_target = tempfile::tempdir().unwrap();
        fs::write(link_target.path().join("uid"), &uid).unwrap();
        std::os::unix::fs::symlink(link_target.path(), dir.path().join("link")).unwrap();
        let mixed = create("mixed", &uid);
        fs::write(mixed.join("thesis.tex"), "years").unwrap();
        let forgotten = forget(dir.path());
        assert_eq!((forgotten.done.len(), forgotten.left.len()), (0, 5), "{forgotten:?}");
        for name in ["postgres", "open", "other-users"] {
            assert_eq!(fs::read_dir(dir.path().join(name)).unwrap().count(), 2, "{name}");
        }
        assert!(link_target.path().join("uid").exists());
        assert!(
            mixed.join("thesis.tex").exists() && mixed.join("uid").exists() && !mixed.join("mtu").exists()
        );
        assert!(forgotten.left.iter().any(|line| line.contains("thesis.tex")), "{forgotten:?}");
    }

    #[test]
    fn a14_forget_removes_the_embedded_store_but_no_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let node_state = node_state(dir.path());
        node_state.uid().unwrap();
        let store = node_state.dir().join(STORE);
        fs::create_dir(&store).unwrap();
        STORE_FILES.iter().for_each(|name| fs::write(store.join(name), "").unwrap());
        // Temporary files of a killed agent.
        fs::write(store.join(".log.podwire-tmp"), "").unwrap();
        fs::write(node_state.dir().join(".node.json.podwire-tmp"), "").unwrap();
        fs::write(store.join("dump"), "").unwrap();
        let forgotten = forget(dir.path());
        assert!(forgotten.left[0].contains("dump") && node_state.dir().join("uid").exists(), "{forgotten:?}");
        fs::remove_file(store.join("dump")).unwrap();
        assert_eq!(forget(dir.path()).done.len(), 1);
        assert!(!node_state.dir().exists());
    }

    #[test]
    fn a14_a_state_directory_of_another_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(1000), None).unwrap();
        let error = node_state(dir.path()).uid().unwrap_err().to_string();
        assert!(error.contains("chown 0 "), "{error}");
        assert!(!node_state(dir.path()).dir().exists());
    }

    #[test]
    fn saved_records_are_read_and_corrupt_ones_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let node_state = node_state(dir.path());
        assert_eq!((node_state.record(), node_state.peers()), (None, Vec::new()));
        let peers = [record("n2"), record("n3")];
        node_state.save_record(&record("n1")).unwrap();
        node_state.save_peers(peers.iter()).unwrap();
        assert_eq!(node_state.record(), Some(record("n1")));
        assert_eq!(node_state.peers(), peers);
        fs::write(dir.path().join("pods/node.json"), "{").unwrap();
        assert_eq!(node_state.record(), None);
    }
}
