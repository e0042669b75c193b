//! Watches the run directory with the socket, the lock and the tombstones. Other processes may remove any of them.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;

const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);
/// Events per read. Further ones are read the next time.
const MAX_EVENTS: usize = 1024;

/// inotify on some directories. It reports that something changed, and the caller checks the files.
#[derive(Debug)]
pub(super) struct DirectoryWatch {
    fd: OwnedFd,
    directories: Vec<PathBuf>,
}

impl DirectoryWatch {
    pub(super) fn open(directories: Vec<PathBuf>) -> Result<Self, Errno> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let watch = Self { fd, directories };
        watch.renew();
        Ok(watch)
    }

    /// Watches directories that were removed and created again. A directory that does not exist is checked by the timer.
    pub(super) fn renew(&self) {
        for directory in &self.directories {
            let _ = inotify::add_watch(&self.fd, directory.as_path(), EVENTS);
        }
    }

    /// Whether something changed since the last call. Does not wait.
    pub(super) fn changed(&self) -> Result<bool, Errno> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.fd, &mut buffer);
        let mut changed = false;
        for _ in 0..MAX_EVENTS {
            match reader.next() {
                Ok(_) => changed = true,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(changed)
    }
}

impl AsFd for DirectoryWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The run directory, its directory of tombstones, and the directory of the socket if that is elsewhere.
pub(super) fn directories(run_dir: &Path, socket: &Path) -> Vec<PathBuf> {
    let mut directories = vec![run_dir.to_owned(), run_dir.join("tombstones")];
    directories.extend(socket.parent().map(Path::to_owned).filter(|dir| dir != run_dir));
    directories
}
