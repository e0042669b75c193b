//! What a node remembers of itself over reboots, in STATE_DIR/NETWORK:
//!
//! ```text
//! uid          who this machine is, chosen once
//! node.json    its record as the store had it last: its blocks are its own also while the store is away
//! peers.json   the others, for a node that boots while the store is away
//! mtu          that of its pods, for a node that boots before its link has an address
//! ```
//!
//! Each is written beside, flushed, and renamed into place.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cluster::{NodeRecord, Object as _};
use rustix::rand::{GetRandomFlags, getrandom};
use types::{NetworkName, NodeName, NodeUid};

#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    #[error("cannot {operation} {}: {source}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
    #[error("{} does not hold a node's uid ({reason}): restore it, or remove it to join as a new machine", path.display())]
    Uid { path: PathBuf, reason: types::NameError },
}

#[derive(Debug, Clone)]
pub(crate) struct Home {
    dir: PathBuf,
}

impl Home {
    pub(crate) fn of(state_dir: &Path, network: &NetworkName) -> Self {
        Self { dir: state_dir.join(network.as_str()) }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The uid of this machine; made up if there is none yet.
    pub(crate) fn uid(&self) -> Result<NodeUid, HomeError> {
        let path = self.dir.join("uid");
        match fs::read_to_string(&path) {
            Ok(text) => NodeUid::try_from(text.trim()).map_err(|reason| HomeError::Uid { path, reason }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let mut bytes = [0; 16];
                getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|e| HomeError::Io {
                    operation: "get random numbers for",
                    path: path.clone(),
                    source: e.into(),
                })?;
                let uid = NodeUid::from_random(bytes);
                self.write("uid", format!("{uid}\n").as_bytes())?;
                Ok(uid)
            }
            Err(source) => Err(HomeError::Io { operation: "read", path, source }),
        }
    }

    /// The record that was saved last. One that cannot be read is as good as none: the store has it too.
    pub(crate) fn record(&self) -> Option<NodeRecord> {
        let bytes = fs::read(self.dir.join("node.json")).ok()?;
        NodeRecord::decode(&bytes).inspect_err(|e| tracing::warn!("{}: {e}", self.dir.display())).ok()
    }

    pub(crate) fn save_record(&self, record: &NodeRecord) -> Result<(), HomeError> {
        self.write("node.json", &record.encode())
    }

    /// The others as they were known last.
    pub(crate) fn peers(&self) -> Vec<NodeRecord> {
        let Ok(bytes) = fs::read(self.dir.join("peers.json")) else { return Vec::new() };
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.filter_map(|line| NodeRecord::decode(line).ok()).collect()
    }

    pub(crate) fn save_peers<'a>(
        &self,
        peers: impl Iterator<Item = &'a NodeRecord>,
    ) -> Result<(), HomeError> {
        let mut text = Vec::new();
        for peer in peers {
            text.extend(peer.encode());
            text.push(b'\n');
        }
        self.write("peers.json", &text)
    }

    /// The MTU that was saved last. One that cannot be read is found out again.
    pub(crate) fn mtu(&self) -> Option<u32> {
        fs::read_to_string(self.dir.join("mtu")).ok()?.trim().parse().ok()
    }

    pub(crate) fn save_mtu(&self, mtu: u32) -> Result<(), HomeError> {
        self.write("mtu", format!("{mtu}\n").as_bytes())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), HomeError> {
        let (path, beside) = (self.dir.join(name), self.dir.join(format!(".{name}.new")));
        let failed = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| HomeError::Io { operation, path, source }
        };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(failed("make the folder", &self.dir))?;
        let written = (|| {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
            file.write_all(bytes)?;
            file.sync_all()
        })();
        written.map_err(failed("write", &beside))?;
        fs::rename(&beside, &path).map_err(failed("put into place", &path))?;
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(failed("flush", &self.dir))
    }
}

/// What was removed, and what could not be.
#[derive(Debug, Default)]
pub struct Forgotten {
    pub done: Vec<String>,
    pub left: Vec<String>,
    /// The names under which this machine may still be known to others.
    pub names: Vec<NodeName>,
}

/// Forgets who this machine was, in every network of a state folder. Folders that have no uid of ours stay.
pub fn forget(state_dir: &Path) -> Forgotten {
    let mut forgotten = Forgotten::default();
    let Ok(entries) = fs::read_dir(state_dir) else { return forgotten };
    for dir in entries.flatten().map(|entry| entry.path()).filter(|dir| dir.join("uid").is_file()) {
        let home = Home { dir };
        // The embedded store goes with it, and nobody else knows of us then.
        let is_shared = !home.dir.join("store").exists();
        forgotten.names.extend(home.record().map(|record| record.name).filter(|_| is_shared));
        match fs::remove_dir_all(&home.dir) {
            Ok(()) => forgotten.done.push(format!("folder {} removed", home.dir.display())),
            Err(error) => forgotten.left.push(format!("folder {} stays: {error}", home.dir.display())),
        }
    }
    forgotten
}

#[cfg(test)]
mod tests {
    use types::Mac;

    use super::*;

    fn home(dir: &Path) -> Home {
        Home::of(dir, &"pods".try_into().unwrap())
    }

    fn record(name: &str) -> NodeRecord {
        NodeRecord {
            name: name.try_into().unwrap(),
            uid: NodeUid::from_random([1; 16]),
            addresses: vec!["192.0.2.1".parse().unwrap()],
            blocks: vec!["10.2.1.0/24".parse().unwrap(), "fd00:2::/72".parse().unwrap()],
            tunnel_mac: Mac::local([1, 2, 3, 4, 5]),
            version: "0.1.0".to_owned(),
            transport: None,
        }
    }

    #[test]
    fn the_uid_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let uid = home(dir.path()).uid().unwrap();
        assert_eq!(home(dir.path()).uid().unwrap(), uid);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(home(other.path()).uid().unwrap(), uid);
    }

    #[test]
    fn a_damaged_uid_is_told_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        home(dir.path()).uid().unwrap();
        let path = dir.path().join("pods/uid");
        fs::write(&path, "not a uid").unwrap();
        let error = home(dir.path()).uid().unwrap_err().to_string();
        assert!(error.contains("restore it, or remove it"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "not a uid");
    }

    #[test]
    fn an_mtu_is_remembered_and_a_damaged_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(home(dir.path()).mtu(), None);
        home(dir.path()).save_mtu(8950).unwrap();
        assert_eq!(home(dir.path()).mtu(), Some(8950));
        fs::write(dir.path().join("pods/mtu"), "much").unwrap();
        assert_eq!(home(dir.path()).mtu(), None);
    }

    #[test]
    fn what_is_forgotten_is_ours() {
        let dir = tempfile::tempdir().unwrap();
        let home = home(dir.path());
        home.uid().unwrap();
        home.save_record(&record("n1")).unwrap();
        fs::create_dir(dir.path().join("theirs")).unwrap();
        let forgotten = forget(dir.path());
        assert_eq!((forgotten.done.len(), forgotten.left.len()), (1, 0));
        assert_eq!(forgotten.names[0].as_str(), "n1");
        assert!(!home.dir().exists() && dir.path().join("theirs").exists());
        assert!(forget(dir.path()).done.is_empty());
    }

    #[test]
    fn records_are_remembered_and_damage_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let home = home(dir.path());
        assert_eq!((home.record(), home.peers()), (None, Vec::new()));
        let peers = [record("n2"), record("n3")];
        home.save_record(&record("n1")).unwrap();
        home.save_peers(peers.iter()).unwrap();
        assert_eq!(home.record(), Some(record("n1")));
        assert_eq!(home.peers(), peers);
        fs::write(dir.path().join("pods/node.json"), "{").unwrap();
        assert_eq!(home.record(), None);
    }
}
