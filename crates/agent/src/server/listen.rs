//! The agent's names in the world: a unix socket for root, and an address for metrics.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Notify;

/// The kernel takes less where net.core.somaxconn says so.
const BACKLOG: i32 = 4096;
/// What the kernel has room for in a socket's name, without the byte that ends it.
const LONGEST_PATH: usize = 107;

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot {op} {}: {source}", path.display())]
    Socket { op: &'static str, path: PathBuf, source: io::Error },
    #[error("the socket's path {} is too long: it may have {LONGEST_PATH} bytes", .0.display())]
    TooLong(PathBuf),
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
pub(crate) struct Listener {
    pub(super) inner: UnixListener,
    watch: Arc<SocketWatch>,
    pub(super) bounds: Bounds,
}

impl Listener {
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
        let found = fs::symlink_metadata(&self.path).map(|m| (m.dev(), m.ino())).ok();
        let is_ours = found == Some(*self.identity.lock().unwrap_or_else(PoisonError::into_inner));
        if !is_ours {
            self.again.notify_one();
        }
        is_ours
    }

    pub(super) fn renew(&self, listener: &Listener) {
        let new = *listener.watch.identity.lock().unwrap_or_else(PoisonError::into_inner);
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = new;
    }
}

/// Makes the socket, for root alone. It gets its name when it is complete: nobody ever finds half of one, and an old one
/// is replaced without a gap. Wants to be called inside the runtime.
pub(crate) fn bind(path: &Path) -> Result<Listener, ServerError> {
    let failed = |op| move |source: io::Error| ServerError::Socket { op, path: path.to_owned(), source };
    let folder = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed("make the folder of"))?;
    if path.as_os_str().len() > LONGEST_PATH {
        return Err(ServerError::TooLong(path.to_owned()));
    }
    let temp = folder.join(format!(".new-{}", std::process::id()));
    let address = SocketAddrUnix::new(&temp).map_err(|_| ServerError::TooLong(path.to_owned()))?;
    match fs::remove_file(&temp) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed("clear the way for")(e)),
        Ok(()) | Err(_) => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|e| failed("make")(e.into()))?;
    rustix::net::bind(&socket, &address).map_err(|e| failed("bind")(e.into()))?;
    fs::set_permissions(&temp, Permissions::from_mode(0o600)).map_err(failed("protect"))?;
    rustix::net::listen(&socket, BACKLOG).map_err(|e| failed("listen on")(e.into()))?;
    let meta = fs::symlink_metadata(&temp).map_err(failed("look at"))?;
    fs::rename(&temp, path).map_err(failed("give its name to"))?;
    let inner = UnixListener::from_std(socket.into()).map_err(failed("listen on"))?;
    let identity = Mutex::new((meta.dev(), meta.ino()));
    let watch = Arc::new(SocketWatch { path: path.to_owned(), identity, again: Notify::new() });
    Ok(Listener { inner, watch, bounds: Bounds::default() })
}

pub(crate) async fn bind_tcp(address: SocketAddr) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address).await.map_err(|source| ServerError::Tcp { address, source })
}
