//! One network's attachments and addresses: begin, commit, find, release, list.

use std::fs::{self, File, Metadata};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use types::AttachmentKey;

use super::allocate::AddressClaims;
use super::file::{self, LOCK_TIMEOUT, StateError, io, optional, remove_if_there};
use super::held::HeldAttachment;
use super::index::{self, Bitmaps};
use super::record::{Attachment, RecordContent};
use super::repair::Survivor;

/// Begins the name of a record whose attachment has not begun, or has ended: nothing of it is in the kernel, and its claims
/// go with it.
pub(super) const UNFINISHED: &str = ".new-";

/// More than a record of a pod with some ports takes.
const RECORD: usize = 2048;

/// How far an attachment has come. The file's name says it, so that one rename moves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordPhase {
    /// Being made or undone; if nobody holds it, whoever did was killed.
    Pending,
    Ready,
}

/// The order in which a record is looked for by somebody who does not hold it. Its holder may rename it between two of
/// our looks, and it goes pending, ready, pending, gone: only these three looks cannot all miss it.
pub(super) const SEARCH: [RecordPhase; 3] = [RecordPhase::Pending, RecordPhase::Ready, RecordPhase::Pending];

impl RecordPhase {
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Pending => ".pending",
            Self::Ready => ".ready",
        }
    }
}

/// What an attach asks of the state.
pub struct AllocationRequest<'a> {
    pub key: &'a AttachmentKey,
    /// None: the addresses come from elsewhere, nothing is claimed.
    pub pools: Option<&'a ipam::Pools>,
    pub requested: &'a [(IpAddr, Option<u8>)],
    /// Removes from the kernel what is left of the last owners of a range's addresses. Called under the network's lock,
    /// and seldom: when the round robin comes to an address that was used before, once for all of them.
    pub clean: &'a Clean<'a>,
}

/// Given a range and who of it is not to be touched.
pub type Clean<'a> = dyn Fn(&ipam::Range, &dyn Fn(IpAddr) -> bool) -> Result<(), StateError> + 'a;

/// An address that was claimed, and the subnet it is from.
#[derive(Debug, Clone)]
pub struct Allocation {
    pub address: IpAddr,
    pub prefix_len: u8,
    pub gateway: IpAddr,
    /// Somebody had it before: others may remember where.
    pub used_before: bool,
}

/// The outcome of [`NetworkState::begin`].
#[derive(Debug)]
pub enum Begin {
    Started(Box<HeldAttachment>),
    /// There is one already, and nothing was changed. A pending one is to be undone (through [`NetworkState::find`]) first.
    Exists(RecordPhase),
}

/// A record as a listing shows it.
#[derive(Debug)]
pub struct ListedRecord {
    pub stem: String,
    pub phase: RecordPhase,
    /// None: the record cannot be read.
    pub attachment: Option<Attachment>,
    /// The schema of a record that a newer version of Podwire wrote.
    pub newer: Option<u32>,
}

#[derive(Debug, Clone)]
pub struct NetworkState {
    pub(super) dir: PathBuf,
}

impl NetworkState {
    /// Makes the directory, with what lives already. Called with the state's lock held.
    pub(super) fn create(dir: PathBuf, survivors: &[Survivor]) -> Result<Self, StateError> {
        // The lock file is made last: a network that has one has everything, and one that has none was left by a
        // process that was killed right here.
        file::remove_any(&dir)?;
        for sub in ["attachments", "addresses", "index"] {
            let path = dir.join(sub);
            files::create_dir(&path).map_err(io("make", &path))?;
        }
        let network = Self { dir };
        for survivor in survivors {
            network.adopt(survivor)?;
        }
        let path = network.dir.join("lock");
        let lock = files::open(&path, File::options().create(true).append(true).mode(0o600));
        lock.map_err(io("make", &path))?;
        Ok(network)
    }

    /// Whether the claim of an address is a link to this record's file.
    pub(super) fn is_linked(&self, address: IpAddr, record: &Metadata) -> Result<bool, StateError> {
        let path = self.claim_path(address);
        let claim = optional(fs::symlink_metadata(&path)).map_err(io("look at", &path))?;
        Ok(claim.is_some_and(|m| (m.dev(), m.ino()) == (record.dev(), record.ino())))
    }

    /// Whether all these claims are links to the record of this name. Takes no lock.
    pub fn has_claims(&self, stem: &str, mut addresses: impl Iterator<Item = IpAddr>) -> bool {
        let Ok(record) = fs::symlink_metadata(self.record_path(stem, RecordPhase::Ready)) else {
            return false;
        };
        addresses.all(|address| self.is_linked(address, &record).unwrap_or(true))
    }

    pub(super) fn existing(dir: PathBuf) -> Option<Self> {
        dir.join("lock").exists().then_some(Self { dir })
    }

    /// All networks of the same state directory, this one too.
    pub fn siblings(&self) -> Result<Vec<Self>, StateError> {
        Self::all_in(self.dir.parent().unwrap_or(&self.dir))
    }

    pub(super) fn all_in(dir: &Path) -> Result<Vec<Self>, StateError> {
        Ok(file::list(dir)?.iter().filter_map(|name| Self::existing(dir.join(name))).collect())
    }

    /// The directories that an ADD writes to.
    pub(crate) fn written_dirs(&self) -> [PathBuf; 2] {
        ["attachments", "addresses"].map(|name| self.dir.join(name))
    }

    /// The directory's name: the network's, unless that was too long for one.
    pub fn name(&self) -> String {
        self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Claims addresses and writes the record as pending, in one critical section. `make` turns the claimed addresses
    /// into the whole record: nothing is added to it later.
    pub fn begin(
        &self,
        wanted: &AllocationRequest<'_>,
        make: impl FnOnce(&[Allocation]) -> Attachment,
    ) -> Result<Begin, StateError> {
        let section = self.enter()?;
        let stem = wanted.key.file_stem();
        for phase in SEARCH {
            if self.record_path(&stem, phase).exists() {
                section.leave()?;
                return Ok(Begin::Exists(phase));
            }
        }
        match self.start(wanted, &stem, make) {
            Ok(held) => {
                section.leave()?;
                Ok(Begin::Started(Box::new(held)))
            }
            Err(FailedBegin { error, undone }) => {
                // What could not be undone here is left marked, and the next process repairs it.
                if undone {
                    section.leave()?;
                }
                Err(error)
            }
        }
    }

    fn start(
        &self,
        wanted: &AllocationRequest<'_>,
        stem: &str,
        make: impl FnOnce(&[Allocation]) -> Attachment,
    ) -> Result<HeldAttachment, FailedBegin> {
        let temp = self.unfinished_path();
        let mut claims = AddressClaims::new(self, &temp);
        let result = (|| {
            let mut file = files::create(&temp).map_err(io("make the record", &temp))?;
            // Locked before anybody can see it under its real name.
            file::lock(&file, &temp, LOCK_TIMEOUT)?;
            let allocations = match wanted.pools {
                Some(pools) => claims.take(pools, wanted)?,
                None => Vec::new(),
            };
            let attachment = make(&allocations);
            let text = serde_json::to_vec(&attachment).map_err(|e| io("encode", &temp)(e.into()))?;
            file.write_all(&text).map_err(io("write the record", &temp))?;
            let path = self.record_path(stem, RecordPhase::Pending);
            fs::rename(&temp, &path).map_err(io("rename the record to", &path))?;
            let network = self.clone();
            Ok(HeldAttachment {
                network,
                stem: stem.to_owned(),
                file,
                phase: RecordPhase::Pending,
                attachment: Some(attachment),
                newer: None,
            })
        })();
        result.map_err(|error| {
            let undone = claims.give_back().is_ok() && remove_if_there(&temp).is_ok();
            FailedBegin { error, undone }
        })
    }

    /// The attachment, locked, or None if there is none. Waits (with an end) while another process works on it.
    pub fn find(&self, key: &AttachmentKey) -> Result<Option<HeldAttachment>, StateError> {
        self.find_stem(&key.file_stem())
    }

    pub fn find_stem(&self, stem: &str) -> Result<Option<HeldAttachment>, StateError> {
        self.find_within(stem, LOCK_TIMEOUT)
    }

    /// The attachment, locked, unless there is none or somebody is working on it right now.
    pub fn find_idle(&self, stem: &str) -> Result<Option<HeldAttachment>, StateError> {
        match self.find_within(stem, Duration::ZERO) {
            Err(StateError::Busy { .. }) => Ok(None),
            other => other,
        }
    }

    /// As [`NetworkState::find_stem`], with another limit of the wait.
    pub fn find_within(&self, stem: &str, timeout: Duration) -> Result<Option<HeldAttachment>, StateError> {
        // Each round means that another process moved or removed the record between two of our calls.
        for _ in 0..100 {
            let Some(file) = self.open_record(stem)? else { return Ok(None) };
            file::lock(&file, &self.record_path(stem, RecordPhase::Ready), timeout)?;
            if let Some(phase) = self.phase_of(stem, &file)? {
                let (attachment, newer) = self.content(stem, &file).split();
                let (network, stem) = (self.clone(), stem.to_owned());
                return Ok(Some(HeldAttachment { network, stem, file, phase, attachment, newer }));
            }
        }
        Err(StateError::Busy { path: self.record_path(stem, RecordPhase::Ready), waited: LOCK_TIMEOUT })
    }

    pub(super) fn open_record(&self, stem: &str) -> Result<Option<File>, StateError> {
        for phase in SEARCH {
            let path = self.record_path(stem, phase);
            let opened = optional(files::open(&path, File::options().read(true)));
            if let Some(file) = opened.map_err(io("open the record", &path))? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    /// What a record's file holds. A record that is of another attachment than its name says was moved or copied here: to
    /// act on it would take the other attachment apart.
    fn content(&self, stem: &str, file: &File) -> RecordContent {
        let Ok(bytes) = files::read_open(file) else { return RecordContent::Damaged };
        match RecordContent::of(&bytes) {
            RecordContent::Attachment(read)
                if read.key.file_stem() != stem
                    || AttachmentKey::network_dir(&read.key.network) != self.name() =>
            {
                RecordContent::Damaged
            }
            content => content,
        }
    }

    /// Under which name the open file is known now; None if it was removed.
    fn phase_of(&self, stem: &str, file: &File) -> Result<Option<RecordPhase>, StateError> {
        for phase in [RecordPhase::Ready, RecordPhase::Pending] {
            let path = self.record_path(stem, phase);
            let ours = file.metadata().map_err(io("look at", &path))?.ino();
            let named = optional(fs::symlink_metadata(&path)).map_err(io("look at", &path))?;
            if named.is_some_and(|m| m.ino() == ours) {
                return Ok(Some(phase));
            }
        }
        Ok(None)
    }

    /// All records, without locks: a picture, not a promise.
    pub fn list(&self) -> Result<Vec<ListedRecord>, StateError> {
        let dir = self.dir.join("attachments");
        let mut listed = Vec::new();
        for name in file::list(&dir)? {
            let Some(name) = name.to_str() else { continue };
            let Some((stem, phase)) = [RecordPhase::Ready, RecordPhase::Pending]
                .iter()
                .find_map(|phase| name.strip_suffix(phase.suffix()).map(|stem| (stem.to_owned(), *phase)))
            else {
                continue;
            };
            let path = dir.join(name);
            let content = match optional(files::open(&path, File::options().read(true))) {
                Ok(Some(file)) => self.content(&stem, &file),
                // Gone between the listing and now: not there.
                Ok(None) => continue,
                // It must not hide the other records. A process that opens this one gets the reason.
                Err(e) if files::is_refused(&e) => RecordContent::Damaged,
                Err(e) => return Err(io("open", &path)(e)),
            };
            let (attachment, newer) = content.split();
            listed.push(ListedRecord { stem, phase, attachment, newer });
        }
        Ok(listed)
    }

    /// Is there no attachment at all, not even one that is being made?
    pub fn is_empty(&self) -> Result<bool, StateError> {
        let path = self.dir.join("attachments");
        Ok(fs::read_dir(&path).map_err(io("list", &path))?.next().is_none())
    }

    /// How many addresses of a set are claimed.
    pub fn in_use_of(&self, set: &ipam::RangeSet) -> Result<u64, StateError> {
        let is_of_set = |ip: &IpAddr| set.ranges().iter().any(|r| r.contains(*ip));
        Ok(self.claimed()?.into_iter().filter(is_of_set).count() as u64)
    }

    /// All addresses that are claimed.
    pub fn claimed(&self) -> Result<Vec<IpAddr>, StateError> {
        let names = file::list(&self.dir.join("addresses"))?;
        Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
    }

    /// Is there an address left in every set, and room for a record? Asks under the lock, leaves nothing behind.
    pub fn has_room(&self, pools: &ipam::Pools) -> Result<(), StateError> {
        let section = self.enter()?;
        let room = AddressClaims::new(self, Path::new("")).room(pools).and_then(|()| self.try_record());
        section.leave()?;
        room
    }

    fn try_record(&self) -> Result<(), StateError> {
        let temp = self.unfinished_path();
        let written = files::write_new(&temp, &[b' '; RECORD]).map(drop).map_err(io("write a record", &temp));
        remove_if_there(&temp)?;
        written
    }

    /// Does `address` still belong to the record that is held? A claim that is a copy of the record counts.
    pub fn is_claimed_by(&self, address: IpAddr, held: &HeldAttachment) -> Result<bool, StateError> {
        Ok(self.is_linked(address, &held.metadata()?)?
            || self.claimant(address).is_some_and(|stem| stem == held.stem))
    }

    /// Where a record is before it has its name and after it had it. In the critical section only, so one a process is
    /// enough.
    pub(super) fn unfinished_path(&self) -> PathBuf {
        self.temp_path(UNFINISHED)
    }

    pub(super) fn temp_path(&self, prefix: &str) -> PathBuf {
        self.dir.join("attachments").join(format!("{prefix}{}", std::process::id()))
    }

    /// Is there a record of this name, in any phase?
    pub fn knows(&self, stem: &str) -> Result<bool, StateError> {
        Ok(self.open_record(stem)?.is_some())
    }

    /// These addresses had an owner that no record knew: see [`AllocationRequest::clean`].
    pub fn lay_to_rest(&self, addresses: &[IpAddr]) -> Result<(), StateError> {
        if addresses.is_empty() {
            return Ok(());
        }
        let section = self.enter()?;
        let rested = Bitmaps::list(&self.dir)
            .and_then(|bitmaps| addresses.iter().try_for_each(|address| bitmaps.lay_to_rest(*address)));
        section.leave()?;
        rested
    }

    /// Removes from the kernel what is left of those who had addresses of these pools, before anybody wants them.
    pub fn clean_rested(&self, pools: &ipam::Pools, clean: &Clean<'_>) -> Result<(), StateError> {
        for range in pools.sets().iter().flat_map(ipam::RangeSet::ranges) {
            if index::any_rests(&self.dir, range) {
                let section = self.enter()?;
                let cleaned =
                    clean(range, &|ip| self.is_claimed(ip)).and_then(|()| index::wake(&self.dir, range));
                section.leave()?;
                cleaned?;
            }
        }
        Ok(())
    }

    /// Whether the address is in a range that this network has had.
    pub fn covers(&self, address: IpAddr) -> Result<bool, StateError> {
        index::covers(&self.dir, address)
    }

    /// Does anybody have this address?
    pub fn is_claimed(&self, address: IpAddr) -> bool {
        self.claim_path(address).symlink_metadata().is_ok()
    }

    /// Where the record of a ready attachment is, for people.
    pub fn path_of(&self, stem: &str) -> PathBuf {
        self.record_path(stem, RecordPhase::Ready)
    }

    pub(super) fn record_path(&self, stem: &str, phase: RecordPhase) -> PathBuf {
        self.dir.join("attachments").join(format!("{stem}{}", phase.suffix()))
    }

    pub(super) fn claim_path(&self, address: IpAddr) -> PathBuf {
        self.dir.join("addresses").join(address.to_string())
    }
}

/// A begin that failed, and whether all it had done was undone.
struct FailedBegin {
    error: StateError,
    undone: bool,
}
