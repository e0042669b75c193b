//! The bitmap of a range as a file, so that the next free address is found without looking at each one. Only an index:
//! the claims are the truth, and it can be removed at any time.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ipam::{Range, Words};

use super::file::{self, StateError, io, optional, remove_if_there};

/// An open index. Called with the network's lock held.
#[derive(Debug, Clone)]
pub(super) struct Index {
    file: Rc<File>,
    path: Rc<Path>,
}

impl Index {
    /// Opens a range's index, and makes it from the claims if there is none.
    pub(super) fn open(network: &Path, range: &Range) -> Result<Self, StateError> {
        let path = directory(network).join(range.name());
        match open_file(&path, File::options().read(true).write(true)) {
            Ok(file) => Ok(Self { file: Rc::new(file), path: path.into() }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Self::build(network, range),
            Err(e) => Err(io("open the index", &path)(e)),
        }
    }

    /// Makes the index anew from the claims.
    pub(super) fn build(network: &Path, range: &Range) -> Result<Self, StateError> {
        let path = directory(network).join(range.name());
        let names = file::list(&network.join("addresses"))?;
        let claimed = names.iter().filter_map(|name| name.to_str()?.parse::<IpAddr>().ok());
        let words = ipam::rebuild(range, claimed);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut options = File::options();
        options.create(true).truncate(true).read(true).write(true);
        let mut file = open_file(&path, &mut options).map_err(io("make the index", &path))?;
        // Zeros at the end need not be stored: what is past the end reads as free.
        let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| (last | 7) + 1);
        file.write_all(&bytes[..used]).map_err(io("write the index", &path))?;
        Ok(Self { file: Rc::new(file), path: path.into() })
    }
}

impl Words for Index {
    type Error = StateError;

    fn load(&mut self, first: u32, into: &mut [u64]) -> Result<(), StateError> {
        let mut bytes = vec![0u8; into.len() * 8];
        // A bitmap ends where nothing is set any more. A regular file is read short only at its end.
        self.file.read_at(&mut bytes, u64::from(first) * 8).map_err(io("read the index", &self.path))?;
        for (word, bytes) in into.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        Ok(())
    }

    fn store(&mut self, index: u32, word: u64) -> Result<(), StateError> {
        self.file
            .write_all_at(&word.to_ne_bytes(), u64::from(index) * 8)
            .map_err(io("write the index", &self.path))
    }
}

/// An index can be removed at any time, and so can anything that has its name and cannot be used.
fn open_file(path: &Path, options: &mut OpenOptions) -> std::io::Result<File> {
    // Whatever the umask is: a file that other users can write is not opened again.
    let options = options.mode(0o600);
    files::open(path, options).or_else(|error| match files::is_refused(&error) {
        true => fs::remove_file(path).map_err(|_| error).and_then(|()| files::open(path, options)),
        false => Err(error),
    })
}

fn directory(network: &Path) -> PathBuf {
    network.join("index")
}

/// All bitmaps of a network, listed once for all addresses that change in them. Wants the network's lock.
pub(super) struct Bitmaps {
    dir: PathBuf,
    names: Vec<OsString>,
}

impl Bitmaps {
    pub(super) fn list(network: &Path) -> Result<Self, StateError> {
        let dir = directory(network);
        Ok(Self { names: file::list(&dir)?, dir })
    }

    /// A released address is free again in every index that covers it: the config may have changed in between.
    pub(super) fn forget(&self, address: IpAddr) -> Result<(), StateError> {
        self.change(address, "", ipam::clear)
    }

    /// Something of its last owner may still be in the kernel.
    pub(super) fn lay_to_rest(&self, address: IpAddr) -> Result<(), StateError> {
        self.change(address, RESTING, |index, offset| {
            // A full disk must not keep a pod from going away: a range that is not known rests as a whole.
            ipam::set(index, offset).map(drop).or_else(|_| remove_if_there(&index.path))
        })
    }

    /// Changes an address's bit in every bitmap of this kind that covers it. Their names say where they start.
    fn change(
        &self,
        address: IpAddr,
        suffix: &str,
        change: impl Fn(&mut Index, u32) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        for name in &self.names {
            let range = name.to_str().and_then(|name| name.strip_suffix(suffix));
            let Some(offset) = range.and_then(|range| offset_in(range, address)) else { continue };
            let path = self.dir.join(name);
            let opened = optional(open_file(&path, File::options().read(true).write(true)));
            // Removed since it was listed, for an address before this one.
            let Some(file) = opened.map_err(io("open the index", &path))? else { continue };
            change(&mut Index { file: Rc::new(file), path: path.into() }, offset)?;
        }
        Ok(())
    }
}

/// Whether the address is in a range that this network has had.
pub(super) fn covers(network: &Path, address: IpAddr) -> Result<bool, StateError> {
    let has = |name: OsString| {
        let range = name.to_str()?.trim_end_matches(USED).trim_end_matches(RESTING).to_owned();
        let (first, last) = range.split_once('-')?;
        let (first, last): (IpAddr, IpAddr) = (first.parse().ok()?, last.parse().ok()?);
        Some(first <= address && address <= last)
    };
    Ok(file::list(&directory(network))?.into_iter().any(|name| has(name) == Some(true)))
}

/// Where `address` is in the index of that name (`FIRST-LAST`), if it is.
fn offset_in(name: &str, address: IpAddr) -> Option<u32> {
    let (first, last) = name.split_once('-')?;
    let (first, last): (IpAddr, IpAddr) = (first.parse().ok()?, last.parse().ok()?);
    if first.is_ipv4() != address.is_ipv4() || address < first || address > last {
        return None;
    }
    let offset = number(address) - number(first);
    u32::try_from(offset).ok().filter(|offset| *offset < ipam::WINDOW)
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Ends the name of a range's second bitmap: the addresses that rest, because something of their last owner may still be
/// in the kernel. A range without one is not known, and all of it rests.
const RESTING: &str = ".resting";

/// Must what the last owner left be removed before this address is handed out?
pub(super) fn rests(network: &Path, range: &Range, address: IpAddr) -> Result<bool, StateError> {
    let Some(offset) = range.offset(address) else { return Ok(true) };
    let path = directory(network).join(range.name() + RESTING);
    // Mostly none rests, and a file that is empty need not be opened.
    if fs::symlink_metadata(&path).is_ok_and(|file| file.is_file() && file.len() == 0) {
        return Ok(false);
    }
    match open_file(&path, File::options().read(true)) {
        Ok(file) => ipam::is_set(&mut Index { file: Rc::new(file), path: path.into() }, offset),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(io("open the index", &path)(e)),
    }
}

/// Does anything of this range rest? One that is not known does not count: it is cleaned when it is wanted.
pub(super) fn any_rests(network: &Path, range: &Range) -> bool {
    let path = directory(network).join(range.name() + RESTING);
    fs::symlink_metadata(path).is_ok_and(|file| file.len() > 0)
}

/// Nothing is left of anybody who had an address of this range and has it no more.
pub(super) fn wake(network: &Path, range: &Range) -> Result<(), StateError> {
    let path = directory(network).join(range.name() + RESTING);
    let emptied = open_file(&path, File::options().create(true).truncate(true).write(true));
    emptied.map_err(io("make the index", &path)).map(drop)
}

/// Ends the name of a range's third bitmap: the addresses that were handed out at least once.
const USED: &str = ".used";

/// Notes that the address is handed out; says whether somebody had it before.
pub(super) fn use_again(network: &Path, range: &Range, address: IpAddr) -> Result<bool, StateError> {
    let Some(offset) = range.offset(address) else { return Ok(true) };
    let path = directory(network).join(range.name() + USED);
    let file = open_file(&path, File::options().create(true).truncate(false).read(true).write(true));
    let file = Rc::new(file.map_err(io("open the index", &path))?);
    let mut index = Index { file, path: path.into() };
    ipam::set(&mut index, offset)
}

/// Where each set's round robin stands: the address that was handed out last, as text in a slot of its own. Written in
/// place: to make a file anew costs more than all the rest of an allocation.
const CURSORS: &str = "last";
/// The longest IPv6 address has 45 characters.
const SLOT: usize = 48;

/// Opened once for all sets of an allocation. Wants the network's lock.
#[derive(Debug)]
pub(super) struct Cursors {
    file: File,
    path: PathBuf,
}

impl Cursors {
    pub(super) fn open(network: &Path) -> Result<Self, StateError> {
        let path = directory(network).join(CURSORS);
        let file = open_file(&path, File::options().create(true).truncate(false).read(true).write(true));
        Ok(Self { file: file.map_err(io("open", &path))?, path })
    }

    /// A missing or broken cursor costs nothing but the order.
    pub(super) fn last(&self, set: usize) -> Option<IpAddr> {
        let mut slot = [0u8; SLOT];
        let read = self.file.read_at(&mut slot, (set * SLOT) as u64).ok()?;
        std::str::from_utf8(&slot[..read]).ok()?.trim_matches(['\0', ' ']).parse().ok()
    }

    pub(super) fn remember(&self, set: usize, address: IpAddr) -> Result<(), StateError> {
        let slot = format!("{address:<SLOT$}");
        self.file.write_all_at(slot.as_bytes(), (set * SLOT) as u64).map_err(io("write", &self.path))
    }
}

/// Removes all indexes; what else is known of ranges stays.
pub(super) fn remove_all(network: &Path) -> Result<(), StateError> {
    let dir = directory(network);
    for name in file::list(&dir)? {
        let ends = name.to_str().and_then(|name| name.split_once('-'));
        if ends.is_some_and(|(first, last)| [first, last].iter().all(|end| end.parse::<IpAddr>().is_ok())) {
            remove_if_there(&dir.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_an_address_in_an_index_by_its_name() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(offset_in("10.0.0.1-10.0.0.254", ip("10.0.0.7")), Some(6));
        assert_eq!(offset_in("fd00::1-fd00::ff", ip("fd00::1")), Some(0));
        assert_eq!(offset_in("10.0.0.1-10.0.0.254", ip("10.0.1.7")), None);
        assert_eq!(offset_in("10.0.0.1-10.0.0.254", ip("fd00::1")), None);
        assert_eq!(offset_in(CURSORS, ip("10.0.0.7")), None);
        assert_eq!(offset_in("fd00::-fd00::ffff:ffff:ffff", ip("fd00::ffff:0:0")), None);
    }
}
