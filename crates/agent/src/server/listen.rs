//! The agent's listeners: a unix socket for root, and a TCP address for metrics.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, test_kill_process};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use types::cause;

/// The kernel limits it to net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// Prefix of a socket that has not been renamed to its path yet. The process ID of its creator follows.
const TEMP_PREFIX: &str = ".new-";
/// The size of `sun_path` without the terminating NUL.
const LONGEST_PATH: usize = 107;

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot {op} {}: {}", path.display(), cause(source))]
    Socket { op: &'static str, path: PathBuf, source: io::Error },
    #[error("the socket's path {} is too long: the limit is {LONGEST_PATH} bytes", .0.display())]
    TooLong(PathBuf),
    #[error(
        "another process listens on the socket {}: stop it, or set another path (--socket or --run-dir)",
        .0.display()
    )]
    Taken(PathBuf),
    #[error(
        "{} is not a socket of this user and is not replaced: remove it, or set another path (--socket)",
        .0.display()
    )]
    NotASocket(PathBuf),
    #[error("cannot listen on {address}: {}", cause(source))]
    Tcp { address: SocketAddr, source: io::Error },
}

/// Timeouts of a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientTimeouts {
    /// For the head of a request. Also for the next request, because hyper starts the timer when it waits for it.
    pub(super) head: Duration,
    pub(super) body: Duration,
    /// For reading the answer.
    pub(super) answer: Duration,
}

impl Default for ClientTimeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { head: seconds(5), body: seconds(10), answer: seconds(10) }
    }
}

/// A listening socket that is bound to its path.
pub(crate) struct SocketListener {
    pub(super) inner: UnixListener,
    watch: Arc<SocketWatch>,
    pub(super) timeouts: ClientTimeouts,
}

impl SocketListener {
    pub(crate) fn watch(&self) -> Arc<SocketWatch> {
        Arc::clone(&self.watch)
    }
}

/// Checks whether the path still belongs to the agent's socket.
pub(crate) struct SocketWatch {
    pub(super) path: PathBuf,
    /// Device and inode.
    identity: Mutex<(u64, u64)>,
    pub(super) lost: Notify,
}

impl SocketWatch {
    /// Returns false if another process removed or replaced the socket. The server then creates it again.
    pub(crate) fn check(&self) -> bool {
        let is_current = self.is_current();
        if !is_current {
            self.lost.notify_one();
        }
        is_current
    }

    pub(super) fn is_current(&self) -> bool {
        let identity = fs::symlink_metadata(&self.path).map(|m| (m.dev(), m.ino())).ok();
        identity == Some(*self.identity.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_identity(&self, listener: &SocketListener) {
        let new = *listener.watch.identity.lock().unwrap_or_else(PoisonError::into_inner);
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = new;
    }
}

/// Creates the socket, for root only. It is renamed to its path when it is complete, so that no process finds a partial one and
/// a stale socket is replaced without a gap. A socket that is in use is not replaced.
pub(crate) fn bind(path: &Path) -> Result<SocketListener, ServerError> {
    let failed = |op| move |source: io::Error| ServerError::Socket { op, path: path.to_owned(), source };
    let directory = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed("create the directory of"))?;
    if path.as_os_str().len() > LONGEST_PATH {
        return Err(ServerError::TooLong(path.to_owned()));
    }
    if has_listener(path).map_err(failed("connect to"))? {
        return Err(ServerError::Taken(path.to_owned()));
    }
    let rename_flags = may_replace(path)?;
    remove_stale(directory).map_err(failed("clean the directory of"))?;
    let temp = directory.join(format!("{TEMP_PREFIX}{}", std::process::id()));
    let address = SocketAddrUnix::new(&temp).map_err(|_| ServerError::TooLong(path.to_owned()))?;
    match fs::remove_file(&temp) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove the old temporary file of")(e));
        }
        Ok(()) | Err(_) => {}
    }
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|e| failed("create")(e.into()))?;
    rustix::net::bind(&socket, &address).map_err(|e| failed("bind")(e.into()))?;
    fs::set_permissions(&temp, Permissions::from_mode(0o600)).map_err(failed("set the mode of"))?;
    rustix::net::listen(&socket, BACKLOG).map_err(|e| failed("listen on")(e.into()))?;
    let meta = fs::symlink_metadata(&temp).map_err(failed("inspect"))?;
    let renamed = renameat_with(CWD, &temp, CWD, path, rename_flags);
    renamed.map_err(|errno| {
        // The first failure is the one to report.
        let _ = fs::remove_file(&temp);
        failed("rename the new socket to")(errno.into())
    })?;
    let identity = Mutex::new((meta.dev(), meta.ino()));
    let watch = Arc::new(SocketWatch { path: path.to_owned(), identity, lost: Notify::new() });
    Ok(SocketListener { inner: socket.into(), watch, timeouts: ClientTimeouts::default() })
}

/// Whether [`bind`] would refuse this path. Creates nothing.
pub(crate) fn check(path: &Path) -> Result<(), ServerError> {
    let failed = |source: io::Error| ServerError::Socket { op: "connect to", path: path.to_owned(), source };
    if has_listener(path).map_err(failed)? {
        return Err(ServerError::Taken(path.to_owned()));
    }
    may_replace(path).map(|_| ())
}

/// Only a stale socket of this user is replaced, never another file.
fn may_replace(path: &Path) -> Result<RenameFlags, ServerError> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() && meta.uid() == rustix::process::geteuid().as_raw() => {
            Ok(RenameFlags::empty())
        }
        Ok(_) => Err(ServerError::NotASocket(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(RenameFlags::NOREPLACE),
        Err(source) => Err(ServerError::Socket { op: "inspect", path: path.to_owned(), source }),
    }
}

/// Whether a process listens on the socket. Does not wait: a full backlog also means that a process listens.
fn has_listener(path: &Path) -> io::Result<bool> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(matches!(rustix::net::connect(&socket, &address), Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE)))
}

/// Removes temporary sockets of agents that were killed before the rename.
fn remove_stale(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let creator = name.to_str().and_then(|name| name.strip_prefix(TEMP_PREFIX)?.parse().ok());
        let Some(creator) = creator.and_then(Pid::from_raw) else { continue };
        // An error means that the file has been removed meanwhile.
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if !is_socket || test_kill_process(creator) != Err(Errno::SRCH) {
            continue;
        }
        match fs::remove_file(entry.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

pub(crate) async fn bind_tcp(address: SocketAddr) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address).await.map_err(|source| ServerError::Tcp { address, source })
}
