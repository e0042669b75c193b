//! The document format of objects, in files, in the API and in the store:
//!
//! ```text
//! apiVersion: podwire.io/v1alpha1        not in the store, which has a schema version instead
//! kind: Group
//! metadata: {name: web, tenant: blue}    the tenant is `default` if it is missing; tenants have none
//! spec: {network: front, policies: [from-db]}
//! ```
//!
//! All objects are read by the same code, so all sources have the same rules.

mod group;
mod id;
mod network;
mod policy;
mod profile;
mod record;
mod share;
mod tenant;

#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};
use types::{DEFAULT_TENANT, TenantName, closest};

pub(crate) use group::overlap;
pub use id::{ObjectId, ObjectKind};
pub use record::ObjectRecord;

use crate::fields::{FieldError, Fields, UnknownPolicy, dns_label, quoted};
use crate::objects::{GroupPolicy, Share, Tenant, TenantGroup, TenantNetwork, TrafficProfile};

pub const API_VERSION: &str = "podwire.io/v1alpha1";

/// A document of a file or a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// File and line, for messages. Empty for a request.
    pub origin: String,
    pub body: Value,
}

/// An object of the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterObject {
    Tenant(Tenant),
    Network(TenantNetwork),
    Profile(TrafficProfile),
    Group(TenantGroup),
    Policy(GroupPolicy),
    Share(Share),
}

impl ClusterObject {
    pub fn id(&self) -> ObjectId {
        match self {
            Self::Tenant(tenant) => ObjectId::tenant(&tenant.name),
            Self::Network(network) => ObjectId::network(&network.tenant, &network.id),
            Self::Profile(profile) => ObjectId::profile(&profile.tenant, &profile.name),
            Self::Group(group) => ObjectId::group(&group.group.tenant, &group.group.name),
            Self::Policy(policy) => ObjectId::policy(&policy.tenant, &policy.name),
            Self::Share(share) => ObjectId::share(&share.tenant, &share.name),
        }
    }

    /// Reads a document of a file or of the API. Unknown fields are errors.
    pub fn from_document(document: Value) -> Result<Self, FieldError> {
        let mut document = Fields::new("", document)?;
        match document.take("apiVersion") {
            Some(Value::String(version)) if version == API_VERSION => {}
            Some(other) => return Err(FieldError::refused("apiVersion", quoted(&other), API_VERSION)),
            None => return Err(FieldError::new("apiVersion", format!("is missing: write {API_VERSION}"))),
        }
        let kind = read_kind(&mut document)?;
        let mut policy = UnknownPolicy::Refuse;
        let object = Self::read_body(kind, &mut document, &mut policy)?;
        document.finish(&mut policy)?;
        Ok(object)
    }

    pub fn to_document(&self) -> Value {
        let mut document = self.body();
        document["apiVersion"] = API_VERSION.into();
        document["kind"] = self.id().kind().title().into();
        document
    }

    /// The same object if it obeys the rules for documents. For objects that a program composed or changed.
    pub fn checked(self) -> Result<Self, FieldError> {
        Self::from_document(self.to_document())
    }

    fn body(&self) -> Value {
        let id = self.id();
        let mut metadata = Map::new();
        metadata.insert("name".to_owned(), id.name().into());
        if id.kind() != ObjectKind::Tenant {
            metadata.insert("tenant".to_owned(), id.tenant_name().as_str().into());
        }
        let spec = match self {
            Self::Tenant(object) => tenant::spec(object),
            Self::Network(object) => network::spec(object),
            Self::Profile(object) => profile::spec(object),
            Self::Group(object) => group::spec(object),
            Self::Policy(object) => policy::spec(object),
            Self::Share(object) => share::spec(object),
        };
        json!({ "metadata": metadata, "spec": spec })
    }

    /// Reads `metadata` and `spec`.
    fn read_body(
        kind: ObjectKind,
        body: &mut Fields,
        policy: &mut UnknownPolicy,
    ) -> Result<Self, FieldError> {
        let mut metadata = body.object("metadata")?;
        let id = read_id(kind, &mut metadata)?;
        metadata.finish(policy)?;
        let mut spec = body.object("spec")?;
        let object = match kind {
            ObjectKind::Tenant => Self::Tenant(tenant::read(&id, &mut spec)?),
            ObjectKind::Network => Self::Network(network::read(&id, &mut spec)?),
            ObjectKind::Profile => Self::Profile(profile::read(&id, &mut spec, policy)?),
            ObjectKind::Group => Self::Group(group::read(&id, &mut spec)?),
            ObjectKind::Policy => Self::Policy(policy::read(&id, &mut spec, policy)?),
            ObjectKind::Share => Self::Share(share::read(&id, &mut spec)?),
        };
        spec.finish(policy)?;
        Ok(object)
    }
}

/// What a document describes, for messages about it. None if it has no valid kind and name.
pub fn described(document: &Value) -> Option<ObjectId> {
    let mut fields = Fields::new("", document.clone()).ok()?;
    let kind = read_kind(&mut fields).ok()?;
    read_id(kind, &mut fields.object("metadata").ok()?).ok()
}

fn read_kind(document: &mut Fields) -> Result<ObjectKind, FieldError> {
    let titles = ObjectKind::ALL.map(ObjectKind::title);
    document
        .parsed("kind", |word| {
            let found = ObjectKind::ALL.into_iter().find(|kind| kind.title() == word);
            found.ok_or_else(|| {
                let hint = closest(word, titles).map(|title| format!("; did you mean {title}?"));
                let word = quoted(&word.into());
                format!("{word} is not allowed: {}{}", titles.join(", "), hint.unwrap_or_default())
            })
        })?
        .ok_or_else(|| FieldError::new("kind", format!("is missing: one of {}", titles.join(", "))))
}

fn read_id(kind: ObjectKind, metadata: &mut Fields) -> Result<ObjectId, FieldError> {
    let name = required_name(metadata, "name")?;
    if kind == ObjectKind::Tenant {
        return Ok(ObjectId::unchecked(kind, tenant_name(name.clone()), name));
    }
    let tenant = name_in(metadata, "tenant")?.unwrap_or_else(|| DEFAULT_TENANT.to_owned());
    Ok(ObjectId::unchecked(kind, tenant_name(tenant), name))
}

/// The name of an object, of this or of another one.
fn name_in(fields: &mut Fields, name: &'static str) -> Result<Option<String>, FieldError> {
    let path = fields.path_of(name);
    let Some(found) = fields.string(name)? else { return Ok(None) };
    dns_label(&path, &found)?;
    Ok(Some(found))
}

fn required_name(fields: &mut Fields, name: &'static str) -> Result<String, FieldError> {
    name_in(fields, name)?.ok_or_else(|| fields.missing(name))
}

/// A list of names without duplicates.
fn names_in(fields: &mut Fields, name: &'static str) -> Result<Vec<String>, FieldError> {
    let mut known = Vec::new();
    fields.list(name, |path, value| {
        let found = crate::fields::string(path, value)?;
        dns_label(path, &found)?;
        if known.contains(&found) {
            return Err(FieldError::new(path, format!("{found:?} is listed twice")));
        }
        known.push(found.clone());
        Ok(found)
    })
}

/// DNS labels are valid names of all types.
#[expect(clippy::expect_used, reason = "the callers have checked that the name is a DNS label")]
fn typed<T: TryFrom<String, Error = types::NameError>>(label: String) -> T {
    T::try_from(label).expect("a DNS label is a valid name")
}

fn tenant_name(label: String) -> TenantName {
    typed(label)
}

/// Adds a field unless it has no value.
fn put(spec: &mut Map<String, Value>, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        spec.insert(name.to_owned(), value.into());
    }
}

/// A list of texts. None if it is empty.
fn texts<T: ToString>(items: &[T]) -> Option<Vec<String>> {
    (!items.is_empty()).then(|| items.iter().map(ToString::to_string).collect())
}
