//! The objects of the store as text, for a start without the store: a document per line.
//!
//! An object whose value cannot be read also has a line with its name. Its last valid version, if there is one, has a document. What the
//! configuration sets is not saved.

use model::{Catalog, ClusterObject, ObjectId, ObjectKind, ObjectRecord};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A value without a schema version cannot be read.
const UNREADABLE: &[u8] = b"{}";

/// An object whose value in the store cannot be read.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InvalidObject {
    /// The kind, as in documents.
    invalid: String,
    tenant: String,
    name: String,
}

pub(super) fn encode(objects: &Catalog) -> String {
    let documents = objects.stored().map(|(_, record)| record.object.to_document().to_string());
    let invalid = objects.invalid().map(|(id, _)| {
        let (invalid, tenant) = (id.kind().title().to_owned(), id.tenant_name().to_string());
        let object = InvalidObject { invalid, tenant, name: id.name().to_owned() };
        serde_json::json!(object).to_string()
    });
    documents.chain(invalid).map(|line| line + "\n").collect()
}

/// The error is the number of a line that cannot be read.
pub(super) fn decode(defaults: Catalog, bytes: &[u8]) -> Result<Catalog, usize> {
    let mut catalog = defaults;
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if !line.is_empty() {
            observe(&mut catalog, line).ok_or(index + 1)?;
        }
    }
    Ok(catalog)
}

/// None if the line cannot be read.
fn observe(catalog: &mut Catalog, line: &[u8]) -> Option<()> {
    let value: Value = serde_json::from_slice(line).ok()?;
    if value.get("invalid").is_none() {
        let object = ClusterObject::from_document(value).ok()?;
        return catalog.observe(&object.id(), &ObjectRecord::from(object.clone()).encode()).ok();
    }
    let InvalidObject { invalid, tenant, name } = serde_json::from_value(value).ok()?;
    let kind = ObjectKind::ALL.into_iter().find(|kind| kind.title() == invalid)?;
    let id = ObjectId::parse(kind, &tenant, &name).ok()?;
    // It counts as invalid again, and a last valid version stays.
    catalog.observe(&id, UNREADABLE).err().map(drop)
}

#[cfg(test)]
mod tests {
    use model::objects::TenantNetwork;
    use serde_json::json;
    use types::TenantName;

    use super::*;

    fn defaults() -> Catalog {
        Catalog::new(TenantNetwork::default_net(Vec::new(), 0))
    }

    #[test]
    fn d_objects_that_are_invalid_in_the_store_are_saved_as_invalid() {
        let mut objects = defaults();
        let document = json!({ "apiVersion": model::API_VERSION, "kind": "Policy", "metadata": { "name": "known" },
            "spec": { "rules": [] } });
        let policy = ClusterObject::from_document(document).unwrap();
        objects.observe(&policy.id(), &ObjectRecord::from(policy.clone()).encode()).unwrap();
        let unknown = ObjectId::policy(&TenantName::default(), "never-valid");
        for id in [&policy.id(), &unknown] {
            objects.observe(id, br#"{"schema":99}"#).unwrap_err();
        }
        let read = decode(defaults(), encode(&objects).as_bytes()).unwrap();
        assert_eq!(read.invalid().map(|(id, _)| id).collect::<Vec<_>>(), [&policy.id(), &unknown]);
        assert!(read.records().eq(objects.records()));
        assert!(read.get(&policy.id()).is_some() && read.get(&unknown).is_none());
    }

    #[test]
    fn d_a_line_that_cannot_be_read_makes_all_objects_unknown() {
        let text = r#"{"invalid":"Policy","tenant":"default","name":"p"}"#;
        for line in ["x", "null", "{}", r#"{"invalid":"Color","tenant":"default","name":"red"}"#] {
            assert_eq!(decode(defaults(), format!("{text}\n{line}\n{text}\n").as_bytes()), Err(2), "{line}");
        }
    }
}
