//! Opening and reading files.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, makedev};
use rustix::io::Errno;

use crate::dir::{is_trusted, mode_if_shared};

/// Limit for reading a whole file. A record has a few kilobytes, the list of all peers some megabytes.
const MAX_SIZE: u64 = 64 << 20;

/// Fix for files in Podwire's own directories.
const REMOVE: &str = "; remove it";

/// Why a file that exists is not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenRefused {
    #[error("it is {kind}, not a regular file{advice}")]
    NotRegular { kind: &'static str, advice: &'static str },
    #[error("it is owned by untrusted user {owner}: run 'chown 0 {}'", path.display())]
    Owner { path: PathBuf, owner: u32 },
    #[error("other users can write to it (mode {mode:04o}): run 'chmod go-w {}'", path.display())]
    Mode { path: PathBuf, mode: u32 },
}

/// Whether an error of this crate is an [`OpenRefused`].
pub fn is_refused(error: &io::Error) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<OpenRefused>()).is_some()
}

/// Opens a regular file that only root or this user can write to. A symlink as the last component is refused. Custom flags of
/// `options` are overwritten.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open_with(path, options, OFlags::NOFOLLOW, |meta| {
        check_regular(meta)?;
        if !is_trusted(meta) {
            return Err(OpenRefused::Owner { path: path.to_owned(), owner: meta.uid() });
        }
        match mode_if_shared(meta) {
            Some(mode) => Err(OpenRefused::Mode { path: path.to_owned(), mode }),
            None => Ok(()),
        }
    })
}

/// Opens a regular file of any owner, such as a log or a file of another program. A symlink is refused.
pub fn open_unmanaged(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open_with(path, options, OFlags::NOFOLLOW, check_regular)
}

/// Opens a regular file for reading. Symlinks are followed, because configuration is often mounted as one. /dev/null is
/// accepted as an empty configuration.
pub fn open_config(path: &Path) -> io::Result<File> {
    let is_null = |meta: &Metadata| meta.file_type().is_char_device() && meta.rdev() == makedev(1, 3);
    open_with(path, File::options().read(true), OFlags::empty(), |meta| match check_regular(meta) {
        // The file belongs to the operator, so the error does not advise to remove it.
        Err(OpenRefused::NotRegular { kind, .. }) if !is_null(meta) => {
            Err(OpenRefused::NotRegular { kind, advice: "" })
        }
        Ok(()) | Err(_) => Ok(()),
    })
}

fn open_with(
    path: &Path,
    options: &mut OpenOptions,
    flags: OFlags,
    check: impl Fn(&Metadata) -> Result<(), OpenRefused>,
) -> io::Result<File> {
    // NONBLOCK: opening a FIFO without a peer would block. NOCTTY: a terminal must not become the controlling terminal.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        // The errors for a symlink, a FIFO or socket without a peer, and a directory.
        Some(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => fs::symlink_metadata(path)
            .ok()
            .and_then(|meta| check(&meta).err())
            .map_or(error, io::Error::other),
        Some(_) | None => error,
    })?;
    check(&file.metadata()?).map_err(io::Error::other)?;
    Ok(file)
}

fn check_regular(meta: &Metadata) -> Result<(), OpenRefused> {
    let kind = match meta.file_type() {
        file_type if file_type.is_file() => return Ok(()),
        file_type if file_type.is_symlink() => "a symlink",
        file_type if file_type.is_dir() => "a directory",
        file_type if file_type.is_fifo() => "a FIFO",
        file_type if file_type.is_socket() => "a socket",
        _ => "a device",
    };
    Err(OpenRefused::NotRegular { kind, advice: REMOVE })
}

/// The content of a regular file that only root or this user can write to.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_open(&open(path, File::options().read(true))?)
}

/// The content of a regular file of any owner.
pub fn read_unmanaged(path: &Path) -> io::Result<Vec<u8>> {
    read_open(&open_unmanaged(path, File::options().read(true))?)
}

/// As [`read`], for text.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The content of an open file, from its current position.
pub fn read_open(file: &File) -> io::Result<Vec<u8>> {
    read_limited(file, MAX_SIZE)
}

/// As [`read_open`]. A file with more than `max_size` bytes is an error.
pub fn read_limited(file: &File, max_size: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max_size + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_size {
        let size = match max_size >> 20 {
            0 => format!("{max_size} bytes"),
            mib => format!("{mib} MiB"),
        };
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {size}")));
    }
    Ok(bytes)
}

#[cfg(test)]
#[path = "tests/open.rs"]
mod tests;
