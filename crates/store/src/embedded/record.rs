//! Lines of the log: `CHECKSUM JSON`. A checksum covers its line and the previous checksum, and so the whole file up to it.
//! A changed, lost or moved line is detected.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::lease::EmbeddedLease;
use crate::types::{Entry, LeaseId};

pub(super) const FORMAT: u32 = 1;
const SUM: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EmbeddedRecord {
    /// The first line. The history up to `compacted` is not available any more.
    Head { format: u32, revision: u64, compacted: u64 },
    /// Part of the snapshot. Older versions did not write `created`: then `revision` is used.
    Entry {
        key: String,
        value: RecordedValue,
        revision: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        created: Option<u64>,
        version: u64,
        lease: Option<LeaseId>,
    },
    /// Part of the snapshot.
    Lease { id: LeaseId, lease: EmbeddedLease },
    /// Applied completely or not at all. Changes of leases alone do not increment the revision.
    Commit { revision: u64, steps: Vec<RecordedChange> },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RecordedChange {
    Put {
        key: String,
        value: RecordedValue,
        lease: Option<LeaseId>,
    },
    Delete {
        key: String,
    },
    /// Granted or renewed.
    Lease {
        id: LeaseId,
        lease: EmbeddedLease,
    },
    /// Expired or revoked. Separate steps delete its keys.
    End {
        id: LeaseId,
    },
}

/// Text, so that the file is readable. Values that are not UTF-8 are hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum RecordedValue {
    Text(String),
    Bytes { hex: String },
}

impl RecordedValue {
    pub(super) fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes { hex: hex(bytes) },
        }
    }

    pub(super) fn into_bytes(self) -> Result<Vec<u8>, String> {
        match self {
            Self::Text(text) => Ok(text.into_bytes()),
            Self::Bytes { hex } => {
                let digits = hex.as_bytes().chunks(2);
                let bytes = digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
                bytes.collect::<Option<Vec<u8>>>().ok_or_else(|| "a value is not hexadecimal".to_owned())
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl From<&Entry> for EmbeddedRecord {
    fn from(entry: &Entry) -> Self {
        Self::Entry {
            key: entry.key.clone(),
            value: RecordedValue::of(&entry.value),
            revision: entry.revision,
            created: Some(entry.created),
            version: entry.version,
            lease: entry.lease,
        }
    }
}

/// The checksum of the previous line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct LineChecksum(String);

impl LineChecksum {
    fn next(&self, json: &[u8]) -> Self {
        let digest = Sha256::new().chain_update(self.0.as_bytes()).chain_update(json).finalize();
        Self(hex(&digest[..SUM / 2]))
    }

    /// Returns a line with its newline, and the next checksum.
    pub(super) fn write(&self, record: &EmbeddedRecord) -> Result<(Vec<u8>, Self), serde_json::Error> {
        let json = serde_json::to_vec(record)?;
        let next = self.next(&json);
        Ok(([next.0.as_bytes(), b" ", &json, b"\n"].concat(), next))
    }

    /// Parses a line without its newline, and returns the next checksum.
    pub(super) fn read(&self, line: &[u8]) -> Result<(EmbeddedRecord, Self), String> {
        let (sum, rest) = line.split_at_checked(SUM).ok_or("a line is too short")?;
        let json = rest.strip_prefix(b" ").ok_or("a line has no checksum")?;
        let next = self.next(json);
        if next.0.as_bytes() != sum {
            return Err("a checksum does not match".to_owned());
        }
        let record =
            serde_json::from_slice(json).map_err(|error| format!("a line cannot be parsed: {error}"))?;
        Ok((record, next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_round_trip_as_a_value() {
        for bytes in [&b""[..], b"{\"a\":1}", b"\0\n\xff", &[0xc3]] {
            let json = serde_json::to_string(&RecordedValue::of(bytes)).unwrap();
            assert!(!json.contains('\n'));
            let back: RecordedValue = serde_json::from_str(&json).unwrap();
            assert_eq!(back.into_bytes().unwrap(), bytes);
        }
    }

    #[test]
    fn a_line_is_valid_only_after_its_predecessor() {
        let record = EmbeddedRecord::Commit {
            revision: 2,
            steps: vec![RecordedChange::Delete { key: "/a".to_owned() }],
        };
        let (one, after) = LineChecksum::default().write(&record).unwrap();
        let (two, _) = after.write(&record).unwrap();
        assert_ne!(one, two);
        let line = &two[..two.len() - 1];
        assert_eq!(after.read(line).unwrap().0, record);
        assert!(LineChecksum::default().read(line).is_err());
        let mut changed = line.to_vec();
        changed[40] ^= 1;
        assert!(
            after.read(&changed).is_err() && after.read(b"").is_err() && after.read(&[b'0'; 16]).is_err()
        );
    }
}
