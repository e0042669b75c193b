//! One agent per run directory: the file `agent.lock`, locked as long as the agent lives. And one per network in a network
//! namespace: two agents of one network would remove each other's pods as orphans.
//!
//! The network's lock is a file that only root can open, named by network namespace and network. Its directory does not
//! depend on the run directory, so agents with different ones meet there; agents in containers mount it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use engine::state::RunDirs;
use files::{Attempt, LockFailed, LockFile};
use types::{Digest, NetworkName};

const FILE: &str = "agent.lock";
/// The locks of networks.
const NETWORKS: &str = engine::state::LOCKS;
/// The longest name that a file can have.
const LONGEST_NAME: usize = 255;

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(transparent)]
    File(#[from] LockFailed),
    #[error(
        "another agent (process {holder}) works in {}: stop it, or give this one a run directory of its own (--run-dir)",
        dir.display()
    )]
    Taken { dir: PathBuf, holder: String },
    #[error(
        "another agent ({holder}) has the network {network} in this network namespace: stop it, or give this one a network \
         of its own (--network-name, --network-bridge, --network-subnet)"
    )]
    NetworkTaken { network: NetworkName, holder: String },
    #[error("cannot identify the network namespace: {0}")]
    Namespace(#[from] netlink::Error),
}

/// The network first: an agent that is refused must leave no lock behind for the other one to find, not even for a moment.
pub(crate) fn take_both(network: &NetworkName, run_dir: &Path) -> Result<(NetworkLock, Lock), LockError> {
    let lock = NetworkLock::renew(network, run_dir).map_err(|error| match Lock::holder(run_dir) {
        Some(holder) => LockError::Taken { dir: run_dir.to_owned(), holder },
        None => error,
    })?;
    Ok((lock, Lock::take(run_dir)?))
}

/// The lock that another agent holds, if one does. Makes nothing.
pub(crate) fn held(network: &NetworkName, run_dir: &Path) -> Result<Option<LockError>, LockError> {
    if let Some(holder) = Lock::holder(run_dir) {
        return Ok(Some(LockError::Taken { dir: run_dir.to_owned(), holder }));
    }
    let namespace = netlink::RtSocket::open()?.netns_cookie()?;
    let holder = LockFile::holder(&Path::new(NETWORKS).join(file_name(namespace, network)));
    Ok(holder.map(|holder| LockError::NetworkTaken { network: network.clone(), holder }))
}

/// Exists once for a network in a network namespace. The kernel releases it when the process ends.
#[derive(Debug)]
pub(crate) struct NetworkLock {
    file: LockFile,
}

impl NetworkLock {
    pub(crate) fn renew(network: &NetworkName, run_dir: &Path) -> Result<Self, LockError> {
        Self::take(Path::new(NETWORKS), network, run_dir)
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file was removed: another agent could take the network.
    pub(crate) fn is_lost(&self) -> bool {
        self.file.is_lost()
    }

    fn take(dir: &Path, network: &NetworkName, run_dir: &Path) -> Result<Self, LockError> {
        let namespace = netlink::RtSocket::open()?.netns_cookie()?;
        let holder = format!("process {} in {}", std::process::id(), run_dir.display());
        let lock = match LockFile::take(dir, &file_name(namespace, network), &holder)? {
            Attempt::Locked(file) => Self { file },
            Attempt::Held(holder) => {
                return Err(LockError::NetworkTaken { network: network.clone(), holder });
            }
        };
        lock.file.remove_abandoned();
        let listed = RunDirs::new(namespace, run_dir).register();
        let operation = "list this run directory in";
        listed.map_err(|source| LockFailed { operation, path: dir.to_owned(), source })?;
        Ok(lock)
    }
}

impl Drop for NetworkLock {
    /// While it is locked: a process that opened the file meanwhile finds that it is gone, and makes another one.
    fn drop(&mut self) {
        if self.is_lost() {
            return;
        }
        // A leftover file is no lock; the next agent removes it. The directory stays: where containers have it mounted, its
        // removal would end their mounts.
        let _ = fs::remove_file(self.file.path());
    }
}

/// The agents that run in this network namespace, whatever their run directories are: what each wrote about itself, such as
/// `process 4711 in /run/podwire`.
pub fn agents_here() -> Result<Vec<String>, LockError> {
    holders(Path::new(NETWORKS), netlink::RtSocket::open()?.netns_cookie()?)
}

fn holders(dir: &Path, namespace: u64) -> Result<Vec<String>, LockError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(LockFailed { operation: "list", path: dir.to_owned(), source }.into()),
    };
    let is_here = |name: &str| {
        let network = name.strip_prefix(&namespace.to_string());
        network.is_some_and(|network| network.starts_with(['-', '@']))
    };
    let here = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_here));
    Ok(here.filter_map(|entry| LockFile::holder(&entry.path())).collect())
}

fn file_name(namespace: u64, network: &NetworkName) -> String {
    let name = format!("{namespace}-{network}");
    if name.len() <= LONGEST_NAME {
        return name;
    }
    // A network's name has no '@'.
    format!("{namespace}@{}", Digest::of(&[network.as_str()]).base32(51))
}

/// The run directory's lock. The kernel releases it when the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    file: LockFile,
}

impl Lock {
    /// Makes the directory if it does not exist.
    pub(crate) fn take(run_dir: &Path) -> Result<Self, LockError> {
        match LockFile::take(run_dir, FILE, &std::process::id().to_string())? {
            Attempt::Locked(file) => Ok(Self { file }),
            Attempt::Held(holder) => Err(LockError::Taken { dir: run_dir.to_owned(), holder }),
        }
    }

    /// The agent that works in this directory, if there is one. Makes nothing; only for messages.
    fn holder(run_dir: &Path) -> Option<String> {
        LockFile::holder(&run_dir.join(FILE))
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file or its directory was removed: another agent could start beside this one.
    pub(crate) fn is_lost(&self) -> bool {
        self.file.is_lost()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use testkit::{DEADLINE, wait_until};

    use super::*;

    #[test]
    fn a_second_agent_is_told_who_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let lock = Lock::take(&run).unwrap();
        let error = Lock::take(&run).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()) && error.contains("--run-dir"), "{error}");
        drop(lock);
        // A child that another test starts at this moment holds a copy of the descriptor until it executes its program.
        wait_until("the lock to be free", DEADLINE, || Ok(Lock::take(&run).is_ok())).unwrap();
    }

    #[test]
    fn a_removed_directory_is_noticed() {
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
    fn a_directory_that_another_took_is_not_ours_any_more() {
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

    /// Inside a network namespace of its own, with a directory for the locks and one for the agents.
    fn apart(label: &str, test: impl FnOnce(&Path, &Path) + Send) {
        let dir = tempfile::tempdir().unwrap();
        let lab = testkit::Lab::new(label).unwrap();
        let (locks, run) = (dir.path().join("locks"), dir.path().join("run"));
        lab.node("n1").unwrap().enter(|| test(&locks, &run)).unwrap();
    }

    #[test]
    fn a_network_has_one_agent_in_a_namespace() {
        apart("lock", |locks, run| {
            let held = NetworkLock::take(locks, &network("one"), run).unwrap();
            let error = NetworkLock::take(locks, &network("one"), run).unwrap_err().to_string();
            let process = format!("process {} in {}", std::process::id(), run.display());
            for word in ["one", &process, "--network-name", "--network-bridge", "--network-subnet"] {
                assert!(error.contains(word), "{error}");
            }
            NetworkLock::take(locks, &network("other"), run).unwrap();
            drop(held);
            assert_eq!(fs::read_dir(locks).unwrap().count(), 0);
            NetworkLock::take(locks, &network("one"), run).unwrap();
        });
    }

    /// A name in the abstract socket namespace was the lock before: every process can take one.
    #[test]
    fn a7_an_abstract_socket_of_another_process_blocks_no_agent() {
        apart("abstract", |_, run| {
            let address = rustix::net::SocketAddrUnix::new_abstract_name(b"podwire/network/one").unwrap();
            let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
            let socket = rustix::net::socket(family, kind, None).unwrap();
            rustix::net::bind(&socket, &address).unwrap();
            take_both(&network("one"), run).unwrap();
        });
    }

    /// It can neither enter the directory nor prepare one for the agent.
    #[test]
    fn a7_an_unprivileged_process_cannot_take_the_lock() {
        apart("unprivileged", |locks, run| {
            let _held = NetworkLock::take(locks, &network("one"), run).unwrap();
            let file = fs::read_dir(locks).unwrap().next().unwrap().unwrap().path();
            let unprivileged = |program: &str| {
                let mut command = std::process::Command::new("setpriv");
                command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", program]);
                command.status().unwrap().success()
            };
            fs::set_permissions(locks.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
            assert!(unprivileged("true"));
            assert!(!unprivileged(&format!("exec 3<{}", file.display())), "it could lock the file");
            assert!(!unprivileged(&format!(": >{}/1-two", locks.display())), "it could make a lock");
            let own = locks.with_file_name("own");
            fs::create_dir(&own).unwrap();
            std::os::unix::fs::chown(&own, Some(65534), Some(65534)).unwrap();
            let error = NetworkLock::take(&own, &network("one"), run).unwrap_err().to_string();
            assert!(error.contains("chown"), "{error}");
        });
    }

    #[test]
    fn the_lock_of_a_killed_agent_is_free_and_its_file_goes() {
        apart("killed", |locks, run| {
            let held = NetworkLock::take(locks, &network("live"), run).unwrap();
            let stale = locks.join(file_name(1, &network("gone")));
            fs::write(&stale, "process 1 in /x").unwrap();
            NetworkLock::take(locks, &network("other"), run).unwrap();
            assert!(!stale.exists());
            assert!(NetworkLock::take(locks, &network("live"), run).is_err());
            drop(held);
        });
    }

    #[test]
    fn a_network_of_another_namespace_is_free() {
        let lab = testkit::Lab::new("claim").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let locks = dir.path().join("locks");
        let take = || NetworkLock::take(&locks, &network("apart"), dir.path()).unwrap();
        let [one, other] = ["n1", "n2"].map(|name| lab.node(name).unwrap());
        let _held = one.enter(take).unwrap();
        other.enter(take).unwrap();
    }

    #[test]
    fn long_names_have_locks_of_their_own() {
        let long = |last: char| network(&format!("{}{last}", "n".repeat(300)));
        assert!(file_name(u64::MAX, &long('a')).len() <= LONGEST_NAME);
        assert_ne!(file_name(1, &long('a')), file_name(1, &long('b')));
        assert_eq!(file_name(7, &network("podwire")), "7-podwire");
        apart("long", |locks, run| drop(NetworkLock::take(locks, &long('a'), run).unwrap()));
    }

    #[test]
    fn an_agent_that_is_refused_for_its_network_makes_no_directory() {
        apart("nearer", |_, run| {
            let elsewhere = run.with_file_name("elsewhere");
            let _held = take_both(&network("both"), run).unwrap();
            assert!(matches!(take_both(&network("both"), run), Err(LockError::Taken { .. })));
            assert!(matches!(take_both(&network("both"), &elsewhere), Err(LockError::NetworkTaken { .. })));
            assert!(!elsewhere.exists());
        });
    }
}
