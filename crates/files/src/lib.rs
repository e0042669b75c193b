//! Opens the files of Podwire's directories, whatever another process put in their place. A FIFO or device never blocks
//! the caller, a symlink is not followed, and a directory that another user can write to is refused. Called by every
//! crate that reads or writes state, configuration or logs. Touches only the paths it is given.

#![forbid(unsafe_code)]

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, makedev};
use rustix::io::Errno;

/// The largest file that is read whole. A record has a few kilobytes, the list of all peers some megabytes.
const LARGEST: u64 = 64 << 20;

/// For files in Podwire's own directories.
const REMOVE: &str = "; remove it";

/// The path leads to something that Podwire did not make.
#[derive(Debug, thiserror::Error)]
#[error("it is {what}, not a regular file{advice}")]
pub struct NotRegular {
    what: &'static str,
    advice: &'static str,
}

/// Whether an error of this crate says that the path leads to something other than a regular file.
pub fn is_not_regular(error: &io::Error) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<NotRegular>()).is_some()
}

/// Opens a regular file. A symlink as the last component is refused. Other custom flags of `options` are replaced.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open_with(path, options, OFlags::NOFOLLOW, Metadata::is_file)
}

/// Opens a regular file for reading. A symlink is followed: configuration is often mounted as one. /dev/null is an empty
/// configuration.
pub fn open_config(path: &Path) -> io::Result<File> {
    let is_null = |meta: &Metadata| meta.file_type().is_char_device() && meta.rdev() == makedev(1, 3);
    let opened =
        open_with(path, File::options().read(true), OFlags::empty(), |meta| meta.is_file() || is_null(meta));
    // It is the operator's file: no advice to remove it.
    opened.map_err(|error| match error.downcast::<NotRegular>() {
        Ok(NotRegular { what, .. }) => io::Error::other(NotRegular { what, advice: "" }),
        Err(error) => error,
    })
}

fn open_with(
    path: &Path,
    options: &mut OpenOptions,
    flags: OFlags,
    is_accepted: impl Fn(&Metadata) -> bool,
) -> io::Result<File> {
    // NONBLOCK: a FIFO without a peer would block here. NOCTTY: a terminal must not become the agent's own.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        // A symlink, a FIFO or socket without a peer, a directory.
        Some(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => describe(path).unwrap_or(error),
        Some(_) | None => error,
    })?;
    let meta = file.metadata()?;
    if is_accepted(&meta) { Ok(file) } else { Err(not_regular(meta.file_type(), REMOVE)) }
}

fn describe(path: &Path) -> Option<io::Error> {
    let kind = fs::symlink_metadata(path).ok()?.file_type();
    (!kind.is_file()).then(|| not_regular(kind, REMOVE))
}

fn not_regular(kind: FileType, advice: &'static str) -> io::Error {
    let what = match kind {
        kind if kind.is_symlink() => "a symlink",
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    io::Error::other(NotRegular { what, advice })
}

/// The content of a regular file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_open(&open(path, File::options().read(true))?)
}

/// The content of a regular file that is text.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The content of an open file, from its current position.
pub fn read_open(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is larger than {} MiB", LARGEST >> 20),
        ));
    }
    Ok(bytes)
}

/// Writes a new file, for its owner only. Anything but a directory that has the name already is removed first: only for
/// names that the caller alone uses.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let create = || File::options().read(true).write(true).create_new(true).mode(0o600).open(path);
    let created = create().or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => fs::remove_file(path).and_then(|()| create()),
        _ => Err(error),
    });
    let mut file = created?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Why a directory cannot hold state.
#[derive(Debug, thiserror::Error)]
pub enum UnsafeDir {
    #[error("{} is a symlink of another user: remove it", .0.display())]
    Symlink(PathBuf),
    #[error("{dir} belongs to user {owner}, who could change what is in it: run 'chown {us} {dir}'", dir = dir.display())]
    Owner { dir: PathBuf, owner: u32, us: u32 },
    #[error("{dir} can be written by other users (mode {mode:04o}): run 'chmod go-w {dir}'", dir = dir.display())]
    Mode { dir: PathBuf, mode: u32 },
}

/// Checks that only this user can change what is in a directory. A path that does not lead to a directory passes: nothing
/// can be opened below it.
pub fn check_dir(dir: &Path) -> Result<(), UnsafeDir> {
    // Without a slash at the end, which would follow a symlink.
    let dir: PathBuf = dir.components().collect();
    let Ok(meta) = fs::symlink_metadata(&dir) else { return Ok(()) };
    let us = rustix::process::geteuid().as_raw();
    let is_trusted = |meta: &Metadata| meta.uid() == us || meta.uid() == 0;
    // A relocated directory: what counts is where the link leads, and that no other user made it.
    let meta = match meta {
        link if link.is_symlink() && !is_trusted(&link) => return Err(UnsafeDir::Symlink(dir)),
        link if link.is_symlink() => match fs::metadata(&dir) {
            Ok(meta) => meta,
            Err(_) => return Ok(()),
        },
        meta => meta,
    };
    if !meta.is_dir() {
        return Ok(());
    }
    if !is_trusted(&meta) {
        return Err(UnsafeDir::Owner { dir, owner: meta.uid(), us });
    }
    match meta.mode() & 0o7777 {
        mode if mode & 0o022 != 0 => Err(UnsafeDir::Mode { dir, mode }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType as Kind, Mode, mknodat};

    use super::*;

    /// Everything that can have a file's name and is none, with the word for it.
    fn strange(dir: &Path) -> Vec<(PathBuf, &'static str)> {
        let make = |name: &str, kind, device| {
            let path = dir.join(name);
            mknodat(CWD, &path, kind, Mode::from_raw_mode(0o600), device).unwrap();
            path
        };
        let (link, inner, socket) = (dir.join("link"), dir.join("dir"), dir.join("socket"));
        symlink("/etc/hostname", &link).unwrap();
        fs::create_dir(&inner).unwrap();
        drop(UnixListener::bind(&socket).unwrap());
        vec![
            (make("fifo", Kind::Fifo, 0), "a FIFO"),
            (make("zero", Kind::CharacterDevice, makedev(1, 5)), "a device"),
            (link, "a symlink"),
            (inner, "a directory"),
            (socket, "a socket"),
        ]
    }

    /// A plain open of a FIFO would block here.
    #[test]
    fn a10_only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        for (path, word) in strange(dir.path()) {
            let modes = [File::options(), File::options(), File::options(), File::options()];
            let [mut read, mut write, mut create, mut append] = modes;
            read.read(true);
            write.write(true);
            create.read(true).write(true).create(true);
            append.append(true).create(true);
            for mut options in [read, write, create, append] {
                let error = open(&path, &mut options).unwrap_err();
                assert!(is_not_regular(&error), "{word}: {error:?}");
                assert!(error.to_string().contains(word), "{error}");
            }
        }
    }

    #[test]
    fn a_regular_file_is_read_and_a_missing_one_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        write_new(&path, b"text").unwrap();
        assert_eq!(
            (read_text(&path).unwrap().as_str(), fs::metadata(&path).unwrap().mode() & 0o777),
            ("text", 0o600)
        );
        symlink(&path, dir.path().join("link")).unwrap();
        assert!(open_config(&dir.path().join("link")).is_ok());
        assert!(open_config(Path::new("/dev/null")).is_ok());
        assert!(is_not_regular(&open_config(Path::new("/dev/zero")).unwrap_err()));
        fs::write(&path, b"\xff").unwrap();
        assert_eq!(read_text(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        File::create(&path).unwrap().set_len(LARGEST + 1).unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn write_new_replaces_what_has_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let path = dir.path().join(".new");
        symlink(&victim, &path).unwrap();
        write_new(&path, b"ours").unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), fs::read(&victim).unwrap()),
            (b"ours".to_vec(), b"precious".to_vec())
        );
        mknodat(CWD, dir.path().join("fifo"), Kind::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        write_new(&dir.path().join("fifo"), b"ours").unwrap();
    }

    #[test]
    fn a14_directories_of_other_users_are_refused_with_the_command() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        check_dir(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        check_dir(&path).unwrap();
        for mode in [0o777, 0o775, 0o1777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = check_dir(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("chmod go-w {}", path.display())), "{error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        // A relocated directory; not through a link that another user made.
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        check_dir(&link).unwrap();
        std::os::unix::fs::lchown(&link, Some(1000), None).unwrap();
        for link in ["link", "link/"] {
            assert!(matches!(check_dir(&dir.path().join(link)), Err(UnsafeDir::Symlink(_))), "{link}");
        }
        std::os::unix::fs::lchown(&link, Some(0), None).unwrap();
        std::os::unix::fs::chown(&path, Some(1000), None).unwrap();
        assert!(matches!(check_dir(&link), Err(UnsafeDir::Owner { .. })));
        let error = check_dir(&path).unwrap_err().to_string();
        assert!(error.contains("user 1000") && error.contains("chown 0 "), "{error}");
    }
}
