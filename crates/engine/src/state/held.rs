//! An attachment in the hands of this process, and what its record says.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use types::{AttachmentKey, NetworkName};

use super::file::{self, StateError, io, optional, remove_if_there};
use super::index::Bitmaps;
use super::network::{NetworkState, RecordPhase};
use super::record::{Attachment, RecordContent};

/// An attachment that this process works on: its record is locked until this is dropped.
#[derive(Debug)]
pub struct HeldAttachment {
    pub(super) network: NetworkState,
    pub(super) stem: String,
    pub(super) file: File,
    pub(super) phase: RecordPhase,
    /// None: the record cannot be read; the file's name is all we know.
    pub(super) attachment: Option<Attachment>,
    /// The schema of a record that a newer version of Podwire wrote.
    pub(super) newer: Option<u32>,
}

impl HeldAttachment {
    pub fn attachment(&self) -> Option<&Attachment> {
        self.attachment.as_ref()
    }

    /// The schema of a record that a newer version of Podwire wrote, and that cannot be read therefore.
    pub fn newer(&self) -> Option<u32> {
        self.newer
    }

    pub fn phase(&self) -> RecordPhase {
        self.phase
    }

    pub fn network(&self) -> &NetworkState {
        &self.network
    }

    pub fn stem(&self) -> &str {
        &self.stem
    }

    /// The key as the record has it, or as the file's name has it. None: a part of the key was too long for a name.
    pub fn key(&self) -> Option<AttachmentKey> {
        let of_name = || {
            let (container, ifname) = self.stem.split_once('@')?;
            let network = NetworkName::try_from(self.network.name()).ok()?;
            Some(AttachmentKey {
                network,
                container: container.try_into().ok()?,
                ifname: ifname.try_into().ok()?,
            })
        };
        self.attachment.as_ref().map(|a| a.key.clone()).or_else(of_name)
    }

    /// The attachment is complete: from now on it counts.
    pub fn commit(&mut self) -> Result<(), StateError> {
        self.rename(RecordPhase::Ready)
    }

    /// The attachment is being taken apart: if we are killed, the next process goes on with that.
    pub fn reopen(&mut self) -> Result<(), StateError> {
        if self.phase == RecordPhase::Ready { self.rename(RecordPhase::Pending) } else { Ok(()) }
    }

    /// Rewrites the record in place: its claims and its lock are those of this very file. A record of a newer schema is
    /// refused. A shorter record is padded with spaces, so that it can be read if this process is killed before the file is
    /// shortened.
    pub fn rewrite(&mut self, attachment: Attachment) -> Result<(), StateError> {
        let path = self.network.record_path(&self.stem, self.phase);
        if let Some(schema) = self.newer {
            return Err(StateError::Newer { path, schema });
        }
        let mut text = serde_json::to_vec(&attachment).map_err(|e| io("encode", &path)(e.into()))?;
        let file = files::open(&path, File::options().write(true)).map_err(io("open", &path))?;
        let (length, before) = (text.len(), self.metadata()?.len());
        text.resize(length.max(usize::try_from(before).unwrap_or(length)), b' ');
        file.write_all_at(&text, 0).map_err(io("write the record", &path))?;
        file.set_len(length as u64).map_err(io("shorten", &path))?;
        self.attachment = Some(attachment);
        Ok(())
    }

    fn rename(&mut self, to: RecordPhase) -> Result<(), StateError> {
        let from = self.network.record_path(&self.stem, self.phase);
        let path = self.network.record_path(&self.stem, to);
        fs::rename(&from, &path).map_err(io("rename the record to", &path))?;
        self.phase = to;
        Ok(())
    }

    /// The addresses that are claimed for this record, also if it cannot be read, and also by copies of its claims.
    pub fn claimed(&self) -> Result<Vec<IpAddr>, StateError> {
        let (orphans, record) = (self.network.orphans()?, self.metadata()?);
        let mut claimed = Vec::new();
        for name in file::list(&self.network.dir.join("addresses"))? {
            let Some(address) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let is_copy =
                || orphans.contains(&name) && self.network.claimant(address).as_ref() == Some(&self.stem);
            if self.network.is_linked(address, &record)? || is_copy() {
                claimed.push(address);
            }
        }
        Ok(claimed)
    }

    /// Gives the addresses back and forgets the attachment. Only claims that are this record's own are removed. All but
    /// the addresses that are `clean` rest: see [`super::AllocationRequest::clean`].
    pub fn release(self, clean: &[IpAddr]) -> Result<(), StateError> {
        let network = &self.network;
        let section = network.enter()?;
        // The record's name first. Were we killed between claims and name, it would name addresses that others may have by
        // then, and whoever undoes it would take theirs apart. The file stays until the claims are removed: by it the next
        // repair knows which claims are of a pod that is gone.
        let (record, unfinished) = (network.record_path(&self.stem, self.phase), network.unfinished_path());
        let renamed = optional(fs::rename(&record, &unfinished)).map_err(io("rename the record", &record))?;
        let bitmaps = Bitmaps::list(&network.dir)?;
        for address in self.attachment.iter().flat_map(Attachment::ips) {
            self.give_back(address, clean, &bitmaps)?;
        }
        // The record was damaged, or is not ours to read: what is left are claims that it does not name.
        if self.metadata()?.nlink() > u64::from(renamed.is_some()) || self.attachment.is_none() {
            self.claimed()?.into_iter().try_for_each(|address| self.give_back(address, clean, &bitmaps))?;
        }
        remove_if_there(&unfinished)?;
        section.leave()
    }

    /// Gives an address back if it is this record's own.
    fn give_back(&self, address: IpAddr, clean: &[IpAddr], bitmaps: &Bitmaps) -> Result<(), StateError> {
        if self.network.is_claimed_by(address, self)? {
            if !clean.contains(&address) {
                bitmaps.lay_to_rest(address)?;
            }
            remove_if_there(&self.network.claim_path(address))?;
            bitmaps.forget(address)?;
        }
        Ok(())
    }

    pub(super) fn metadata(&self) -> Result<fs::Metadata, StateError> {
        self.file.metadata().map_err(|e| io("look at", &self.network.record_path(&self.stem, self.phase))(e))
    }
}

/// Who holds a claim, in words: the key in the record that the claim is a link to.
pub(super) fn holder(path: &Path) -> String {
    match files::read(path) {
        Ok(bytes) => match RecordContent::of(&bytes) {
            RecordContent::Attachment(attachment) => {
                format!("container {} ({})", attachment.key.container, attachment.key.ifname)
            }
            RecordContent::Newer(_) | RecordContent::Damaged => {
                "an attachment whose record cannot be read".to_owned()
            }
        },
        Err(e) if e.kind() == ErrorKind::NotFound => "nobody any more".to_owned(),
        Err(_) => "another attachment".to_owned(),
    }
}
