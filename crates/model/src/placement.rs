//! The placement that a pod asks for.

use crate::selector::Labels;

/// Podwire's label, and that of Contiv for the same purpose. Podwire's has precedence.
const TENANT: [&str; 2] = ["podwire.io/tenant", "io.contiv.tenant"];
const NETWORK: [&str; 2] = ["podwire.io/network", "io.contiv.network"];
const GROUP: [&str; 2] = ["podwire.io/group", "io.contiv.net-group"];

/// Names as the pod's labels have them. The catalog resolves them to a placement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlacementRequest {
    pub tenant: Option<String>,
    pub network: Option<String>,
    pub group: Option<String>,
}

impl PlacementRequest {
    pub fn of_labels(labels: &Labels) -> Self {
        let first = |keys: [&str; 2]| keys.into_iter().find_map(|key| labels.get(key)).cloned();
        Self { tenant: first(TENANT), network: first(NETWORK), group: first(GROUP) }
    }
}
