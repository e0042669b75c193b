//! Attachments and addresses of one network: begin, commit, find, release, list.

use std::fs::{self, File, Metadata};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use types::AttachmentKey;

use super::allocate::AddressClaims;
use super::file::{self, LOCK_TIMEOUT, StateError, io, optional, remove_if_exists};
use super::held::HeldAttachment;
use super::index::{self, Bitmaps};
use super::record::{Attachment, RecordContent};
use super::repair::RecoveredLink;

/// Name prefix of a record before it is pending, or while it is released. The kernel has no objects of its attachment, and its
/// claims are removed with it.
pub(super) const UNFINISHED: &str = ".new-";

/// A record of a pod with several ports is smaller.
const RECORD_SIZE: usize = 2048;

/// The phase of an attachment. It is part of the file name, so that one rename changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordPhase {
    /// Being created or undone. If no process holds it, its process was killed.
    Pending,
    Ready,
}

/// The order in which a process without the lock searches a record. The holder may rename it between two lookups: pending,
/// ready, pending, removed. Only this order cannot miss it.
pub(super) const SEARCH_ORDER: [RecordPhase; 3] =
    [RecordPhase::Pending, RecordPhase::Ready, RecordPhase::Pending];

impl RecordPhase {
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Pending => ".pending",
            Self::Ready => ".ready",
        }
    }
}

/// A request for addresses.
pub struct AllocationRequest<'a> {
    pub key: &'a AttachmentKey,
    /// None if Podwire does not assign the addresses. Then nothing is claimed.
    pub pools: Option<&'a ipam::Pools>,
    pub requested: &'a [(IpAddr, Option<u8>)],
    /// Removes conntrack entries of the last owners of a range's addresses from the kernel. Called under the network's lock, and
    /// rarely: if the round robin reaches a quarantined address, once for all of them.
    pub remove_conntrack: &'a RemoveConntrack<'a>,
    /// Whether an address is assigned only if there is no other.
    pub is_avoided: &'a dyn Fn(IpAddr) -> bool,
}

/// Arguments: a range, and whether an address is in use. Flows of addresses in use are not removed.
pub type RemoveConntrack<'a> = dyn Fn(&ipam::Range, &dyn Fn(IpAddr) -> bool) -> Result<(), StateError> + 'a;

/// A claimed address and its subnet.
#[derive(Debug, Clone)]
pub struct Allocation {
    pub address: IpAddr,
    pub prefix_len: u8,
    pub gateway: IpAddr,
    /// A pod had it before, so neighbours may have another MAC cached for it.
    pub used_before: bool,
}

/// The outcome of [`NetworkState::begin`].
#[derive(Debug)]
pub enum Begin {
    Started(Box<HeldAttachment>),
    /// A record exists, and nothing was changed. A pending one must be undone first (through [`NetworkState::find`]).
    Exists(RecordPhase),
}

/// A record in a listing.
#[derive(Debug)]
pub struct ListedRecord {
    pub stem: String,
    pub phase: RecordPhase,
    /// None if the record cannot be read.
    pub attachment: Option<Attachment>,
    /// The schema of a record that a newer version of Podwire wrote.
    pub newer: Option<u32>,
}

#[derive(Debug, Clone)]
pub struct NetworkState {
    pub(super) dir: PathBuf,
}

impl NetworkState {
    /// Creates the directory with the recovered attachments. Called with the state's lock held.
    pub(super) fn create(dir: PathBuf, recovered_links: &[RecoveredLink]) -> Result<Self, StateError> {
        // The lock file is created last. A network without it is incomplete and was left by a process that was killed
        // here.
        file::remove_any(&dir)?;
        for sub in ["attachments", "addresses", "index"] {
            let path = dir.join(sub);
            files::create_dir(&path).map_err(io("create", &path))?;
        }
        let network = Self { dir };
        for recovered_link in recovered_links {
            network.write_recovered(recovered_link)?;
        }
        let path = network.dir.join("lock");
        let lock = files::open(&path, File::options().create(true).append(true).mode(0o600));
        lock.map_err(io("create", &path))?;
        Ok(network)
    }

    /// Whether the claim of an address is a link to this record's file.
    pub(super) fn is_linked(&self, address: IpAddr, record: &Metadata) -> Result<bool, StateError> {
        let path = self.claim_path(address);
        let claim = optional(fs::symlink_metadata(&path)).map_err(io("inspect", &path))?;
        Ok(claim.is_some_and(|m| (m.dev(), m.ino()) == (record.dev(), record.ino())))
    }

    /// Whether all these claims are links to the record with this stem. Takes no lock.
    pub fn has_claims(&self, stem: &str, mut addresses: impl Iterator<Item = IpAddr>) -> bool {
        let Ok(record) = fs::symlink_metadata(self.record_path(stem, RecordPhase::Ready)) else {
            return false;
        };
        addresses.all(|address| self.is_linked(address, &record).unwrap_or(true))
    }

    pub(super) fn existing(dir: PathBuf) -> Option<Self> {
        dir.join("lock").exists().then_some(Self { dir })
    }

    /// All networks of the same state directory, including this one.
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

    /// The name of the directory: the network's name, or a digest if that is too long.
    pub fn name(&self) -> String {
        self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Claims addresses and writes the record as pending, in one critical section. `new_record` returns the complete record for
    /// the claimed addresses.
    pub fn begin(
        &self,
        request: &AllocationRequest<'_>,
        new_record: impl FnOnce(&[Allocation]) -> Attachment,
    ) -> Result<Begin, StateError> {
        let section = self.enter()?;
        let stem = request.key.file_stem();
        for phase in SEARCH_ORDER {
            if self.record_path(&stem, phase).exists() {
                section.leave()?;
                return Ok(Begin::Exists(phase));
            }
        }
        match self.start(request, &stem, new_record) {
            Ok(held) => {
                section.leave()?;
                Ok(Begin::Started(Box::new(held)))
            }
            Err(FailedBegin { error, undone }) => {
                // If it was not undone, the mark stays, and the next process repairs the state.
                if undone {
                    section.leave()?;
                }
                Err(error)
            }
        }
    }

    fn start(
        &self,
        request: &AllocationRequest<'_>,
        stem: &str,
        new_record: impl FnOnce(&[Allocation]) -> Attachment,
    ) -> Result<HeldAttachment, FailedBegin> {
        let temp = self.unfinished_path();
        let mut claims = AddressClaims::new(self, &temp);
        let result = (|| {
            let mut file = files::create(&temp).map_err(io("create the record", &temp))?;
            // Locked before it gets its final name.
            file::lock(&file, &temp, LOCK_TIMEOUT)?;
            let allocations = match request.pools {
                Some(pools) => claims.take(pools, request)?,
                None => Vec::new(),
            };
            let attachment = new_record(&allocations);
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
            let undone = claims.release().is_ok() && remove_if_exists(&temp).is_ok();
            FailedBegin { error, undone }
        })
    }

    /// Locks and returns the attachment, or None if it does not exist. Waits up to a limit while another process holds it.
    pub fn find(&self, key: &AttachmentKey) -> Result<Option<HeldAttachment>, StateError> {
        self.find_stem(&key.file_stem())
    }

    pub fn find_stem(&self, stem: &str) -> Result<Option<HeldAttachment>, StateError> {
        self.find_within(stem, LOCK_TIMEOUT)
    }

    /// Locks and returns the attachment. None if it does not exist, or if another process holds it.
    pub fn find_idle(&self, stem: &str) -> Result<Option<HeldAttachment>, StateError> {
        match self.find_within(stem, Duration::ZERO) {
            Err(StateError::Busy { .. }) => Ok(None),
            other => other,
        }
    }

    /// Like [`NetworkState::find_stem`], with a given timeout.
    pub fn find_within(&self, stem: &str, timeout: Duration) -> Result<Option<HeldAttachment>, StateError> {
        // Another iteration is needed only if another process renamed or removed the record between two calls.
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
        for phase in SEARCH_ORDER {
            let path = self.record_path(stem, phase);
            let opened = optional(files::open(&path, File::options().read(true)));
            if let Some(file) = opened.map_err(io("open the record", &path))? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    /// The content of a record's file. A record of another attachment than its file name was moved or copied. Using it would
    /// remove the other attachment.
    fn content(&self, stem: &str, file: &File) -> RecordContent {
        let Ok(bytes) = files::read_open(file) else { return RecordContent::Corrupt };
        match RecordContent::of(&bytes) {
            RecordContent::Attachment(read)
                if read.key.file_stem() != stem
                    || AttachmentKey::network_dir(&read.key.network) != self.name() =>
            {
                RecordContent::Corrupt
            }
            content => content,
        }
    }

    /// The phase in the current name of the open file. None if it was removed.
    fn phase_of(&self, stem: &str, file: &File) -> Result<Option<RecordPhase>, StateError> {
        for phase in [RecordPhase::Ready, RecordPhase::Pending] {
            let path = self.record_path(stem, phase);
            let inode = file.metadata().map_err(io("inspect", &path))?.ino();
            let named = optional(fs::symlink_metadata(&path)).map_err(io("inspect", &path))?;
            if named.is_some_and(|m| m.ino() == inode) {
                return Ok(Some(phase));
            }
        }
        Ok(None)
    }

    /// All records. Takes no locks, so they may change at any time.
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
                // Removed after the directory was listed.
                Ok(None) => continue,
                // It must not hide the other records. Opening this record reports the reason.
                Err(e) if files::is_refused(&e) => RecordContent::Corrupt,
                Err(e) => return Err(io("open", &path)(e)),
            };
            let (attachment, newer) = content.split();
            listed.push(ListedRecord { stem, phase, attachment, newer });
        }
        Ok(listed)
    }

    /// Whether there is no attachment, not even a pending one.
    pub fn is_empty(&self) -> Result<bool, StateError> {
        let path = self.dir.join("attachments");
        Ok(fs::read_dir(&path).map_err(io("list", &path))?.next().is_none())
    }

    /// Number of claimed addresses of a range set.
    pub fn in_use_of(&self, set: &ipam::RangeSet) -> Result<u64, StateError> {
        let is_of_set = |ip: &IpAddr| set.ranges().iter().any(|r| r.contains(*ip));
        Ok(self.claimed()?.into_iter().filter(is_of_set).count() as u64)
    }

    /// All claimed addresses.
    pub fn claimed(&self) -> Result<Vec<IpAddr>, StateError> {
        let names = file::list(&self.dir.join("addresses"))?;
        Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
    }

    /// Checks under the lock that every set has a free address and that a record can be written. Leaves no files.
    pub fn check_capacity(&self, pools: &ipam::Pools) -> Result<(), StateError> {
        let section = self.enter()?;
        let checked =
            AddressClaims::new(self, Path::new("")).check_capacity(pools).and_then(|()| self.try_record());
        section.leave()?;
        checked
    }

    fn try_record(&self) -> Result<(), StateError> {
        let temp = self.unfinished_path();
        let written =
            files::write_new(&temp, &[b' '; RECORD_SIZE]).map(drop).map_err(io("write a record", &temp));
        remove_if_exists(&temp)?;
        written
    }

    /// Whether `address` belongs to the held record. A claim that is a copy of the record counts.
    pub fn is_claimed_by(&self, address: IpAddr, held: &HeldAttachment) -> Result<bool, StateError> {
        Ok(self.is_linked(address, &held.metadata()?)?
            || self.claimant(address).is_some_and(|stem| stem == held.stem))
    }

    /// The path of a record before it gets and after it loses its final name. Used in the critical section only, so one path
    /// per process is enough.
    pub(super) fn unfinished_path(&self) -> PathBuf {
        self.temp_path(UNFINISHED)
    }

    pub(super) fn temp_path(&self, prefix: &str) -> PathBuf {
        self.dir.join("attachments").join(format!("{prefix}{}", std::process::id()))
    }

    /// Whether there is a record with this stem, in any phase.
    pub fn has_record(&self, stem: &str) -> Result<bool, StateError> {
        Ok(self.open_record(stem)?.is_some())
    }

    /// Quarantines addresses of an owner without a record: see [`AllocationRequest::remove_conntrack`].
    pub fn quarantine(&self, addresses: &[IpAddr]) -> Result<(), StateError> {
        if addresses.is_empty() {
            return Ok(());
        }
        let section = self.enter()?;
        let quarantined = Bitmaps::list(&self.dir)
            .and_then(|bitmaps| addresses.iter().try_for_each(|address| bitmaps.quarantine(*address)));
        section.leave()?;
        quarantined
    }

    /// Removes conntrack entries of former owners of these pools' addresses from the kernel, before the addresses are needed.
    pub fn clean_quarantined(
        &self,
        pools: &ipam::Pools,
        remove_conntrack: &RemoveConntrack<'_>,
    ) -> Result<(), StateError> {
        for range in pools.sets().iter().flat_map(ipam::RangeSet::ranges) {
            if index::has_quarantined(&self.dir, range) {
                let section = self.enter()?;
                let cleaned = remove_conntrack(range, &|ip| self.is_claimed(ip))
                    .and_then(|()| index::clear_quarantine(&self.dir, range));
                section.leave()?;
                cleaned?;
            }
        }
        Ok(())
    }

    /// Whether the address is in a current or former range of this network.
    pub fn covers(&self, address: IpAddr) -> Result<bool, StateError> {
        index::covers(&self.dir, address)
    }

    /// Whether any attachment has claimed the address.
    pub fn is_claimed(&self, address: IpAddr) -> bool {
        self.claim_path(address).symlink_metadata().is_ok()
    }

    /// The path of a ready record, for messages.
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

/// A failed begin, and whether all its changes were undone.
struct FailedBegin {
    error: StateError,
    undone: bool,
}
