use ipnet::IpNet;
use serde_json::{Map, Value};

use super::{ObjectId, name_in, names_in, put, required_name, texts, typed};
use crate::fields::{FieldError, Fields, cidr};
use crate::objects::{Group, TenantGroup};

pub(super) fn read(id: &ObjectId, spec: &mut Fields) -> Result<TenantGroup, FieldError> {
    let network = required_name(spec, "network")?;
    let mut known: Vec<IpNet> = Vec::new();
    let pools = spec.list("pools", |path, value| {
        let pool = cidr(path, value)?;
        if let Some(other) = known.iter().find(|other| overlap(other, &pool)) {
            return Err(FieldError::new(path, format!("{pool} overlaps {other} of the same group")));
        }
        known.push(pool);
        Ok(pool)
    })?;
    Ok(TenantGroup {
        group: Group {
            tenant: id.tenant_name().clone(),
            name: typed(id.name().to_owned()),
            policies: names_in(spec, "policies")?,
        },
        network: typed(network),
        pools,
        profile: name_in(spec, "profile")?,
    })
}

pub(crate) fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}

pub(super) fn spec(group: &TenantGroup) -> Map<String, Value> {
    let mut spec = Map::new();
    put(&mut spec, "network", Some(group.network.as_str()));
    put(&mut spec, "pools", texts(&group.pools));
    put(&mut spec, "policies", texts(&group.group.policies));
    put(&mut spec, "profile", group.profile.as_deref());
    spec
}
