//! Notices when somebody touches what we installed.
//!
//! Every directory on the way to ours is watched for the name that leads on, so that a directory which is removed and made again
//! is found again, with all that is in it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::{InstallError, Installer, LOOPBACK};

/// A burst larger than this is finished by the next call: the descriptor stays readable.
const MAX_EVENTS: usize = 1024;

#[derive(Debug)]
pub struct FileWatch {
    inotify: OwnedFd,
    /// Our directories, and the names in them.
    directories: Vec<(PathBuf, Vec<OsString>)>,
    /// By watch: the names that matter in that directory.
    names: BTreeMap<i32, BTreeSet<OsString>>,
}

impl FileWatch {
    pub fn new(installer: &Installer) -> Result<Self, InstallError> {
        let install = &installer.install;
        let directories = vec![
            (install.plugin_dir.clone(), vec![installer.plugin.name.clone().into(), LOOPBACK.into()]),
            (install.config_dir.clone(), vec![install.config_name.clone().into()]),
        ];
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(|error| {
            InstallError::Watch { path: install.config_dir.clone(), source: error.into() }
        })?;
        let mut watch = Self { inotify, directories, names: BTreeMap::new() };
        watch.arm()?;
        Ok(watch)
    }

    /// Whether something happened to a file of ours, or to a directory on the way, since the last call. Never blocks. Our own
    /// writing counts, too: then a look finds that all is well.
    pub fn changed(&mut self) -> Result<bool, InstallError> {
        let (changed, rearm) = self.read_events().map_err(|error| {
            let path = self.directories.first().map(|(directory, _)| directory.clone()).unwrap_or_default();
            InstallError::Watch { path, source: error.into() }
        })?;
        if rearm {
            self.arm()?;
        }
        Ok(changed)
    }

    /// (something of ours, the watches are no longer those of our directories)
    fn read_events(&mut self) -> Result<(bool, bool), Errno> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let (mut changed, mut rearm) = (false, false);
        for _ in 0..MAX_EVENTS {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::WOULDBLOCK) => break,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            };
            let gone =
                ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT;
            let lost = event.events().intersects(gone | ReadFlags::QUEUE_OVERFLOW);
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            let names = self.names.get(&event.wd());
            let ours = names.zip(name).is_some_and(|(names, name)| names.contains(name));
            // A removed watch of an earlier arming says goodbye, too.
            let known = names.is_some() || event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            changed |= ours || (lost && known);
            rearm |= (ours && event.events().contains(ReadFlags::ISDIR)) || (lost && known);
            // A link on the way may lead elsewhere now.
            rearm |= ours && event.events().intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        }
        Ok((changed, rearm))
    }

    /// Watches what is there. From the top down: a directory that appears meanwhile is seen by the watch above it.
    fn arm(&mut self) -> Result<(), InstallError> {
        let mut names: BTreeMap<i32, BTreeSet<OsString>> = BTreeMap::new();
        for (directory, files) in &self.directories {
            let mut way: Vec<&Path> = directory.ancestors().collect();
            way.reverse();
            for pair in way.windows(2) {
                let [above, below] = pair else { continue };
                let Some(id) = self.add(above, on_the_way())? else { break };
                names.entry(id).or_default().extend(below.file_name().map(OsStr::to_owned));
            }
            if let Some(id) =
                self.add(directory, on_the_way() | WatchFlags::CLOSE_WRITE | WatchFlags::ATTRIB)?
            {
                names.entry(id).or_default().extend(files.iter().cloned());
            }
        }
        for old in self.names.keys().filter(|id| !names.contains_key(id)) {
            match inotify::remove_watch(&self.inotify, *old) {
                // Gone with its directory.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(error) => {
                    let path =
                        self.directories.first().map(|(directory, _)| directory.clone()).unwrap_or_default();
                    return Err(InstallError::Watch { path, source: error.into() });
                }
            }
        }
        self.names = names;
        Ok(())
    }

    /// None: there is no such directory.
    fn add(&self, path: &Path, what: WatchFlags) -> Result<Option<i32>, InstallError> {
        // Two ways may share a directory: what one wants must not take away what the other does.
        match inotify::add_watch(&self.inotify, path, what | WatchFlags::MASK_ADD | WatchFlags::ONLYDIR) {
            Ok(id) => Ok(Some(id)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(InstallError::Watch { path: path.to_owned(), source: io::Error::from(error) }),
        }
    }
}

fn on_the_way() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
}

impl AsFd for FileWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
