//! One agent per run directory: the file `agent.lock`, locked as long as the agent lives. And one per network in a network
//! namespace: two agents of one network would remove each other's pods as orphans.
//!
//! The network's lock is an nftables table that its process owns ([`TableLock`]). Only a process with CAP_NET_ADMIN in the
//! network namespace can take it, and it works for agents with different run directories and mount namespaces.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nft::{Locked, TableLock};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use types::{Digest, NetworkName};

const FILE: &str = "agent.lock";
/// How often a file that is removed between open and lock is opened anew.
const ATTEMPTS: usize = 16;
/// The longest table name that the kernel accepts.
const LONGEST_NAME: usize = 255;

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("cannot {operation} {}: {source}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "another agent (process {holder}) works in {}: stop it, or give this one a run folder of its own (--run-dir)",
        dir.display()
    )]
    Taken { dir: PathBuf, holder: String },
    #[error(
        "another agent ({holder}) has the network {network} in this network namespace: stop it, or give this one a network \
         of its own (--network-name, --network-bridge, --network-subnet)"
    )]
    NetworkTaken { network: NetworkName, holder: String },
    #[error("cannot claim the network {network}: {source}")]
    Network { network: NetworkName, source: nft::Error },
}

/// The network first: an agent that is refused must leave no lock behind for the other one to find, not even for a moment.
pub(crate) fn take_both(network: &NetworkName, run_dir: &Path) -> Result<(NetworkLock, Lock), LockError> {
    let lock = NetworkLock::take(network, run_dir).map_err(|error| match Lock::holder(run_dir) {
        Some(holder) => LockError::Taken { dir: run_dir.to_owned(), holder },
        None => error,
    })?;
    Ok((lock, Lock::take(run_dir)?))
}

/// Exists once for a network in a network namespace, and goes with the process.
#[derive(Debug)]
pub(crate) struct NetworkLock {
    _table: TableLock,
}

impl NetworkLock {
    fn take(network: &NetworkName, run_dir: &Path) -> Result<Self, LockError> {
        let holder = format!("process {} in {}", std::process::id(), run_dir.display());
        match TableLock::take(&table_name(network), &holder) {
            Ok(Locked::Held(table)) => Ok(Self { _table: table }),
            Ok(Locked::Taken(holder)) => Err(LockError::NetworkTaken { network: network.clone(), holder }),
            Err(source) => Err(LockError::Network { network: network.clone(), source }),
        }
    }
}

fn table_name(network: &NetworkName) -> String {
    let name = format!("podwire-lock-{network}");
    if name.len() <= LONGEST_NAME {
        return name;
    }
    format!("podwire-lock/{}", Digest::of(&[network.as_str()]).base32(51))
}

/// Given back by the kernel when this process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Makes the folder if it is not there.
    pub(crate) fn take(run_dir: &Path) -> Result<Self, LockError> {
        for _ in 0..ATTEMPTS {
            let lock = Self::try_take(run_dir)?;
            // Removed before it was locked: whoever comes next would lock another file.
            if !lock.is_lost() {
                return Ok(lock);
            }
        }
        let source = io::Error::other("somebody removes it again and again");
        Err(LockError::Io { operation: "lock", path: run_dir.join(FILE), source })
    }

    fn try_take(run_dir: &Path) -> Result<Self, LockError> {
        let failed = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| LockError::Io { operation, path, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(run_dir).map_err(failed("make", run_dir))?;
        files::check_dir(run_dir).map_err(|error| failed("use", run_dir)(io::Error::other(error)))?;
        let path = run_dir.join(FILE);
        let mut options = File::options();
        let file =
            files::open(&path, options.create(true).read(true).write(true).truncate(false).mode(0o600));
        let file = file.map_err(failed("open", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(LockError::Taken { dir: run_dir.to_owned(), holder: named_in(&path) });
            }
            Err(errno) => return Err(failed("lock", &path)(errno.into())),
        }
        // Who holds it, for people and for the message above. A full disk is no reason not to start.
        let _ =
            file.set_len(0).and_then(|()| file.write_all_at(std::process::id().to_string().as_bytes(), 0));
        Ok(Self { file, path })
    }

    /// Who works in this folder, if anybody does. Makes nothing; only for messages.
    fn holder(run_dir: &Path) -> Option<String> {
        let path = run_dir.join(FILE);
        let file = files::open(&path, File::options().read(true)).ok()?;
        let free = flock(&file, FlockOperation::NonBlockingLockShared);
        (free == Err(Errno::WOULDBLOCK)).then(|| named_in(&path))
    }

    /// Somebody removed the file or the whole folder: another agent could start beside us.
    pub(crate) fn is_lost(&self) -> bool {
        let ours = self.file.metadata().map(|m| (m.dev(), m.ino())).ok();
        let named = fs::metadata(&self.path).map(|m| (m.dev(), m.ino())).ok();
        named.is_none() || named != ours
    }
}

/// Only for messages; it may have changed by now.
fn named_in(path: &Path) -> String {
    files::read_text(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_told_who_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let lock = Lock::take(&run).unwrap();
        let error = Lock::take(&run).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()) && error.contains("--run-dir"), "{error}");
        drop(lock);
        Lock::take(&run).unwrap();
    }

    #[test]
    fn a_removed_folder_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let lock = Lock::take(&run).unwrap();
        assert!(!lock.is_lost());
        fs::remove_dir_all(&run).unwrap();
        assert!(lock.is_lost());
        let again = Lock::take(&run).unwrap();
        assert!(lock.is_lost() && !again.is_lost());
    }

    #[test]
    fn a_folder_that_another_took_is_not_ours_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let first = Lock::take(&run).unwrap();
        fs::remove_dir_all(&run).unwrap();
        let _second = Lock::take(&run).unwrap();
        assert!(first.is_lost());
        assert!(matches!(Lock::take(&run), Err(LockError::Taken { .. })));
    }

    fn network(name: &str) -> NetworkName {
        name.try_into().unwrap()
    }

    /// Inside a network namespace of its own.
    fn apart(label: &str, test: impl FnOnce(&Path) + Send) {
        let dir = tempfile::tempdir().unwrap();
        let lab = testkit::Lab::new(label).unwrap();
        lab.node("n1").unwrap().enter(|| test(dir.path())).unwrap();
    }

    #[test]
    fn a_network_has_one_agent_in_a_namespace() {
        apart("lock", |dir| {
            let held = NetworkLock::take(&network("one"), dir).unwrap();
            let error = NetworkLock::take(&network("one"), dir).unwrap_err().to_string();
            let process = format!("process {} in {}", std::process::id(), dir.display());
            for word in ["one", &process, "--network-name", "--network-bridge", "--network-subnet"] {
                assert!(error.contains(word), "{error}");
            }
            NetworkLock::take(&network("other"), dir).unwrap();
            drop(held);
            NetworkLock::take(&network("one"), dir).unwrap();
        });
    }

    /// A name in the abstract socket namespace was the lock before: every process can take one.
    #[test]
    fn a7_an_abstract_socket_of_another_process_blocks_no_agent() {
        apart("abstract", |dir| {
            let address = rustix::net::SocketAddrUnix::new_abstract_name(b"podwire/network/one").unwrap();
            let socket = rustix::net::socket(
                rustix::net::AddressFamily::UNIX,
                rustix::net::SocketType::SEQPACKET,
                None,
            );
            let socket = socket.unwrap();
            rustix::net::bind(&socket, &address).unwrap();
            take_both(&network("one"), &dir.join("run")).unwrap();
        });
    }

    /// Neither as itself nor as root of a user namespace of its own.
    #[test]
    fn a7_an_unprivileged_process_cannot_take_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let lab = testkit::Lab::new("nobody").unwrap();
        let node = lab.node("n1").unwrap();
        let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        for inside in [&[][..], &["unshare", "--user", "--map-root-user"]] {
            let add = ["nft", "add", "table", "inet", "podwire-lock-one"];
            let outcome = node.run(&[&nobody[..], inside, &add].concat(), b"").unwrap();
            assert!(!outcome.success(), "{outcome:?}");
        }
        assert_eq!(node.sh(&["nft", "list", "tables"]).unwrap().trim(), "");
        node.enter(|| drop(NetworkLock::take(&network("one"), dir.path()).unwrap())).unwrap();
    }

    /// Not owned by any process: an administrator restored a saved ruleset, for example.
    #[test]
    fn a7_a_leftover_table_of_the_name_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let lab = testkit::Lab::new("leftover").unwrap();
        let node = lab.node("n1").unwrap();
        node.sh(&["nft", "add", "table", "inet", "podwire-lock-one"]).unwrap();
        let held = node.enter(|| NetworkLock::take(&network("one"), dir.path()).unwrap()).unwrap();
        let listed = node.sh(&["nft", "list", "ruleset"]).unwrap();
        assert!(listed.contains("podwire-lock-one") && listed.contains("process "), "{listed}");
        // Flushing leaves it alone, and no other process can remove it.
        node.sh(&["nft", "flush", "ruleset"]).unwrap();
        assert!(node.sh(&["nft", "delete", "table", "inet", "podwire-lock-one"]).is_err());
        let taken = node.enter(|| NetworkLock::take(&network("one"), dir.path()).is_err()).unwrap();
        assert!(taken);
        drop(held);
        assert_eq!(node.sh(&["nft", "list", "ruleset"]).unwrap().trim(), "");
    }

    #[test]
    fn a_network_of_another_namespace_is_free() {
        let lab = testkit::Lab::new("claim").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let take = || NetworkLock::take(&network("apart"), dir.path()).unwrap();
        let [one, other] = ["n1", "n2"].map(|name| lab.node(name).unwrap());
        let _held = one.enter(take).unwrap();
        other.enter(take).unwrap();
    }

    #[test]
    fn long_names_have_locks_of_their_own() {
        let long = |last: char| network(&format!("{}{last}", "n".repeat(300)));
        assert!(table_name(&long('a')).len() <= LONGEST_NAME);
        assert_ne!(table_name(&long('a')), table_name(&long('b')));
        assert_eq!(table_name(&network("podwire")), "podwire-lock-podwire");
        apart("long", |dir| drop(NetworkLock::take(&long('a'), dir).unwrap()));
    }

    #[test]
    fn who_is_refused_for_its_network_makes_no_folder_and_hears_of_the_nearer_reason() {
        apart("nearer", |dir| {
            let (run, elsewhere) = (dir.join("run"), dir.join("elsewhere"));
            let _held = take_both(&network("both"), &run).unwrap();
            assert!(matches!(take_both(&network("both"), &run), Err(LockError::Taken { .. })));
            assert!(matches!(take_both(&network("both"), &elsewhere), Err(LockError::NetworkTaken { .. })));
            assert!(!elsewhere.exists());
        });
    }
}
