//! Objects of Kubernetes: JSON of the API server into the types of the policy engine.
//!
//! The `Raw…` types have the fields that Podwire uses, as the API documentation names them. `TryFrom` fills in the defaults and
//! checks what the API server checks, because a policy in a file for `podwire explain` has not passed it. [`decode`] does both
//! steps.
//!
//! An invalid policy must not open its subjects: [`InvalidPolicy::closed`] isolates them until the policy is valid.

mod cluster_policy;
mod network_policy;
mod selector;
mod workload;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use cluster_policy::RawClusterPolicy;
pub use network_policy::RawNetworkPolicy;
pub use selector::RawSelector;
pub use workload::{KubeNamespace, KubeNode, KubePod, RawNamespace, RawNode, RawPod};

use crate::fields::FieldError;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawMetadata {
    pub name: String,
    pub namespace: Option<String>,
    pub uid: Option<String>,
    pub labels: Option<BTreeMap<String, String>>,
    pub annotations: Option<BTreeMap<String, String>>,
}

impl RawMetadata {
    fn name(&self) -> Result<&str, FieldError> {
        if self.name.is_empty() { Err(FieldError::missing("metadata.name")) } else { Ok(&self.name) }
    }

    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}

/// An invalid policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct InvalidPolicy<T> {
    pub error: FieldError,
    /// Isolates the subjects in the directions of the invalid policy and allows nothing. None if the subjects are not known.
    pub closed: Option<Box<T>>,
}

/// Reads the fields of an object. The error names the field whose type is wrong.
pub fn read_raw<R: DeserializeOwned>(object: Value) -> Result<R, FieldError> {
    serde_path_to_error::deserialize(object).map_err(|error| {
        let field = error.path().to_string();
        FieldError::new(field, error.into_inner().to_string())
    })
}

/// Reads an object that is not a policy.
pub fn decode<R, T>(object: Value) -> Result<T, FieldError>
where
    R: DeserializeOwned,
    T: TryFrom<R, Error = FieldError>,
{
    T::try_from(read_raw(object)?)
}

/// The elements of a list with their paths. A missing list is empty.
fn each<'a, T>(path: &str, list: Option<&'a Vec<T>>) -> impl Iterator<Item = (String, &'a T)> + use<'a, T> {
    let path = path.to_owned();
    list.into_iter().flatten().enumerate().map(move |(i, item)| (format!("{path}[{i}]"), item))
}
