//! Network namespaces. This is the only file of the project that calls setns.
//!
//! A closure runs inside a namespace on the calling thread, behind a guard that cannot leave the thread and goes back
//! when it is dropped, also while a panic unwinds. A thread of its own for each entry costs about 80 µs more (130 µs
//! in a fresh process), a tenth of a whole ADD.

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

const OWN: &str = "/proc/thread-self/ns/net";

#[derive(Debug, thiserror::Error)]
pub enum NetNsError {
    #[error("network namespace {} does not exist", path.display())]
    Missing { path: PathBuf },
    #[error("no permission to open network namespace {}: run as root with CAP_SYS_ADMIN", path.display())]
    Permission { path: PathBuf, errno: Errno },
    #[error("{} is not a namespace: it is an ordinary file, or what was mounted on it is gone", path.display())]
    NotNamespace { path: PathBuf },
    #[error("{} is a {kind} namespace, not a network namespace", path.display())]
    OtherKind { path: PathBuf, kind: &'static str },
    #[error("cannot open network namespace {}: {}", path.display(), io::Error::from(*errno))]
    Open { path: PathBuf, errno: Errno },
    #[error("cannot enter network namespace {}: {}", path.display(), io::Error::from(*errno))]
    Enter { path: PathBuf, errno: Errno },
    #[error("cannot read the cookie of a network namespace: {} (it needs Linux 5.14)", io::Error::from(*errno))]
    Cookie { errno: Errno },
    #[error("cannot make a network namespace: {}", io::Error::from(*errno))]
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

    /// The namespace is gone or was never there: what DEL takes for "nothing to do inside it".
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::NotNamespace { .. })
    }
}

/// An open network namespace; it lives at least as long as this.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
    path: PathBuf,
}

impl NetNs {
    /// Opens the namespace at a path that comes from outside. A file of another kind is not opened at all: opening a pipe
    /// waits for its writer, and opening a device (a watchdog) can have effects.
    pub fn open(path: &Path) -> Result<Self, NetNsError> {
        let found = open_at(path, path, OFlags::PATH)?;
        if !is_on_nsfs(found.as_fd()) {
            return Err(NetNsError::NotNamespace { path: path.to_owned() });
        }
        let same_file = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
        Self::of(open_at(&same_file, path, OFlags::RDONLY)?, path)
    }

    /// The namespace of the calling thread.
    pub fn current() -> Result<Self, NetNsError> {
        let own = Path::new(OWN);
        Self::of(open_at(own, own, OFlags::RDONLY)?, own)
    }

    fn of(fd: OwnedFd, path: &Path) -> Result<Self, NetNsError> {
        let path = path.to_owned();
        match kind_of(fd.as_fd()) {
            Some(libc::CLONE_NEWNET) => Ok(Self { fd, path }),
            Some(other) => Err(NetNsError::OtherKind { path, kind: kind_name(other) }),
            None => Err(NetNsError::NotNamespace { path }),
        }
    }

    /// A new, empty namespace without a name; it is gone when nobody holds it open.
    pub fn create() -> Result<Self, NetNsError> {
        let made = || {
            // SAFETY: NEWNET changes the namespace of this new thread alone; file descriptors stay shared.
            #[expect(
                unsafe_code,
                reason = "unshare is unsafe for the sake of UnshareFlags::FILES, which is not used"
            )]
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|errno| NetNsError::Create { errno })?;
            // This thread ends here: that it is not where it was is nobody's concern.
            Self::current()
        };
        std::thread::scope(|scope| scope.spawn(made).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What the kernel knows this namespace by until the next boot; never given to another one, unlike its inode.
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
        self.is_same(&*NamespaceGuard::home()?)
    }

    /// Whether both are one namespace; sound because both are open, so that their inode cannot be reused.
    pub fn is_same(&self, other: &Self) -> Result<bool, NetNsError> {
        let stat = |ns: &Self| {
            rustix::fs::fstat(&ns.fd).map_err(|errno| NetNsError::Open { path: ns.path.clone(), errno })
        };
        let (a, b) = (stat(self)?, stat(other)?);
        Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    }

    /// Runs `f` inside the namespace, on the calling thread. If the namespace cannot be entered, `f` is not run.
    /// The thread is back in its own namespace when this returns or panics; if the kernel does not let it back, the
    /// process aborts, because everything afterwards would happen to the wrong network.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, NetNsError> {
        let inside = NamespaceGuard::enter(self)?;
        let result = f();
        drop(inside);
        Ok(result)
    }

    fn enter(&self) -> Result<(), NetNsError> {
        move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| NetNsError::Enter { path: self.path.clone(), errno })
    }
}

/// The calling thread is in a foreign namespace as long as this lives.
struct NamespaceGuard {
    home: Rc<NetNs>,
    // Namespaces belong to threads: dropped in another one, the guard would move the wrong thread.
    _not_send: PhantomData<*const ()>,
}

thread_local! {
    /// The namespace that this thread belongs to, once it has left it: nothing but this file moves a thread, so it stays
    /// the same. Opening it takes longer than entering another one.
    static HOME: RefCell<Option<Rc<NetNs>>> = const { RefCell::new(None) };
    /// How many namespaces deep this thread is.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

impl NamespaceGuard {
    fn enter(target: &NetNs) -> Result<Self, NetNsError> {
        let home = Self::home()?;
        target.enter()?;
        DEPTH.set(DEPTH.get() + 1);
        Ok(Self { home, _not_send: PhantomData })
    }

    fn home() -> Result<Rc<NetNs>, NetNsError> {
        let at_home = DEPTH.get() == 0;
        if let Some(home) = HOME.with_borrow(Clone::clone).filter(|_| at_home) {
            return Ok(home);
        }
        let here = Rc::new(NetNs::current()?);
        // Entering the namespace one is in changes nothing, but fails where one may leave and not come back
        // (a process in a user namespace): an error now instead of an abort later.
        here.enter()?;
        if at_home {
            HOME.set(Some(Rc::clone(&here)));
        }
        Ok(here)
    }
}

impl Drop for NamespaceGuard {
    fn drop(&mut self) {
        if let Err(error) = self.home.enter() {
            eprintln!("aborting, because this thread cannot leave a pod's namespace: {error}");
            std::process::abort();
        }
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Errors name the path that was asked for.
fn open_at(path: &Path, asked: &Path, access: OFlags) -> Result<OwnedFd, NetNsError> {
    rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| {
        let path = asked.to_owned();
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

/// The `CLONE_NEW*` number of the namespace behind an open file of nsfs, `None` if it is no namespace.
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
    // SAFETY: both pointers are to live variables, and `length` is the size of the one that is written.
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
