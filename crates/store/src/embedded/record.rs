//! Lines of the log: `CHECKSUM JSON`. A checksum covers its line and, through the one before, the whole file up to it: a
//! line that was changed, lost or moved is noticed.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::lease::EmbeddedLease;
use crate::types::{Entry, LeaseId};

pub(super) const FORMAT: u32 = 1;
const SUM: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EmbeddedRecord {
    /// The first line. What happened up to `compacted` cannot be told any more.
    Head { format: u32, revision: u64, compacted: u64 },
    /// Of the snapshot. Older versions did not write when it was created: then the revision counts.
    Entry {
        key: String,
        value: RecordedValue,
        revision: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        created: Option<u64>,
        version: u64,
        lease: Option<LeaseId>,
    },
    /// Of the snapshot.
    Lease { id: LeaseId, lease: EmbeddedLease },
    /// All steps or none. Leases alone do not count the revision up.
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
    /// Begun, or kept alive.
    Lease {
        id: LeaseId,
        lease: EmbeddedLease,
    },
    /// Its keys are deleted by steps of their own.
    End {
        id: LeaseId,
    },
}

/// Text as it is, so that people can read the file; anything else in hexadecimal digits.
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
                bytes
                    .collect::<Option<Vec<u8>>>()
                    .ok_or_else(|| "a value is not in hexadecimal digits".to_owned())
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

/// The checksum of the last line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct LineChecksum(String);

impl LineChecksum {
    fn next(&self, json: &[u8]) -> Self {
        let digest = Sha256::new().chain_update(self.0.as_bytes()).chain_update(json).finalize();
        Self(hex(&digest[..SUM / 2]))
    }

    /// A line with its end, and the chain after it.
    pub(super) fn write(&self, record: &EmbeddedRecord) -> Result<(Vec<u8>, Self), serde_json::Error> {
        let json = serde_json::to_vec(record)?;
        let next = self.next(&json);
        Ok(([next.0.as_bytes(), b" ", &json, b"\n"].concat(), next))
    }

    /// A line without its end, and the chain after it.
    pub(super) fn read(&self, line: &[u8]) -> Result<(EmbeddedRecord, Self), String> {
        let (sum, rest) = line.split_at_checked(SUM).ok_or("a line is too short")?;
        let json = rest.strip_prefix(b" ").ok_or("a line has no checksum")?;
        let next = self.next(json);
        if next.0.as_bytes() != sum {
            return Err("a checksum does not fit".to_owned());
        }
        let record =
            serde_json::from_slice(json).map_err(|error| format!("a line is not understood: {error}"))?;
        Ok((record, next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_a_value() {
        for bytes in [&b""[..], b"{\"a\":1}", b"\0\n\xff", &[0xc3]] {
            let json = serde_json::to_string(&RecordedValue::of(bytes)).unwrap();
            assert!(!json.contains('\n'));
            let back: RecordedValue = serde_json::from_str(&json).unwrap();
            assert_eq!(back.into_bytes().unwrap(), bytes);
        }
    }

    #[test]
    fn a_line_fits_after_the_one_before_only() {
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
        let mut other = line.to_vec();
        other[40] ^= 1;
        assert!(after.read(&other).is_err() && after.read(b"").is_err() && after.read(&[b'0'; 16]).is_err());
    }
}
