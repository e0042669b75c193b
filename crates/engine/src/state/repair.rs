//! Repairs a network's state: lost records, claims without a record, and unfinished work of killed processes.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use types::AttachmentKey;

use super::file::{self, StateError, io, optional, remove_if_exists};
use super::held::HeldAttachment;
use super::index::{self, Bitmaps};
use super::network::{ListedRecord, NetworkState, RecordPhase, SEARCH_ORDER, UNFINISHED};
use super::record::{Attachment, RecordContent};

/// Name prefix of a recovered record while it is written. If that is not finished, its claims stay, because the pod is alive.
const RECOVERING: &str = ".lost-";

/// Callbacks for freeing claims without a record.
pub struct OrphanCheck<'a> {
    /// Whether a link has the address. Then the pod is alive although its record was lost, and the claim stays.
    pub is_alive: &'a dyn Fn(IpAddr) -> bool,
    /// Removes kernel objects of these addresses, before other pods can get the addresses.
    pub remove_objects: &'a dyn Fn(&[IpAddr]) -> Result<(), StateError>,
}

impl OrphanCheck<'_> {
    /// Frees nothing: without inspecting links, every address may belong to a live pod. Copied claims are still replaced by
    /// links to their record.
    pub(super) const FREE_NOTHING: OrphanCheck<'static> =
        OrphanCheck { is_alive: &|_| true, remove_objects: &|_| Ok(()) };
}

/// An attachment without a record, recovered from a link's alias.
#[derive(Debug)]
pub struct RecoveredLink {
    pub stem: String,
    pub addresses: Vec<IpAddr>,
    /// None if the alias is incomplete. Then an unreadable record is written, which still holds the addresses.
    pub attachment: Option<Attachment>,
}

impl NetworkState {
    /// Writes a lost record and its claims again. Returns false if another record has the key or one of the addresses.
    pub fn restore_record(&self, recovered_link: &RecoveredLink) -> Result<bool, StateError> {
        let section = self.enter()?;
        let mut taken = self.open_record(&recovered_link.stem)?.is_some();
        for address in &recovered_link.addresses {
            taken = taken || self.is_owned(*address)?;
        }
        if !taken {
            for address in &recovered_link.addresses {
                file::remove_any(&self.claim_path(*address))?;
            }
            self.write_recovered(recovered_link)?;
            index::remove_all(&self.dir)?;
        }
        section.leave()?;
        Ok(!taken)
    }

    /// Whether a record has claimed the address. A removed record leaves its claims, so the hard links of the claim's file are
    /// counted, as [`NetworkState::orphans`] does for all claims.
    pub fn is_owned(&self, address: IpAddr) -> Result<bool, StateError> {
        let path = self.claim_path(address);
        let claim = optional(fs::symlink_metadata(&path)).map_err(io("inspect", &path))?;
        let Some(claim) = claim.filter(Metadata::is_file) else { return Ok(false) };
        let Ok(RecordContent::Attachment(record)) = files::read(&path).map(|bytes| RecordContent::of(&bytes))
        else {
            // The file is unreadable, so its addresses and thus its other claims are unknown.
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

    /// Creates the claims before the record gets its name. If the process is killed in between, claims without a record remain.
    /// They stay as long as the pod's link has the addresses. A record without claims could lose its addresses to other pods.
    pub(super) fn write_recovered(&self, recovered_link: &RecoveredLink) -> Result<(), StateError> {
        let (temp, path) =
            (self.temp_path(RECOVERING), self.record_path(&recovered_link.stem, RecordPhase::Ready));
        let text =
            serde_json::to_vec(&recovered_link.attachment).map_err(|e| io("encode", &path)(e.into()))?;
        files::write_new(&temp, &text).map_err(io("write the record", &temp))?;
        for address in &recovered_link.addresses {
            self.claim(&temp, *address)?;
        }
        fs::rename(&temp, &path).map_err(io("rename the record to", &path))
    }

    /// An existing claim is no error: if two live pods have the same address, one claim is enough.
    fn claim(&self, record: &Path, address: IpAddr) -> Result<(), StateError> {
        let claim = self.claim_path(address);
        match fs::hard_link(record, &claim) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
            other => other.map_err(io("claim", &claim)),
        }
    }

    /// Restores claims of a ready record that were removed or replaced by copies. Returns the restored addresses.
    pub fn restore_claims(
        &self,
        held: &HeldAttachment,
        addresses: &[IpAddr],
    ) -> Result<Vec<IpAddr>, StateError> {
        let record = held.metadata()?;
        let is_lost = |address: &IpAddr| self.is_linked(*address, &record).map(|linked| !linked);
        let mut restored = Vec::new();
        for address in addresses {
            if !is_lost(address)? {
                continue;
            }
            let section = self.enter()?;
            let claimed = match self.is_owned(*address) {
                // If two records name the same address, the one with the claim keeps it.
                Ok(true) => Ok(false),
                Ok(false) => self.link_claim(held.stem(), *address),
                Err(error) => Err(error),
            };
            let indexed = claimed.and_then(|claimed| index::remove_all(&self.dir).map(|()| claimed));
            section.leave()?;
            restored.extend(indexed?.then_some(*address));
        }
        Ok(restored)
    }

    /// Replaces the claim by a link to the record. Returns false if there is no such record. The claim exists at all times,
    /// unless a directory has its name. Called with the network's lock held.
    fn link_claim(&self, stem: &str, address: IpAddr) -> Result<bool, StateError> {
        let (temp, claim) = (self.dir.join("addresses").join(".new"), self.claim_path(address));
        remove_if_exists(&temp)?;
        for phase in SEARCH_ORDER {
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

    /// The stem of the record that the claim is a link to, or a copy of.
    pub(super) fn claimant(&self, address: IpAddr) -> Option<String> {
        let bytes = files::read(&self.claim_path(address)).ok()?;
        serde_json::from_slice::<AttachmentKey>(&bytes).ok().map(|key| key.file_stem())
    }

    /// Frees claims without a record that no killed process left: the record was removed by the operator, or the claim is a
    /// copy. Returns the number of freed claims.
    pub fn free_orphans(&self, check: &OrphanCheck<'_>) -> Result<usize, StateError> {
        let section = self.enter()?;
        // A concurrent release may have removed the claims since they were listed. Then the indexes are right.
        let freed = match self.orphans() {
            Ok(orphans) if orphans.is_empty() => Ok(0),
            Ok(_) => self.repair(check),
            Err(error) => Err(error),
        };
        section.leave()?;
        freed
    }

    /// Whether there are claims without a record. Takes no lock, so another process may be about to remove them.
    pub fn has_orphans(&self) -> Result<bool, StateError> {
        Ok(!self.orphans()?.is_empty())
    }

    /// Removes unfinished records of killed processes and the claims that link to them. Other claims without a record may belong
    /// to live pods. They stay for [`NetworkState::free_orphans`].
    fn undo_unfinished(&self) -> Result<(), StateError> {
        let records = self.dir.join("attachments");
        for name in file::list(&records)? {
            let (path, has) =
                (records.join(&name), |prefix: &str| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
            if has(UNFINISHED) {
                let record = fs::symlink_metadata(&path).map_err(io("inspect", &path))?;
                // Claims are removed first: without the record they would look like claims of live pods.
                for address in self.claimed()? {
                    if self.is_linked(address, &record)? {
                        self.drop_claim(&self.claim_path(address))?;
                    }
                }
            }
            if has(UNFINISHED) || has(RECOVERING) {
                file::remove_any(&path)?;
            }
        }
        Ok(())
    }

    /// Removes unfinished records, claims without a record unless `check` keeps them, and stale indexes. Returns the number of
    /// removed claims without a record.
    pub(super) fn repair(&self, check: &OrphanCheck<'_>) -> Result<usize, StateError> {
        self.undo_unfinished()?;
        let orphans = self.orphans()?;
        let mut surplus = Vec::new();
        if !orphans.is_empty() {
            let listed = self.list()?;
            for name in orphans {
                match name.to_str().and_then(|name| name.parse().ok()) {
                    Some(address) if self.keep_claim(address, &listed)? || (check.is_alive)(address) => {}
                    Some(_) | None => surplus.push(name),
                }
            }
        }
        let addresses: Vec<IpAddr> = surplus.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
        if !addresses.is_empty() {
            (check.remove_objects)(&addresses)?;
        }
        let claims = self.dir.join("addresses");
        surplus.iter().try_for_each(|name| self.drop_claim(&claims.join(name)))?;
        index::remove_all(&self.dir)?;
        Ok(surplus.len())
    }

    /// Whether an attachment has the address of an orphaned claim. If so, the claim is replaced by a link to its record.
    fn keep_claim(&self, address: IpAddr, listed: &[ListedRecord]) -> Result<bool, StateError> {
        let has_address = |l: &&ListedRecord| {
            l.attachment.as_ref().is_some_and(|a| !a.delegated && a.ips().any(|ip| ip == address))
        };
        let unreadable = || listed.iter().filter(|l| l.attachment.is_none());
        let claimant = self.claimant(address);
        let owner = listed
            .iter()
            .find(has_address)
            .or_else(|| unreadable().find(|l| Some(&l.stem) == claimant.as_ref()));
        match owner {
            Some(owner) => self.link_claim(&owner.stem, address),
            // It may belong to an unreadable record, so it stays as long as one exists.
            None => Ok(claimant.is_none() && unreadable().next().is_some()),
        }
    }

    /// The names of claims that are no link to a record.
    ///
    /// Records are renamed without this lock, and a concurrent directory listing may show neither name. So the record is not
    /// searched by name. The file of a claim has more hard links than claims if, and only if, it has a record.
    pub(super) fn orphans(&self) -> Result<HashSet<OsString>, StateError> {
        let claims = self.dir.join("addresses");
        let mut files: HashMap<(u64, u64), (u64, Vec<OsString>)> = HashMap::new();
        let mut orphans = HashSet::new();
        for name in file::list(&claims)? {
            let path = claims.join(&name);
            match optional(fs::symlink_metadata(&path)).map_err(io("inspect", &path))? {
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

    /// Removes a claim without a record. The address is quarantined because the kernel may have conntrack entries of its owner.
    fn drop_claim(&self, claim: &Path) -> Result<(), StateError> {
        if let Some(address) = claim.file_name().and_then(|name| name.to_str()?.parse().ok()) {
            Bitmaps::list(&self.dir)?.quarantine(address)?;
        }
        file::remove_any(claim)
    }
}
