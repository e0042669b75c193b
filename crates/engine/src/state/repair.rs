//! Repair of a network's state: records that were lost, claims without a record, and what killed processes had not finished.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use types::AttachmentKey;

use super::file::{self, StateError, io, optional, remove_if_there};
use super::held::HeldAttachment;
use super::index::{self, Bitmaps};
use super::network::{ListedRecord, NetworkState, RecordPhase, SEARCH, UNFINISHED};
use super::record::{Attachment, RecordContent};

/// Begins the name of a record that is being made for a pod that lives: if it is not finished, its claims stay.
const UNADOPTED: &str = ".lost-";

/// How claims without a record are freed.
pub struct Freeing<'a> {
    /// Whether a link has the address. Its pod lives although its record was lost, and its claim stays.
    pub is_alive: &'a dyn Fn(IpAddr) -> bool,
    /// Removes from the kernel what is left of these addresses, before others can have them.
    pub forget: &'a dyn Fn(&[IpAddr]) -> Result<(), StateError>,
}

impl Freeing<'_> {
    /// Frees nothing: no link was inspected, so every address may be of a pod that lives. Claims are still made links to
    /// their record again.
    pub(super) const NOTHING: Freeing<'static> = Freeing { is_alive: &|_| true, forget: &|_| Ok(()) };
}

/// An attachment that the kernel has and no record knows, as the links tell it.
#[derive(Debug)]
pub struct Survivor {
    pub stem: String,
    pub addresses: Vec<IpAddr>,
    /// None: the link does not say enough. Then the record is one that cannot be read, and still holds the addresses.
    pub attachment: Option<Attachment>,
}

impl NetworkState {
    /// Writes a lost record again, with its claims. False: another record has the key or one of the addresses.
    pub fn readopt(&self, survivor: &Survivor) -> Result<bool, StateError> {
        let section = self.enter()?;
        let mut taken = self.open_record(&survivor.stem)?.is_some();
        for address in &survivor.addresses {
            taken = taken || self.is_owned(*address)?;
        }
        if !taken {
            for address in &survivor.addresses {
                file::remove_any(&self.claim_path(*address))?;
            }
            self.adopt(survivor)?;
            index::remove_all(&self.dir)?;
        }
        section.leave()?;
        Ok(!taken)
    }

    /// Whether a record has claimed the address. A record that was removed leaves its claims behind, so the links of the
    /// claim's file are counted, as [`NetworkState::orphans`] does for all claims.
    pub fn is_owned(&self, address: IpAddr) -> Result<bool, StateError> {
        let path = self.claim_path(address);
        let claim = optional(fs::symlink_metadata(&path)).map_err(io("inspect", &path))?;
        let Some(claim) = claim.filter(Metadata::is_file) else { return Ok(false) };
        let Ok(RecordContent::Attachment(record)) = files::read(&path).map(|bytes| RecordContent::of(&bytes))
        else {
            // The file does not name the other claims that are links to it.
            return Ok(
                self.is_claimed(address) && !self.orphans()?.contains(&OsString::from(address.to_string()))
            );
        };
        let mut addresses: Vec<IpAddr> = record.ips().chain([address]).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let mut claims = 0;
        for address in addresses {
            claims += u64::from(self.is_linked(address, &claim)?);
        }
        Ok(claim.nlink() > claims)
    }

    /// Whether a record other than this one has claimed the address.
    pub fn is_claimed_by_another(&self, address: IpAddr, held: &HeldAttachment) -> Result<bool, StateError> {
        Ok(self.is_owned(address)? && !self.is_claimed_by(address, held)?)
    }

    /// The claims come before the record's name: a process that is killed in between leaves claims without a record, which
    /// stay as long as the pod's link has the addresses, and never a record whose addresses others could get.
    pub(super) fn adopt(&self, survivor: &Survivor) -> Result<(), StateError> {
        let (temp, path) = (self.temp_path(UNADOPTED), self.record_path(&survivor.stem, RecordPhase::Ready));
        let text = serde_json::to_vec(&survivor.attachment).map_err(|e| io("encode", &path)(e.into()))?;
        files::write_new(&temp, &text).map_err(io("write the record", &temp))?;
        for address in &survivor.addresses {
            self.claim(&temp, *address)?;
        }
        fs::rename(&temp, &path).map_err(io("rename the record to", &path))
    }

    /// Two that live with one address: that it is taken is all that counts.
    fn claim(&self, record: &Path, address: IpAddr) -> Result<(), StateError> {
        let claim = self.claim_path(address);
        match fs::hard_link(record, &claim) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
            other => other.map_err(io("claim", &claim)),
        }
    }

    /// Claims addresses for a ready record again where the claim was removed or replaced by a copy. Returns which.
    pub fn claim_again(
        &self,
        held: &HeldAttachment,
        addresses: &[IpAddr],
    ) -> Result<Vec<IpAddr>, StateError> {
        let record = held.metadata()?;
        let is_lost = |address: &IpAddr| self.is_linked(*address, &record).map(|linked| !linked);
        let mut replay = Vec::new();
        for address in addresses {
            if !is_lost(address)? {
                continue;
            }
            let section = self.enter()?;
            let claimed = match self.is_owned(*address) {
                // Two records name one address: the one that has the claim keeps it.
                Ok(true) => Ok(false),
                Ok(false) => self.link_claim(held.stem(), *address),
                Err(error) => Err(error),
            };
            let indexed = claimed.and_then(|claimed| index::remove_all(&self.dir).map(|()| claimed));
            section.leave()?;
            replay.extend(indexed?.then_some(*address));
        }
        Ok(replay)
    }

    /// Makes the claim a link to the record, whatever it is now. False: there is no such record. The claim never lacks a
    /// file meanwhile, unless a directory has its name. Called with the network's lock held.
    fn link_claim(&self, stem: &str, address: IpAddr) -> Result<bool, StateError> {
        let (temp, claim) = (self.dir.join("addresses").join(".new"), self.claim_path(address));
        remove_if_there(&temp)?;
        for phase in SEARCH {
            let record = self.record_path(stem, phase);
            if optional(fs::hard_link(&record, &temp)).map_err(io("link", &record))?.is_some() {
                if fs::symlink_metadata(&claim).is_ok_and(|meta| meta.is_dir()) {
                    file::remove_any(&claim)?;
                }
                fs::rename(&temp, &claim).map_err(io("claim", &claim))?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The name of the record that a claim is a link to, or was once copied from.
    pub(super) fn claimant(&self, address: IpAddr) -> Option<String> {
        let bytes = files::read(&self.claim_path(address)).ok()?;
        serde_json::from_slice::<AttachmentKey>(&bytes).ok().map(|key| key.file_stem())
    }

    /// Frees claims that have no record although no process was killed: the record was removed by hand, or the claim is a
    /// copy. Returns how many were freed.
    pub fn free_orphans(&self, how: &Freeing<'_>) -> Result<usize, StateError> {
        let section = self.enter()?;
        // A release that was under way when they were seen has removed them: then the indexes are right, and stay.
        let freed = match self.orphans() {
            Ok(orphans) if orphans.is_empty() => Ok(0),
            Ok(_) => self.repair(how),
            Err(error) => Err(error),
        };
        section.leave()?;
        freed
    }

    /// Whether there are claims without a record. A look without the lock: a process may be about to remove them.
    pub fn has_orphans(&self) -> Result<bool, StateError> {
        Ok(!self.orphans()?.is_empty())
    }

    /// Removes what killed processes had not finished: half-written records, and the claims that are links to them. All other
    /// claims without a record may be of pods that live, and stay for [`NetworkState::free_orphans`].
    fn undo_unfinished(&self) -> Result<(), StateError> {
        let records = self.dir.join("attachments");
        for name in file::list(&records)? {
            let (path, has) =
                (records.join(&name), |prefix: &str| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
            if has(UNFINISHED) {
                let record = fs::symlink_metadata(&path).map_err(io("look at", &path))?;
                // The claims first: without the record they could not be distinguished from others.
                for address in self.claimed()? {
                    if self.is_linked(address, &record)? {
                        self.drop_claim(&self.claim_path(address))?;
                    }
                }
            }
            if has(UNFINISHED) || has(UNADOPTED) {
                file::remove_any(&path)?;
            }
        }
        Ok(())
    }

    /// Makes the directories consistent again: no half-written record, no claim without a record but those that are to stay,
    /// no stale index. Returns how many claims without a record were removed.
    pub(super) fn repair(&self, how: &Freeing<'_>) -> Result<usize, StateError> {
        self.undo_unfinished()?;
        let orphans = self.orphans()?;
        let mut surplus = Vec::new();
        if !orphans.is_empty() {
            let listed = self.list()?;
            for name in orphans {
                match name.to_str().and_then(|name| name.parse().ok()) {
                    Some(address) if self.keep_claim(address, &listed)? || (how.is_alive)(address) => {}
                    Some(_) | None => surplus.push(name),
                }
            }
        }
        let addresses: Vec<IpAddr> = surplus.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
        if !addresses.is_empty() {
            (how.forget)(&addresses)?;
        }
        let claims = self.dir.join("addresses");
        surplus.iter().try_for_each(|name| self.drop_claim(&claims.join(name)))?;
        index::remove_all(&self.dir)?;
        Ok(surplus.len())
    }

    /// Whether an attachment has the address of a claim that is no link to a record. If so, the claim becomes one.
    fn keep_claim(&self, address: IpAddr, listed: &[ListedRecord]) -> Result<bool, StateError> {
        let has = |l: &&ListedRecord| {
            l.attachment.as_ref().is_some_and(|a| !a.delegated && a.ips().any(|ip| ip == address))
        };
        let unreadable = || listed.iter().filter(|l| l.attachment.is_none());
        let claimant = self.claimant(address);
        let owner =
            listed.iter().find(has).or_else(|| unreadable().find(|l| Some(&l.stem) == claimant.as_ref()));
        match owner {
            Some(owner) => self.link_claim(&owner.stem, address),
            // It may be of a record that cannot be read: then it stays until that record is gone.
            None => Ok(claimant.is_none() && unreadable().next().is_some()),
        }
    }

    /// The claims that are no link to a record, by name.
    ///
    /// Records are renamed without this lock, and a directory that is listed meanwhile may show neither name. So the record
    /// of a claim is not searched: its file has one more link than there are claims if, and only if, it has one.
    pub(super) fn orphans(&self) -> Result<HashSet<OsString>, StateError> {
        let claims = self.dir.join("addresses");
        let mut files: HashMap<(u64, u64), (u64, Vec<OsString>)> = HashMap::new();
        let mut orphans = HashSet::new();
        for name in file::list(&claims)? {
            let path = claims.join(&name);
            match optional(fs::symlink_metadata(&path)).map_err(io("look at", &path))? {
                Some(meta) if meta.is_file() => {
                    let file = files.entry((meta.dev(), meta.ino())).or_insert((meta.nlink(), Vec::new()));
                    file.1.push(name);
                }
                Some(_) => drop(orphans.insert(name)),
                None => {}
            }
        }
        let surplus = files.into_values().filter(|(links, claims)| *links <= claims.len() as u64);
        orphans.extend(surplus.flat_map(|(_, claims)| claims));
        Ok(orphans)
    }

    /// Removes a claim without a record. The kernel may still remember its owner.
    fn drop_claim(&self, claim: &Path) -> Result<(), StateError> {
        if let Some(address) = claim.file_name().and_then(|name| name.to_str()?.parse().ok()) {
            Bitmaps::list(&self.dir)?.lay_to_rest(address)?;
        }
        file::remove_any(claim)
    }
}
