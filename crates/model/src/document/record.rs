use super::{ClusterObject, ObjectId};
use crate::DecodeError;
use crate::fields::{Fields, UnknownFields, UnknownPolicy};
use crate::object::{open, seal};

/// An object with the fields that a newer version of Podwire has added to it.
///
/// To change an object, read it, change `object` and write it again: `unknown` then keeps the added fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRecord {
    pub object: ClusterObject,
    pub unknown: UnknownFields,
}

impl From<ClusterObject> for ObjectRecord {
    fn from(object: ClusterObject) -> Self {
        Self { object, unknown: UnknownFields::default() }
    }
}

impl ObjectRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut body = self.object.body();
        self.unknown.restore(&mut body);
        let kind = self.object.id().kind();
        seal(kind.as_str(), kind.schema(), &body)
    }

    /// Decodes the value of the key of `id`.
    pub fn decode(id: &ObjectId, bytes: &[u8]) -> Result<Self, DecodeError> {
        let kind = id.kind();
        let body = open(kind.as_str(), 1..=kind.schema(), bytes)?;
        let mut policy = UnknownPolicy::Keep(UnknownFields::default());
        let read = Fields::new("", body).and_then(|mut body| {
            let object = ClusterObject::read_body(kind, &mut body, &mut policy)?;
            body.finish(&mut policy)?;
            Ok(object)
        });
        let object = read.map_err(|source| DecodeError::Field { kind: kind.as_str(), source })?;
        let found = object.id();
        if found != *id {
            let reason = format!("it is {found}, but the key is that of {id}");
            return Err(DecodeError::Unreadable { kind: kind.as_str(), reason });
        }
        let unknown = match policy {
            UnknownPolicy::Keep(unknown) => unknown,
            UnknownPolicy::Refuse => UnknownFields::default(),
        };
        Ok(Self { object, unknown })
    }
}
