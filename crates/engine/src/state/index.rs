//! The bitmap of a range in a file, to find the next free address without checking each one. It is only an index of the
//! claims, and can be removed at any time.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ipam::{Range, Words};

use super::file::{self, StateError, io, optional, remove_if_exists};

/// An open index. Called with the network's lock held.
#[derive(Debug, Clone)]
pub(super) struct Index {
    file: Rc<File>,
    path: Rc<Path>,
}

impl Index {
    /// Opens the index of a range. If it does not exist, it is built from the claims.
    pub(super) fn open(network: &Path, range: &Range) -> Result<Self, StateError> {
        let path = directory(network).join(range.name());
        match open_file(&path, File::options().read(true).write(true)) {
            Ok(file) => Ok(Self { file: Rc::new(file), path: path.into() }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Self::build(network, range),
            Err(e) => Err(io("open the index", &path)(e)),
        }
    }

    /// Builds the index from the claims.
    pub(super) fn build(network: &Path, range: &Range) -> Result<Self, StateError> {
        let path = directory(network).join(range.name());
        let names = file::list(&network.join("addresses"))?;
        let claimed = names.iter().filter_map(|name| name.to_str()?.parse::<IpAddr>().ok());
        let words = ipam::rebuild(range, claimed);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut options = File::options();
        options.create(true).truncate(true).read(true).write(true);
        let mut file = open_file(&path, &mut options).map_err(io("create the index", &path))?;
        // Zeros at the end are not stored: bits past the end read as free.
        let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| (last | 7) + 1);
        file.write_all(&bytes[..used]).map_err(io("write the index", &path))?;
        Ok(Self { file: Rc::new(file), path: path.into() })
    }
}

impl Words for Index {
    type Error = StateError;

    fn load(&mut self, first: u32, into: &mut [u64]) -> Result<(), StateError> {
        let mut bytes = vec![0u8; into.len() * 8];
        // The file ends after the last set bit. A regular file has short reads only at its end.
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

/// Opens an index file. An index can be removed at any time, so an unusable file with its name is removed too.
fn open_file(path: &Path, options: &mut OpenOptions) -> std::io::Result<File> {
    // Independent of the umask: a file that other users can write is refused by the next open.
    let options = options.mode(0o600);
    files::open(path, options).or_else(|error| match files::is_refused(&error) {
        true => fs::remove_file(path).map_err(|_| error).and_then(|()| files::open(path, options)),
        false => Err(error),
    })
}

fn directory(network: &Path) -> PathBuf {
    network.join("index")
}

/// All bitmaps of a network, listed once for several addresses. The caller holds the network's lock.
pub(super) struct Bitmaps {
    dir: PathBuf,
    names: Vec<OsString>,
}

impl Bitmaps {
    pub(super) fn list(network: &Path) -> Result<Self, StateError> {
        let dir = directory(network);
        Ok(Self { names: file::list(&dir)?, dir })
    }

    /// Frees a released address in every index that covers it, because the config may have changed in between.
    pub(super) fn free(&self, address: IpAddr) -> Result<(), StateError> {
        self.change(address, "", ipam::clear)
    }

    /// Quarantines an address: the kernel may have conntrack entries of its last owner.
    pub(super) fn quarantine(&self, address: IpAddr) -> Result<(), StateError> {
        self.change(address, QUARANTINED, |index, offset| {
            // A full disk must not prevent a DEL. Without its bitmap, the complete range is quarantined.
            ipam::set(index, offset).map(drop).or_else(|_| remove_if_exists(&index.path))
        })
    }

    /// Changes the bit of an address in every bitmap of this kind that covers it. The file names contain the ranges.
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
            // The file may have been removed after the listing, for an earlier address.
            let Some(file) = opened.map_err(io("open the index", &path))? else { continue };
            change(&mut Index { file: Rc::new(file), path: path.into() }, offset)?;
        }
        Ok(())
    }
}

/// Whether the address is in a current or former range of this network.
pub(super) fn covers(network: &Path, address: IpAddr) -> Result<bool, StateError> {
    let has = |name: OsString| {
        let range = name.to_str()?.trim_end_matches(USED).trim_end_matches(QUARANTINED).to_owned();
        let (first, last) = range.split_once('-')?;
        let (first, last): (IpAddr, IpAddr) = (first.parse().ok()?, last.parse().ok()?);
        Some(first <= address && address <= last)
    };
    Ok(file::list(&directory(network))?.into_iter().any(|name| has(name) == Some(true)))
}

/// The offset of `address` in the index with this name (`FIRST-LAST`). None if it is outside.
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

/// Name suffix of a range's second bitmap: quarantined addresses. The kernel may have conntrack entries of their last owner. If a
/// range has no such file, all its addresses are quarantined.
const QUARANTINED: &str = ".resting";

/// Whether conntrack entries of the last owner must be removed before this address is allocated.
pub(super) fn is_quarantined(network: &Path, range: &Range, address: IpAddr) -> Result<bool, StateError> {
    let Some(offset) = range.offset(address) else { return Ok(true) };
    let path = directory(network).join(range.name() + QUARANTINED);
    // Usually no address is quarantined, and an empty file need not be opened.
    if fs::symlink_metadata(&path).is_ok_and(|file| file.is_file() && file.len() == 0) {
        return Ok(false);
    }
    match open_file(&path, File::options().read(true)) {
        Ok(file) => ipam::is_set(&mut Index { file: Rc::new(file), path: path.into() }, offset),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(io("open the index", &path)(e)),
    }
}

/// Whether a bitmap shows quarantined addresses. A range without a bitmap does not count. It is cleaned on first use.
pub(super) fn has_quarantined(network: &Path, range: &Range) -> bool {
    let path = directory(network).join(range.name() + QUARANTINED);
    fs::symlink_metadata(path).is_ok_and(|file| file.len() > 0)
}

/// Called after all conntrack entries of former owners of this range's addresses were removed.
pub(super) fn clear_quarantine(network: &Path, range: &Range) -> Result<(), StateError> {
    let path = directory(network).join(range.name() + QUARANTINED);
    let emptied = open_file(&path, File::options().create(true).truncate(true).write(true));
    emptied.map_err(io("create the index", &path)).map(drop)
}

/// Name suffix of a range's third bitmap: addresses that were allocated at least once.
const USED: &str = ".used";

/// Marks the address as used. Returns whether it was used before.
pub(super) fn mark_used(network: &Path, range: &Range, address: IpAddr) -> Result<bool, StateError> {
    let Some(offset) = range.offset(address) else { return Ok(true) };
    let path = directory(network).join(range.name() + USED);
    let file = open_file(&path, File::options().create(true).truncate(false).read(true).write(true));
    let file = Rc::new(file.map_err(io("open the index", &path))?);
    let mut index = Index { file, path: path.into() };
    ipam::set(&mut index, offset)
}

/// Round-robin position of each range set: the last allocated address as text, one slot per set. Written in place, because
/// creating a file costs more than the rest of an allocation.
const CURSORS: &str = "last";
/// The longest IPv6 address has 45 characters.
const SLOT: usize = 48;

/// Opened once for all sets of an allocation. The caller holds the network's lock.
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

    /// Without a valid cursor, allocation starts at the first address.
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

/// Removes all indexes, but not the bitmaps of quarantined and used addresses.
pub(super) fn remove_all(network: &Path) -> Result<(), StateError> {
    let dir = directory(network);
    for name in file::list(&dir)? {
        let ends = name.to_str().and_then(|name| name.split_once('-'));
        if ends.is_some_and(|(first, last)| [first, last].iter().all(|end| end.parse::<IpAddr>().is_ok())) {
            remove_if_exists(&dir.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_located_in_an_index_by_the_index_name() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(offset_in("10.0.0.1-10.0.0.254", ip("10.0.0.7")), Some(6));
        assert_eq!(offset_in("fd00::1-fd00::ff", ip("fd00::1")), Some(0));
        assert_eq!(offset_in("10.0.0.1-10.0.0.254", ip("10.0.1.7")), None);
        assert_eq!(offset_in("10.0.0.1-10.0.0.254", ip("fd00::1")), None);
        assert_eq!(offset_in(CURSORS, ip("10.0.0.7")), None);
        assert_eq!(offset_in("fd00::-fd00::ffff:ffff:ffff", ip("fd00::ffff:0:0")), None);
    }
}
