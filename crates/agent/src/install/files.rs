//! Files that appear whole, and the comparison of what is there with what should be.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use types::Digest;

use crate::install::InstallError;

const TEMP_SUFFIX: &str = ".podwire-tmp";
/// Who has not renamed its file by then was killed.
pub(super) const ABANDONED: Duration = Duration::from_secs(60);
const CHUNK: usize = 64 << 10;

/// What a file should hold.
pub(super) enum Content<'a> {
    Copy { file: &'a File, path: &'a Path },
    Text(&'a str),
}

/// How a file is compared with what it should be.
pub(super) enum Look {
    Right,
    Missing,
    /// The content is right, and mode or owner are not.
    Access(String),
    Other(String),
}

impl Look {
    /// What is wrong, if anything is.
    pub(super) fn complaint(self) -> Option<String> {
        match self {
            Self::Right => None,
            Self::Missing => Some("it was not there".to_owned()),
            Self::Access(why) | Self::Other(why) => Some(why),
        }
    }
}

impl Content<'_> {
    pub(super) fn bytes(&self) -> Result<Vec<u8>, InstallError> {
        match self {
            Self::Text(text) => Ok(text.as_bytes().to_vec()),
            Self::Copy { file, path } => {
                let fail = |source| InstallError::Source { path: path.to_path_buf(), source };
                let mut bytes = Vec::new();
                each_chunk(file, |chunk| {
                    bytes.extend_from_slice(chunk);
                    Ok(true)
                })
                .map_err(fail)?;
                Ok(bytes)
            }
        }
    }

    pub(super) fn digest(&self) -> Result<String, InstallError> {
        Ok(digest(&self.bytes()?))
    }

    /// Piece by piece: a look every half minute must not cost the agent the plugin's size in memory.
    fn is_in(&self, there: &File) -> io::Result<bool> {
        match self {
            Self::Text(text) => {
                let mut rest = text.as_bytes();
                let same = each_chunk(there, |chunk| match rest.strip_prefix(chunk) {
                    Some(tail) => {
                        rest = tail;
                        Ok(true)
                    }
                    None => Ok(false),
                })?;
                Ok(same && rest.is_empty())
            }
            Self::Copy { file, .. } => {
                if file.metadata()?.len() != there.metadata()?.len() {
                    return Ok(false);
                }
                let (mut offset, mut ours) = (0, vec![0; CHUNK]);
                each_chunk(there, |chunk| {
                    let ours = ours.get_mut(..chunk.len()).unwrap_or_default();
                    file.read_exact_at(ours, offset)?;
                    offset += chunk.len() as u64;
                    Ok(*ours == *chunk)
                })
            }
        }
    }
}

/// Calls `see` with the file's pieces until it says false; returns what it said last.
fn each_chunk(file: &File, mut see: impl FnMut(&[u8]) -> io::Result<bool>) -> io::Result<bool> {
    let (mut offset, mut buffer) = (0, vec![0; CHUNK]);
    loop {
        let read = match file.read_at(&mut buffer, offset) {
            Ok(0) => return Ok(true),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if !see(buffer.get(..read).unwrap_or_default())? {
            return Ok(false);
        }
        offset += read as u64;
    }
}

/// A digest wants words; every byte as the character of its number is one, and no two contents give the same.
pub(super) fn digest(bytes: &[u8]) -> String {
    Digest::of_bytes(bytes).base32(51)
}

pub(super) fn look(path: &Path, mode: u32, content: &Content<'_>) -> Result<Look, InstallError> {
    let fail = |source| InstallError::Read { path: path.to_owned(), source };
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if is_absent(&error) => return Ok(Look::Missing),
        Err(source) => return Err(fail(source)),
    };
    if !meta.is_file() {
        return Ok(Look::Other("it was not a regular file".to_owned()));
    }
    let there = match ::files::open(path, File::options().read(true)) {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(Look::Missing),
        Err(source) => return Err(fail(source)),
    };
    if !content.is_in(&there).map_err(fail)? {
        return Ok(Look::Other("its content was another".to_owned()));
    }
    Ok(access(&meta, mode).map_or(Look::Right, Look::Access))
}

fn access(meta: &Metadata, mode: u32) -> Option<String> {
    let (is, us) = (meta.mode() & 0o7777, rustix::process::geteuid().as_raw());
    if is != mode {
        Some(format!("its mode was {is:04o}, not {mode:04o}"))
    } else if meta.uid() != us {
        Some(format!("it belonged to user {}, not {us}", meta.uid()))
    } else {
        None
    }
}

/// A path through something that is no folder leads to nothing, too.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Writes under a temporary name in the same folder and renames: some runtimes do not notice a file that comes from
/// another folder, and a program that is being executed can be replaced no other way.
pub(super) fn write_whole(path: &Path, content: &[u8], mode: u32) -> Result<(), InstallError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    make_folder(folder)?;
    let fail = |source| InstallError::Write { path: path.to_owned(), source };
    let name = path.file_name().unwrap_or_default();
    sweep(folder, name, ABANDONED).map_err(fail)?;
    let temp = folder.join(temp_name(name).map_err(fail)?);
    let written = write_new(&temp, content, mode).and_then(|()| fs::rename(&temp, path));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&temp);
    }
    written.map_err(fail)
}

/// With what is missing on the way, for all to read, whatever the umask.
fn make_folder(folder: &Path) -> Result<(), InstallError> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.is_dir()).collect();
    for folder in missing.into_iter().rev() {
        let made =
            fs::create_dir(folder).and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o755)));
        match made {
            // Somebody else was quicker.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
            made => made.map_err(|source| InstallError::Folder { path: folder.to_owned(), source })?,
        }
    }
    Ok(())
}

fn write_new(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = File::options().create_new(true).write(true).mode(mode).open(path)?;
    // Whatever the umask was.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)?;
    // Written seldom, read after every boot: without this a power cut can leave an empty file under the final name. The
    // folder is not synced: a rename that is lost leaves the old file, and the next start puts the new one there again.
    file.sync_all()
}

/// A leading dot and no known suffix: no runtime takes it for a config. Random, because in a container every agent has
/// the same process id.
fn temp_name(name: &OsStr) -> io::Result<String> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".{}.{:016x}{TEMP_SUFFIX}", name.to_string_lossy(), u64::from_ne_bytes(random)))
}

/// Removes temporary files of this name that somebody who was killed has left; says which.
pub(super) fn sweep(folder: &Path, name: &OsStr, age: Duration) -> io::Result<Vec<PathBuf>> {
    let prefix = format!(".{}.", name.to_string_lossy());
    let mut swept = Vec::new();
    let entries = match fs::read_dir(folder) {
        Err(error) if is_absent(&error) => return Ok(swept),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let file = entry.file_name();
        let file = file.to_string_lossy();
        if !(file.starts_with(&prefix) && file.ends_with(TEMP_SUFFIX)) {
            continue;
        }
        match entry.metadata().and_then(|meta| meta.modified()) {
            // A time in the future is nobody's who writes now.
            Ok(time) if time.elapsed().is_ok_and(|elapsed| elapsed < age) => continue,
            Ok(_) => {}
            Err(error) if is_absent(&error) => continue,
            Err(error) => return Err(error),
        }
        match fs::remove_file(entry.path()) {
            Ok(()) => swept.push(entry.path()),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(swept)
}
