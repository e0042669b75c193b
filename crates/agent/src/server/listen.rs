//! The agent's names in the world: a unix socket for root, and an address for metrics.

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

/// The kernel takes less where net.core.somaxconn says so.
const BACKLOG: i32 = 4096;
/// A socket that has no name yet, with its maker's process id.
const TEMP_PREFIX: &str = ".new-";
/// What the kernel has room for in a socket's name, without the byte that ends it.
const LONGEST_PATH: usize = 107;

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot {op} {}: {source}", path.display())]
    Socket { op: &'static str, path: PathBuf, source: io::Error },
    #[error("the socket's path {} is too long: it may have {LONGEST_PATH} bytes", .0.display())]
    TooLong(PathBuf),
    #[error(
        "somebody else answers at the socket {}: stop it, or give this agent a socket of its own (--socket, or --run-dir)",
        .0.display()
    )]
    Taken(PathBuf),
    #[error(
        "{} is not a socket of this user, and is not replaced: choose another path (--socket), or remove it",
        .0.display()
    )]
    NotASocket(PathBuf),
    #[error("cannot listen on {address}: {source}")]
    Tcp { address: SocketAddr, source: io::Error },
}

/// How long a client may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// For a request's head; and to send another one: hyper begins to count when it waits for it.
    pub(super) head: Duration,
    pub(super) body: Duration,
    /// To read its answer.
    pub(super) answer: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { head: seconds(5), body: seconds(10), answer: seconds(10) }
    }
}

/// A socket that listens under its name.
pub(crate) struct SocketListener {
    pub(super) inner: UnixListener,
    watch: Arc<SocketWatch>,
    pub(super) bounds: Bounds,
}

impl SocketListener {
    pub(crate) fn watch(&self) -> Arc<SocketWatch> {
        Arc::clone(&self.watch)
    }
}

/// Tells whether the socket's name still leads to us.
pub(crate) struct SocketWatch {
    pub(super) path: PathBuf,
    /// Device and inode.
    identity: Mutex<(u64, u64)>,
    pub(super) again: Notify,
}

impl SocketWatch {
    /// False: somebody removed or replaced the socket. Then it is made again, shortly after this returns.
    pub(crate) fn look(&self) -> bool {
        let is_ours = self.is_ours();
        if !is_ours {
            self.again.notify_one();
        }
        is_ours
    }

    pub(super) fn is_ours(&self) -> bool {
        let found = fs::symlink_metadata(&self.path).map(|m| (m.dev(), m.ino())).ok();
        found == Some(*self.identity.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn renew(&self, listener: &SocketListener) {
        let new = *listener.watch.identity.lock().unwrap_or_else(PoisonError::into_inner);
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = new;
    }
}

/// Makes the socket, for root alone. It gets its name when it is complete: nobody ever finds half of one, and a dead one
/// is replaced without a gap; one that lives is somebody's.
pub(crate) fn bind(path: &Path) -> Result<SocketListener, ServerError> {
    let failed = |op| move |source: io::Error| ServerError::Socket { op, path: path.to_owned(), source };
    let directory = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed("make the directory of"))?;
    if path.as_os_str().len() > LONGEST_PATH {
        return Err(ServerError::TooLong(path.to_owned()));
    }
    if is_answered(path).map_err(failed("try"))? {
        return Err(ServerError::Taken(path.to_owned()));
    }
    let replaced = may_replace(path)?;
    sweep(directory).map_err(failed("clear the directory of"))?;
    let temp = directory.join(format!("{TEMP_PREFIX}{}", std::process::id()));
    let address = SocketAddrUnix::new(&temp).map_err(|_| ServerError::TooLong(path.to_owned()))?;
    match fs::remove_file(&temp) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed("clear the way for")(e)),
        Ok(()) | Err(_) => {}
    }
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|e| failed("make")(e.into()))?;
    rustix::net::bind(&socket, &address).map_err(|e| failed("bind")(e.into()))?;
    fs::set_permissions(&temp, Permissions::from_mode(0o600)).map_err(failed("protect"))?;
    rustix::net::listen(&socket, BACKLOG).map_err(|e| failed("listen on")(e.into()))?;
    let meta = fs::symlink_metadata(&temp).map_err(failed("look at"))?;
    let named = renameat_with(CWD, &temp, CWD, path, replaced);
    named.map_err(|errno| {
        // The first failure is the one to report.
        let _ = fs::remove_file(&temp);
        failed("give its name to")(errno.into())
    })?;
    let identity = Mutex::new((meta.dev(), meta.ino()));
    let watch = Arc::new(SocketWatch { path: path.to_owned(), identity, again: Notify::new() });
    Ok(SocketListener { inner: socket.into(), watch, bounds: Bounds::default() })
}

/// Whether [`bind`] would refuse this path. Makes nothing.
pub(crate) fn check(path: &Path) -> Result<(), ServerError> {
    let failed = |source: io::Error| ServerError::Socket { op: "try", path: path.to_owned(), source };
    if is_answered(path).map_err(failed)? {
        return Err(ServerError::Taken(path.to_owned()));
    }
    may_replace(path).map(|_| ())
}

/// Only a dead socket of this user is replaced, never another file.
fn may_replace(path: &Path) -> Result<RenameFlags, ServerError> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() && meta.uid() == rustix::process::geteuid().as_raw() => {
            Ok(RenameFlags::empty())
        }
        Ok(_) => Err(ServerError::NotASocket(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(RenameFlags::NOREPLACE),
        Err(source) => Err(ServerError::Socket { op: "look at", path: path.to_owned(), source }),
    }
}

/// Without waiting: one with a full backlog lives as well.
fn is_answered(path: &Path) -> io::Result<bool> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(matches!(rustix::net::connect(&socket, &address), Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE)))
}

/// Removes what agents left that were killed before they gave their socket its name.
fn sweep(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(TEMP_PREFIX)?.parse().ok());
        let Some(maker) = maker.and_then(Pid::from_raw) else { continue };
        // Gone meanwhile: so much the better.
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if !is_socket || test_kill_process(maker) != Err(Errno::SRCH) {
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
