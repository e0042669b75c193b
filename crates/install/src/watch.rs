//! Detects changes of installed files with inotify.
//!
//! Every parent directory is watched for the name of the next one. So a directory that is removed and created again is
//! watched again, with all its files.

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

/// Events beyond this number are read by the next call, because the descriptor stays readable.
const MAX_EVENTS: usize = 1024;

#[derive(Debug)]
pub struct FileWatch {
    inotify: OwnedFd,
    /// The installation directories, and the file names in them.
    directories: Vec<(PathBuf, Vec<OsString>)>,
    /// By watch descriptor: the relevant names in that directory.
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

    /// Whether an installed file or a parent directory changed since the last call. Never blocks. Podwire's own writes are
    /// reported, too: then a check finds no difference.
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

    /// Returns whether a watched name changed, and whether the watches have to be renewed.
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
            let removed =
                ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT;
            let is_lost = event.events().intersects(removed | ReadFlags::QUEUE_OVERFLOW);
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            let names = self.names.get(&event.wd());
            let is_watched = names.zip(name).is_some_and(|(names, name)| names.contains(name));
            // Removed watches also cause an event. They are not in `names` any more.
            let is_known = names.is_some() || event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            changed |= is_watched || (is_lost && is_known);
            rearm |= (is_watched && event.events().contains(ReadFlags::ISDIR)) || (is_lost && is_known);
            // A symlink in the path may have a new target.
            rearm |= is_watched && event.events().intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        }
        Ok((changed, rearm))
    }

    /// Watches all existing directories, from the top down: the watch of the parent reports a directory that appears meanwhile.
    fn arm(&mut self) -> Result<(), InstallError> {
        let mut names: BTreeMap<i32, BTreeSet<OsString>> = BTreeMap::new();
        for (directory, files) in &self.directories {
            let mut ancestors: Vec<&Path> = directory.ancestors().collect();
            ancestors.reverse();
            for pair in ancestors.windows(2) {
                let [above, below] = pair else { continue };
                let Some(id) = self.add(above, directory_events())? else { break };
                names.entry(id).or_default().extend(below.file_name().map(OsStr::to_owned));
            }
            if let Some(id) =
                self.add(directory, directory_events() | WatchFlags::CLOSE_WRITE | WatchFlags::ATTRIB)?
            {
                names.entry(id).or_default().extend(files.iter().cloned());
            }
        }
        for old in self.names.keys().filter(|id| !names.contains_key(id)) {
            match inotify::remove_watch(&self.inotify, *old) {
                // Removed with its directory.
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

    /// None if there is no such directory.
    fn add(&self, path: &Path, flags: WatchFlags) -> Result<Option<i32>, InstallError> {
        // Two paths may share a directory: MASK_ADD keeps the flags of the other one.
        match inotify::add_watch(&self.inotify, path, flags | WatchFlags::MASK_ADD | WatchFlags::ONLYDIR) {
            Ok(id) => Ok(Some(id)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(InstallError::Watch { path: path.to_owned(), source: io::Error::from(error) }),
        }
    }
}

fn directory_events() -> WatchFlags {
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
