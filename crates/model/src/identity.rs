//! Identities and pods in the store.

use std::fmt;

use serde::{Deserialize, Serialize};
use types::Digest;

use crate::object::{DecodeError, Object};
use crate::objects::Identity;

/// 160 bits.
const HASH_LENGTH: usize = 32;

/// The digest of an identity's value in the store. Pods with equal properties share one value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IdentityHash(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not the hash of an identity, which has {HASH_LENGTH} characters from a to z and 2 to 7")]
pub struct IdentityHashError;

impl IdentityHash {
    pub fn of(value: &[u8]) -> Self {
        Self(Digest::of_bytes(value).base32(HASH_LENGTH))
    }
}

impl TryFrom<String> for IdentityHash {
    type Error = IdentityHashError;

    fn try_from(text: String) -> Result<Self, IdentityHashError> {
        let is_base32 = |b: u8| matches!(b, b'a'..=b'z' | b'2'..=b'7');
        if text.len() == HASH_LENGTH && text.bytes().all(is_base32) {
            Ok(Self(text))
        } else {
            Err(IdentityHashError)
        }
    }
}

impl From<IdentityHash> for String {
    fn from(hash: IdentityHash) -> Self {
        hash.0
    }
}

impl fmt::Display for IdentityHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Object for Identity {
    const KIND: &'static str = "identity";
    const SCHEMA: u32 = 1;
    const OLDEST_SCHEMA: u32 = 1;
}

impl Identity {
    /// The value for the store, and its key. A value is never changed.
    pub fn stored(&self) -> (IdentityHash, Vec<u8>) {
        let value = self.encode();
        (IdentityHash::of(&value), value)
    }

    /// Decodes the value of the key of `hash`. A value that does not belong to its key is refused.
    pub fn of_stored(hash: &IdentityHash, value: &[u8]) -> Result<Self, DecodeError> {
        let found = IdentityHash::of(value);
        if found == *hash {
            return Self::decode(value);
        }
        let reason = format!("its hash is {found}, but its key is {hash}");
        Err(DecodeError::Unreadable { kind: Self::KIND, reason })
    }
}

/// A running pod. The key contains its node and one of its addresses. Only its node writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRecord {
    pub identity: IdentityHash,
    pub uid: String,
    /// Its namespace is in the identity.
    pub name: String,
}

impl Object for PodRecord {
    const KIND: &'static str = "pod";
    const SCHEMA: u32 = 1;
    const OLDEST_SCHEMA: u32 = 1;
}

#[cfg(test)]
mod tests {
    use types::{Placement, Protocol};

    use super::*;
    use crate::objects::NamedPort;

    fn identity() -> Identity {
        Identity {
            placement: Placement::parse(Some("blue"), Some("front"), Some("web")).unwrap(),
            namespace: Some("shop".to_owned()),
            labels: [("app".to_owned(), "web".to_owned())].into(),
            ports: vec![NamedPort { name: "http".to_owned(), protocol: Protocol::Tcp, port: 80 }],
        }
    }

    #[test]
    fn d_an_identity_is_content_addressed() {
        let (hash, value) = identity().stored();
        assert_eq!(Identity::of_stored(&hash, &value), Ok(identity()));
        let (other, _) = Identity { namespace: None, ..identity() }.stored();
        assert_ne!(hash, other);
        let error = Identity::of_stored(&other, &value).unwrap_err().to_string();
        assert!(error.contains(&format!("its hash is {hash}, but its key is {other}")), "{error}");
        let bare = Identity {
            placement: Placement::default(),
            namespace: None,
            labels: [].into(),
            ports: Vec::new(),
        };
        let (hash, value) = bare.stored();
        assert_eq!(Identity::of_stored(&hash, &value), Ok(bare));
        let text = String::from_utf8(value).unwrap();
        assert!(!text.contains("labels") && !text.contains("null"), "empty fields are not written: {text}");
    }

    #[test]
    fn d_a_pod_refers_to_its_identity() {
        let (identity, _) = identity().stored();
        let record = PodRecord { identity, uid: "a-b".to_owned(), name: "web-1".to_owned() };
        assert_eq!(PodRecord::decode(&record.encode()), Ok(record));
        let bad = br#"{"schema":1,"pod":{"identity":"../x","uid":"","name":""}}"#;
        assert!(PodRecord::decode(bad).unwrap_err().to_string().contains("not the hash of an identity"));
    }
}
