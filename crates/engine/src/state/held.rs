//! An attachment that this process has locked, and its record.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use types::{AttachmentKey, NetworkName};

use super::file::{self, StateError, io, optional, remove_if_exists};
use super::index::Bitmaps;
use super::network::{NetworkState, RecordPhase};
use super::record::{Attachment, RecordContent};

/// An attachment that this process works on. Its record is locked until this value is dropped.
#[derive(Debug)]
pub struct HeldAttachment {
    pub(super) network: NetworkState,
    pub(super) stem: String,
    pub(super) file: File,
    pub(super) phase: RecordPhase,
    /// None if the record cannot be read. Then only the file name is known.
    pub(super) attachment: Option<Attachment>,
    /// The schema of a record that a newer version of Podwire wrote.
    pub(super) newer: Option<u32>,
}

impl HeldAttachment {
    pub fn attachment(&self) -> Option<&Attachment> {
        self.attachment.as_ref()
    }

    /// The schema of a record that cannot be read because a newer version of Podwire wrote it.
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

    /// The key from the record or from its file name. None if the file name contains a digest.
    pub fn key(&self) -> Option<AttachmentKey> {
        let from_stem = || {
            let (container, ifname) = self.stem.split_once('@')?;
            let network = NetworkName::try_from(self.network.name()).ok()?;
            Some(AttachmentKey {
                network,
                container: container.try_into().ok()?,
                ifname: ifname.try_into().ok()?,
            })
        };
        self.attachment.as_ref().map(|a| a.key.clone()).or_else(from_stem)
    }

    /// Makes the record ready: the attachment is complete.
    pub fn commit(&mut self) -> Result<(), StateError> {
        self.rename(RecordPhase::Ready)
    }

    /// Makes the record pending before the attachment is removed. If this process is killed, the next one continues.
    pub fn reopen(&mut self) -> Result<(), StateError> {
        if self.phase == RecordPhase::Ready { self.rename(RecordPhase::Pending) } else { Ok(()) }
    }

    /// Rewrites the record in place, because its claims and its lock are bound to this file. A record with a newer schema is
    /// refused. A shorter record is padded with spaces, so that it stays readable if this process is killed before the file is
    /// truncated.
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
        file.set_len(length as u64).map_err(io("truncate", &path))?;
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

    /// The claimed addresses of this record, also if it cannot be read. Copied claims count.
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

    /// Releases the addresses and removes the record. Only claims of this record are removed. All addresses except those in
    /// `without_conntrack` are quarantined: see [`super::AllocationRequest::remove_conntrack`].
    pub fn release(self, without_conntrack: &[IpAddr]) -> Result<(), StateError> {
        let network = &self.network;
        let section = network.enter()?;
        // The record loses its name first. Otherwise a killed process could leave a record with addresses that already belong
        // to other pods, and undoing it would remove their rules. The file stays until the claims are removed: it shows the
        // next repair which claims belong to a removed pod.
        let (record, unfinished) = (network.record_path(&self.stem, self.phase), network.unfinished_path());
        let renamed = optional(fs::rename(&record, &unfinished)).map_err(io("rename the record", &record))?;
        let bitmaps = Bitmaps::list(&network.dir)?;
        for address in self.attachment.iter().flat_map(Attachment::ips) {
            self.release_address(address, without_conntrack, &bitmaps)?;
        }
        // Claims that the record does not name, because it is corrupt or of a newer schema.
        if self.metadata()?.nlink() > u64::from(renamed.is_some()) || self.attachment.is_none() {
            self.claimed()?
                .into_iter()
                .try_for_each(|address| self.release_address(address, without_conntrack, &bitmaps))?;
        }
        remove_if_exists(&unfinished)?;
        section.leave()
    }

    /// Releases an address if this record has claimed it.
    fn release_address(
        &self,
        address: IpAddr,
        without_conntrack: &[IpAddr],
        bitmaps: &Bitmaps,
    ) -> Result<(), StateError> {
        if self.network.is_claimed_by(address, self)? {
            if !without_conntrack.contains(&address) {
                bitmaps.quarantine(address)?;
            }
            remove_if_exists(&self.network.claim_path(address))?;
            bitmaps.free(address)?;
        }
        Ok(())
    }

    pub(super) fn metadata(&self) -> Result<fs::Metadata, StateError> {
        self.file.metadata().map_err(|e| io("inspect", &self.network.record_path(&self.stem, self.phase))(e))
    }
}

/// Describes the owner of a claim, for messages.
pub(super) fn holder(path: &Path) -> String {
    match files::read(path) {
        Ok(bytes) => match RecordContent::of(&bytes) {
            RecordContent::Attachment(attachment) => {
                format!("container {} ({})", attachment.key.container, attachment.key.ifname)
            }
            RecordContent::Newer(_) | RecordContent::Corrupt => {
                "an attachment whose record cannot be read".to_owned()
            }
        },
        Err(e) if e.kind() == ErrorKind::NotFound => "an attachment that was just removed".to_owned(),
        Err(_) => "another attachment".to_owned(),
    }
}
