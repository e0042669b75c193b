use serde_json::{Map, Value};

use super::{ObjectId, name_in, put, typed};
use crate::fields::{FieldError, Fields};
use crate::objects::{NodeAccess, Tenant};

const NODES: [(&str, NodeAccess); 2] = [("allow", NodeAccess::Allow), ("deny", NodeAccess::Deny)];

pub(super) fn read(id: &ObjectId, spec: &mut Fields) -> Result<Tenant, FieldError> {
    Ok(Tenant {
        name: id.tenant_name().clone(),
        nodes: spec.word("nodes", &NODES)?.unwrap_or_default(),
        default_network: name_in(spec, "defaultNetwork")?.map(typed),
    })
}

pub(super) fn spec(tenant: &Tenant) -> Map<String, Value> {
    let mut spec = Map::new();
    let nodes = NODES.iter().find(|(_, access)| *access == tenant.nodes);
    put(&mut spec, "nodes", nodes.map(|(word, _)| *word));
    put(&mut spec, "defaultNetwork", tenant.default_network.as_ref().map(ToString::to_string));
    spec
}
