//! Network namespaces. Only this file calls setns.
//!
//! A closure runs inside a namespace on the calling thread. A guard, which cannot leave the thread, switches back when it is
//! dropped, also during a panic. A separate thread for each entry would cost about 80 µs more (130 µs in a new process), a
//! tenth of an ADD.

use std::cell::{Cell, RefCell};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use types::cause;

const OWN_PATH: &str = "/proc/thread-self/ns/net";

#[derive(Debug, thiserror::Error)]
pub enum NetNsError {
    #[error("network namespace {} does not exist", path.display())]
    Missing { path: PathBuf },
    #[error("no permission to open network namespace {}: run as root with CAP_SYS_ADMIN", path.display())]
    Permission { path: PathBuf, errno: Errno },
    #[error("{} is not a namespace: it is a regular file, or the namespace was unmounted", path.display())]
    NotNamespace { path: PathBuf },
    #[error("{} is a {kind} namespace, not a network namespace", path.display())]
    OtherKind { path: PathBuf, kind: &'static str },
    #[error("cannot open network namespace {}: {}", path.display(), cause(errno))]
    Open { path: PathBuf, errno: Errno },
    #[error("cannot enter network namespace {}: {}", path.display(), cause(errno))]
    Enter { path: PathBuf, errno: Errno },
    #[error("cannot read the cookie of a network namespace (requires Linux 5.14): {}", cause(errno))]
    Cookie { errno: Errno },
    #[error("cannot create a network namespace: {}", cause(errno))]
    Create { errno: Errno },
}

impl NetNsError {
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Missing { .. } => Some(Errno::NOENT),
            Self::NotNamespace { .. } | Self::OtherKind { .. } => None,
            Self::Permission { errno, .. }
            | Self::Open { errno, .. }
            | Self::Enter { errno, .. }
            | Self::Cookie { errno }
            | Self::Create { errno } => Some(*errno),
        }
    }

    /// The namespace does not exist. DEL then has nothing to do inside it.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::NotNamespace { .. })
    }
}

/// An open network namespace. The file descriptor keeps it alive.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
    path: PathBuf,
}

impl NetNs {
    /// Opens the namespace at an untrusted path. Files that are no namespaces are not opened: opening a pipe blocks until it has
    /// a writer, and opening a device such as a watchdog can have side effects.
    pub fn open(path: &Path) -> Result<Self, NetNsError> {
        let file = open_at(path, path, OFlags::PATH)?;
        if !is_on_nsfs(file.as_fd()) {
            return Err(NetNsError::NotNamespace { path: path.to_owned() });
        }
        let same_file = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Self::from_fd(open_at(&same_file, path, OFlags::RDONLY)?, path)
    }

    /// The namespace of the calling thread.
    pub fn current() -> Result<Self, NetNsError> {
        let own = Path::new(OWN_PATH);
        Self::from_fd(open_at(own, own, OFlags::RDONLY)?, own)
    }

    fn from_fd(fd: OwnedFd, path: &Path) -> Result<Self, NetNsError> {
        let path = path.to_owned();
        match kind_of(fd.as_fd()) {
            Some(libc::CLONE_NEWNET) => Ok(Self { fd, path }),
            Some(other) => Err(NetNsError::OtherKind { path, kind: kind_name(other) }),
            None => Err(NetNsError::NotNamespace { path }),
        }
    }

    /// Creates an unnamed, empty namespace. The kernel removes it when its last file descriptor is closed.
    pub fn create() -> Result<Self, NetNsError> {
        let create = || {
            // SAFETY: NEWNET changes the namespace of this new thread alone; file descriptors stay shared.
            #[expect(
                unsafe_code,
                reason = "unshare is unsafe for the sake of UnshareFlags::FILES, which is not used"
            )]
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|errno| NetNsError::Create { errno })?;
            // The thread ends here, so it need not switch back.
            Self::current()
        };
        std::thread::scope(|scope| scope.spawn(create).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The kernel's identifier of this namespace. Unlike the inode it is never reused before the next boot.
    pub fn cookie(&self) -> Result<u64, NetNsError> {
        self.run(|| {
            let socket =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                    .map_err(|errno| NetNsError::Cookie { errno })?;
            cookie_of(socket.as_fd())
        })?
    }

    /// Whether the calling thread is in this namespace.
    pub fn is_here(&self) -> Result<bool, NetNsError> {
        self.is_same(&*NamespaceGuard::original()?)
    }

    /// Whether both are the same namespace. Both are open, so their inodes cannot be reused.
    pub fn is_same(&self, other: &Self) -> Result<bool, NetNsError> {
        let stat = |ns: &Self| {
            rustix::fs::fstat(&ns.fd).map_err(|errno| NetNsError::Open { path: ns.path.clone(), errno })
        };
        let (a, b) = (stat(self)?, stat(other)?);
        Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    }

    /// Runs `f` inside the namespace, on the calling thread. If the namespace cannot be entered, `f` does not run.
    /// The thread is in its original namespace again when this returns or panics. If the kernel refuses the switch back, the
    /// process aborts, because all later operations would change the wrong network.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, NetNsError> {
        let guard = NamespaceGuard::enter(self)?;
        let result = f();
        drop(guard);
        Ok(result)
    }

    fn enter(&self) -> Result<(), NetNsError> {
        move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| NetNsError::Enter { path: self.path.clone(), errno })
    }
}

/// While this exists, the calling thread is in another namespace.
struct NamespaceGuard {
    original: Rc<NetNs>,
    // A namespace belongs to a thread: if another thread dropped the guard, it would switch the wrong thread.
    _not_send: PhantomData<*const ()>,
}

thread_local! {
    /// The thread's original namespace, once the thread has left it. Cached, because opening it takes longer than entering
    /// another one. Only this file switches namespaces, so it does not change.
    static ORIGINAL: RefCell<Option<Rc<NetNs>>> = const { RefCell::new(None) };
    /// The nesting depth of entered namespaces on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

impl NamespaceGuard {
    fn enter(target: &NetNs) -> Result<Self, NetNsError> {
        let original = Self::original()?;
        target.enter()?;
        DEPTH.set(DEPTH.get() + 1);
        Ok(Self { original, _not_send: PhantomData })
    }

    fn original() -> Result<Rc<NetNs>, NetNsError> {
        let is_outermost = DEPTH.get() == 0;
        if let Some(original) = ORIGINAL.with_borrow(Clone::clone).filter(|_| is_outermost) {
            return Ok(original);
        }
        let current = Rc::new(NetNs::current()?);
        // Entering the current namespace changes nothing, but fails if the thread could leave it and not return
        // (a process in a user namespace). An error now is better than an abort later.
        current.enter()?;
        if is_outermost {
            ORIGINAL.set(Some(Rc::clone(&current)));
        }
        Ok(current)
    }
}

impl Drop for NamespaceGuard {
    fn drop(&mut self) {
        if let Err(error) = self.original.enter() {
            eprintln!("aborting: the thread cannot return from a pod's network namespace: {error}");
            std::process::abort();
        }
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Errors name the path that the caller gave.
fn open_at(path: &Path, given: &Path, access: OFlags) -> Result<OwnedFd, NetNsError> {
    rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| {
        let path = given.to_owned();
        match errno {
            Errno::NOENT | Errno::NOTDIR => NetNsError::Missing { path },
            Errno::ACCESS | Errno::PERM => NetNsError::Permission { path, errno },
            _ => NetNsError::Open { path, errno },
        }
    })
}

fn is_on_nsfs(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|s| u64::try_from(s.f_type) == u64::try_from(libc::NSFS_MAGIC))
}

/// The `CLONE_NEW*` constant of an open nsfs file. `None` if it is not a namespace.
fn kind_of(fd: BorrowedFd<'_>) -> Option<i32> {
    // SAFETY: NS_GET_NSTYPE takes no argument and only returns a number; the fd is open for the call.
    #[expect(unsafe_code, reason = "rustix has no NS_GET_NSTYPE")]
    let kind = unsafe { libc::ioctl(fd.as_raw_fd(), libc::NS_GET_NSTYPE as _) };
    (kind > 0).then_some(kind)
}

fn kind_name(kind: i32) -> &'static str {
    match kind {
        libc::CLONE_NEWNS => "mount",
        libc::CLONE_NEWUTS => "uts",
        libc::CLONE_NEWIPC => "ipc",
        libc::CLONE_NEWPID => "pid",
        libc::CLONE_NEWUSER => "user",
        libc::CLONE_NEWCGROUP => "cgroup",
        _ => "different",
    }
}

/// The cookie of the namespace in which a socket was opened.
pub(crate) fn cookie_of(socket: BorrowedFd<'_>) -> Result<u64, NetNsError> {
    let mut cookie = 0u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or(8);
    // SAFETY: both pointers refer to live variables, and `length` is the size of the written one.
    #[expect(unsafe_code, reason = "rustix has no SO_NETNS_COOKIE")]
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    } != 0;
    if failed {
        let errno = Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO);
        return Err(NetNsError::Cookie { errno });
    }
    Ok(cookie)
}
