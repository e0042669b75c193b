//! Locks that ensure one agent per run directory, and one agent per network in a network namespace. Two agents of one network
//! would remove each other's pods as orphans.
//!
//! The run directory's lock is the file `agent.lock`. The network's lock is a file named by network namespace and network that
//! only root can open. Its directory does not depend on the run directory, so that agents with different run directories use
//! the same file. Agents in containers mount this directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use engine::state::RunDirs;
use files::{Attempt, LockFailed, LockFile};
use types::{Digest, NetworkName};

const FILE: &str = "agent.lock";
/// Directory of the network locks.
const NETWORKS: &str = engine::state::LOCKS;
/// NAME_MAX of Linux file systems.
const LONGEST_NAME: usize = 255;

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(transparent)]
    File(#[from] LockFailed),
    #[error(
        "another agent (process {holder}) uses the run directory {}: stop it, or set another one (--run-dir)",
        dir.display()
    )]
    Taken { dir: PathBuf, holder: String },
    #[error(
        "another agent ({holder}) uses the network {network} in this network namespace: stop it, or configure another network \
         (--network-name, --network-bridge, --network-subnet)"
    )]
    NetworkTaken { network: NetworkName, holder: String },
    #[error("cannot identify the network namespace: {0}")]
    Namespace(#[from] netlink::Error),
}

/// Takes the network's lock first: an agent that is refused must not hold a run directory's lock, not even briefly.
pub(crate) fn take_both(network: &NetworkName, run_dir: &Path) -> Result<(NetworkLock, Lock), LockError> {
    let lock = NetworkLock::take(network, run_dir).map_err(|error| match Lock::holder(run_dir) {
        Some(holder) => LockError::Taken { dir: run_dir.to_owned(), holder },
        None => error,
    })?;
    Ok((lock, Lock::take(run_dir)?))
}

/// The lock that another agent holds, if any. Creates no file.
pub(crate) fn conflicting_lock(
    network: &NetworkName,
    run_dir: &Path,
) -> Result<Option<LockError>, LockError> {
    if let Some(holder) = Lock::holder(run_dir) {
        return Ok(Some(LockError::Taken { dir: run_dir.to_owned(), holder }));
    }
    let namespace = netlink::RtSocket::open()?.netns_cookie()?;
    let holder = LockFile::holder(&Path::new(NETWORKS).join(file_name(namespace, network)));
    Ok(holder.map(|holder| LockError::NetworkTaken { network: network.clone(), holder }))
}

/// Lock of a network in a network namespace. The kernel releases it when the process ends.
#[derive(Debug)]
pub(crate) struct NetworkLock {
    file: LockFile,
}

impl NetworkLock {
    pub(crate) fn take(network: &NetworkName, run_dir: &Path) -> Result<Self, LockError> {
        Self::take_in(Path::new(NETWORKS), network, run_dir)
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Whether the file was removed, so that another agent could take the network.
    pub(crate) fn is_lost(&self) -> bool {
        self.file.is_lost()
    }

    fn take_in(dir: &Path, network: &NetworkName, run_dir: &Path) -> Result<Self, LockError> {
        let namespace = netlink::RtSocket::open()?.netns_cookie()?;
        let holder = format!("process {} in {}", std::process::id(), run_dir.display());
        let lock = match LockFile::take(dir, &file_name(namespace, network), &holder)? {
            Attempt::Locked(file) => Self { file },
            Attempt::Held(holder) => {
                return Err(LockError::NetworkTaken { network: network.clone(), holder });
            }
        };
        lock.file.remove_abandoned();
        let registered = RunDirs::new(namespace, run_dir).register();
        let operation = "register this run directory in";
        registered.map_err(|source| LockFailed { operation, path: dir.to_owned(), source })?;
        Ok(lock)
    }
}

impl Drop for NetworkLock {
    /// Removes the file while it is locked: a process that opened it meanwhile notices the removal and creates a new one.
    fn drop(&mut self) {
        if self.is_lost() {
            return;
        }
        // A leftover file is not locked, and the next agent removes it. The directory is not removed, because containers may
        // have it mounted.
        let _ = fs::remove_file(self.file.path());
    }
}

/// The agents that run in this network namespace, with any run directory. Each describes itself, for example as
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
    // '@' cannot occur in a network name.
    format!("{namespace}@{}", Digest::of(&[network.as_str()]).base32(51))
}

/// Lock of a run directory. The kernel releases it when the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    file: LockFile,
}

impl Lock {
    /// Creates the directory if it does not exist.
    pub(crate) fn take(run_dir: &Path) -> Result<Self, LockError> {
        match LockFile::take(run_dir, FILE, &std::process::id().to_string())? {
            Attempt::Locked(file) => Ok(Self { file }),
            Attempt::Held(holder) => Err(LockError::Taken { dir: run_dir.to_owned(), holder }),
        }
    }

    /// The agent that uses this run directory, if any, for messages. Creates no file.
    fn holder(run_dir: &Path) -> Option<String> {
        LockFile::holder(&run_dir.join(FILE))
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Whether the file or its directory was removed, so that another agent could start in this run directory.
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
    fn a_second_agent_gets_the_process_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let lock = Lock::take(&run).unwrap();
        let error = Lock::take(&run).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()) && error.contains("--run-dir"), "{error}");
        drop(lock);
        // A child process that another test starts at this moment holds a copy of the descriptor until it calls exec.
        wait_until("the lock to be free", DEADLINE, || Ok(Lock::take(&run).is_ok())).unwrap();
    }

    #[test]
    fn a_removed_run_directory_loses_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let lock = Lock::take(&run).unwrap();
        assert!(!lock.is_lost());
        fs::remove_dir_all(&run).unwrap();
        assert!(lock.is_lost());
        let second = Lock::take(&run).unwrap();
        assert!(lock.is_lost() && !second.is_lost());
    }

    #[test]
    fn a_run_directory_taken_by_another_agent_loses_the_lock() {
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

    /// Runs `test` in a new network namespace with a directory for locks and a run directory.
    fn in_namespace(label: &str, test: impl FnOnce(&Path, &Path) + Send) {
        let dir = tempfile::tempdir().unwrap();
        let lab = testkit::Lab::new(label).unwrap();
        let (locks, run) = (dir.path().join("locks"), dir.path().join("run"));
        lab.node("n1").unwrap().enter(|| test(&locks, &run)).unwrap();
    }

    #[test]
    fn a_network_has_one_agent_in_a_namespace() {
        in_namespace("lock", |locks, run| {
            let held = NetworkLock::take_in(locks, &network("one"), run).unwrap();
            let error = NetworkLock::take_in(locks, &network("one"), run).unwrap_err().to_string();
            let process = format!("process {} in {}", std::process::id(), run.display());
            for word in ["one", &process, "--network-name", "--network-bridge", "--network-subnet"] {
                assert!(error.contains(word), "{error}");
            }
            NetworkLock::take_in(locks, &network("other"), run).unwrap();
            drop(held);
            assert_eq!(fs::read_dir(locks).unwrap().count(), 0);
            NetworkLock::take_in(locks, &network("one"), run).unwrap();
        });
    }

    /// The lock used to be a name in the abstract socket namespace, which every process can take.
    #[test]
    fn a7_an_abstract_socket_of_another_process_blocks_no_agent() {
        in_namespace("abstract", |_, run| {
            let address = rustix::net::SocketAddrUnix::new_abstract_name(b"podwire/network/one").unwrap();
            let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
            let socket = rustix::net::socket(family, kind, None).unwrap();
            rustix::net::bind(&socket, &address).unwrap();
            take_both(&network("one"), run).unwrap();
        });
    }

    /// An unprivileged process can neither open the directory nor prepare one for the agent.
    #[test]
    fn a7_an_unprivileged_process_cannot_take_the_lock() {
        in_namespace("unprivileged", |locks, run| {
            let _held = NetworkLock::take_in(locks, &network("one"), run).unwrap();
            let file = fs::read_dir(locks).unwrap().next().unwrap().unwrap().path();
            let unprivileged = |program: &str| {
                let mut command = std::process::Command::new("setpriv");
                command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", program]);
                command.status().unwrap().success()
            };
            fs::set_permissions(locks.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
            assert!(unprivileged("true"));
            assert!(
                !unprivileged(&format!("exec 3<{}", file.display())),
                "an unprivileged process opened the lock file"
            );
            assert!(
                !unprivileged(&format!(": >{}/1-two", locks.display())),
                "an unprivileged process created a lock file"
            );
            let unprivileged_dir = locks.with_file_name("unprivileged");
            fs::create_dir(&unprivileged_dir).unwrap();
            std::os::unix::fs::chown(&unprivileged_dir, Some(65534), Some(65534)).unwrap();
            let error =
                NetworkLock::take_in(&unprivileged_dir, &network("one"), run).unwrap_err().to_string();
            assert!(error.contains("chown"), "{error}");
        });
    }

    #[test]
    fn the_lock_file_of_a_killed_agent_is_removed() {
        in_namespace("killed", |locks, run| {
            let held = NetworkLock::take_in(locks, &network("live"), run).unwrap();
            let stale = locks.join(file_name(1, &network("killed")));
            fs::write(&stale, "process 1 in /x").unwrap();
            NetworkLock::take_in(locks, &network("other"), run).unwrap();
            assert!(!stale.exists());
            assert!(NetworkLock::take_in(locks, &network("live"), run).is_err());
            drop(held);
        });
    }

    #[test]
    fn namespaces_have_separate_network_locks() {
        let lab = testkit::Lab::new("claim").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let locks = dir.path().join("locks");
        let take = || NetworkLock::take_in(&locks, &network("net"), dir.path()).unwrap();
        let [one, other] = ["n1", "n2"].map(|name| lab.node(name).unwrap());
        let _held = one.enter(take).unwrap();
        other.enter(take).unwrap();
    }

    #[test]
    fn long_network_names_have_distinct_locks() {
        let long = |last: char| network(&format!("{}{last}", "n".repeat(300)));
        assert!(file_name(u64::MAX, &long('a')).len() <= LONGEST_NAME);
        assert_ne!(file_name(1, &long('a')), file_name(1, &long('b')));
        assert_eq!(file_name(7, &network("podwire")), "7-podwire");
        in_namespace("long", |locks, run| drop(NetworkLock::take_in(locks, &long('a'), run).unwrap()));
    }

    #[test]
    fn an_agent_refused_for_its_network_creates_no_run_directory() {
        in_namespace("refused", |_, run| {
            let elsewhere = run.with_file_name("elsewhere");
            let _held = take_both(&network("both"), run).unwrap();
            assert!(matches!(take_both(&network("both"), run), Err(LockError::Taken { .. })));
            assert!(matches!(take_both(&network("both"), &elsewhere), Err(LockError::NetworkTaken { .. })));
            assert!(!elsewhere.exists());
        });
    }
}
