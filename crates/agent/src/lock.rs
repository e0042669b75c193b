//! One agent per run folder: the file `agent.lock`, locked as long as the agent lives. And one per network in a network
//! namespace: two would take each other's pods for what is left of their own.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use types::{Digest, NetworkName};

const FILE: &str = "agent.lock";
/// How often a file that is removed between open and lock is opened anew.
const ATTEMPTS: usize = 16;
/// What the kernel has room for in an abstract name.
const LONGEST_NAME: usize = 107;

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
        "another agent has the network {network} in this network namespace: stop it, or give this one a network of its \
         own (--network-name, --network-bridge, --network-subnet)"
    )]
    NetworkTaken { network: NetworkName },
    #[error("cannot claim the network {network}: {source}")]
    Network { network: NetworkName, source: io::Error },
}

/// The network first: an agent that is refused must leave no lock behind for the other one to find, not even for a moment.
pub(crate) fn take_both(network: &NetworkName, run_dir: &Path) -> Result<(NetworkClaim, Lock), LockError> {
    let claim = NetworkClaim::take(network).map_err(|error| match Lock::holder(run_dir) {
        Some(holder) => LockError::Taken { dir: run_dir.to_owned(), holder },
        None => error,
    })?;
    Ok((claim, Lock::take(run_dir)?))
}

/// A name that exists once in a network namespace, and goes with the process.
#[derive(Debug)]
pub(crate) struct NetworkClaim {
    _socket: OwnedFd,
}

impl NetworkClaim {
    pub(crate) fn take(network: &NetworkName) -> Result<Self, LockError> {
        let claim = || {
            let address = SocketAddrUnix::new_abstract_name(abstract_name(network).as_bytes())?;
            // Of this type nothing is ever received: nobody calls listen.
            let kind = SocketType::SEQPACKET;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
            rustix::net::bind(&socket, &address)?;
            Ok(Self { _socket: socket })
        };
        claim().map_err(|errno| match errno {
            Errno::ADDRINUSE => LockError::NetworkTaken { network: network.clone() },
            errno => LockError::Network { network: network.clone(), source: errno.into() },
        })
    }
}

fn abstract_name(network: &NetworkName) -> String {
    let name = format!("podwire/network/{network}");
    if name.len() <= LONGEST_NAME {
        return name;
    }
    format!("podwire/network-digest/{}", Digest::of(&[network.as_str()]).base32(51))
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
        let path = run_dir.join(FILE);
        let mut options = File::options();
        let file = options.create(true).read(true).write(true).truncate(false).mode(0o600).open(&path);
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
        let file = File::open(&path).ok()?;
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
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
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

    /// Names of this process, so that tests beside it do not meet.
    fn own(name: &str) -> NetworkName {
        network(&format!("{name}-{}", std::process::id()))
    }

    #[test]
    fn a_network_has_one_agent_in_a_namespace() {
        let claim = NetworkClaim::take(&own("one")).unwrap();
        let error = NetworkClaim::take(&own("one")).unwrap_err().to_string();
        for word in [own("one").as_str(), "--network-name", "--network-bridge", "--network-subnet"] {
            assert!(error.contains(word), "{error}");
        }
        NetworkClaim::take(&own("other")).unwrap();
        drop(claim);
        NetworkClaim::take(&own("one")).unwrap();
    }

    #[test]
    fn a_network_of_another_namespace_is_free() {
        let lab = testkit::Lab::new("claim").unwrap();
        let node = lab.node("n1").unwrap();
        let claim = NetworkClaim::take(&own("apart")).unwrap();
        let there = node.enter(|| NetworkClaim::take(&own("apart")).is_ok());
        assert!(there.unwrap());
        drop(claim);
    }

    #[test]
    fn long_names_have_claims_of_their_own() {
        let long = |last: char| network(&format!("{}{last}", "n".repeat(100)));
        assert!(abstract_name(&long('a')).len() <= LONGEST_NAME);
        assert_ne!(abstract_name(&long('a')), abstract_name(&long('b')));
        assert_eq!(abstract_name(&network("podwire")), "podwire/network/podwire");
    }

    #[test]
    fn who_is_refused_for_its_network_makes_no_folder_and_hears_of_the_nearer_reason() {
        let dir = tempfile::tempdir().unwrap();
        let (run, elsewhere) = (dir.path().join("run"), dir.path().join("elsewhere"));
        let _held = take_both(&own("both"), &run).unwrap();
        assert!(matches!(take_both(&own("both"), &run), Err(LockError::Taken { .. })));
        assert!(matches!(take_both(&own("both"), &elsewhere), Err(LockError::NetworkTaken { .. })));
        assert!(!elsewhere.exists());
    }
}
