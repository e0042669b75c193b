use ipnet::IpNet;
use serde_json::{Map, Value};
use types::{Family, MAX_MTU, MIN_MTU_V4, MIN_MTU_V6, NodeName};

use super::{ObjectId, put, texts, typed};
use crate::BlockLayout;
use crate::fields::{FieldError, Fields, cidr, string};
use crate::objects::TenantNetwork;

/// A longer prefix has no address for a pod besides network, gateway and broadcast address.
const MAX_LENGTH_V4: u8 = 29;
const MAX_LENGTH_V6: u8 = 125;

pub(super) fn read(id: &ObjectId, spec: &mut Fields) -> Result<TenantNetwork, FieldError> {
    let subnets = read_subnets(spec)?;
    let margin = spec.number("blockMargin", 0..=32)?;
    let margin = margin.map_or(TenantNetwork::DEFAULT_MARGIN, |bits| u8::try_from(bits).unwrap_or(u8::MAX));
    for (i, subnet) in subnets.iter().enumerate() {
        BlockLayout::new(*subnet, margin)
            .map_err(|error| FieldError::new(format!("spec.subnets[{i}]"), error.to_string()))?;
    }
    let has_v6 = subnets.iter().any(|subnet| matches!(subnet, IpNet::V6(_)));
    let min_mtu = if has_v6 { MIN_MTU_V6 } else { MIN_MTU_V4 };
    let mtu = spec.number("mtu", u64::from(min_mtu)..=u64::from(MAX_MTU))?;
    Ok(TenantNetwork {
        tenant: id.tenant_name().clone(),
        id: typed(id.name().to_owned()),
        subnets,
        margin,
        mtu: mtu.and_then(|mtu| u32::try_from(mtu).ok()),
        masquerade: spec.boolean("masquerade")?.unwrap_or(true),
        nodes: read_nodes(spec)?,
    })
}

fn read_subnets(spec: &mut Fields) -> Result<Vec<IpNet>, FieldError> {
    let mut families: Vec<(Family, IpNet)> = Vec::new();
    let subnets = spec.list("subnets", |path, value| {
        let subnet = cidr(path, value)?;
        let longest = if matches!(subnet, IpNet::V4(_)) { MAX_LENGTH_V4 } else { MAX_LENGTH_V6 };
        if subnet.prefix_len() > longest {
            return Err(FieldError::new(path, format!("{subnet} is too small: at most /{longest}")));
        }
        let family = Family::of(subnet.network());
        if let Some((_, first)) = families.iter().find(|(known, _)| *known == family) {
            let reason =
                format!("{subnet} is a second {family} subnet beside {first}; one per family is allowed");
            return Err(FieldError::new(path, reason));
        }
        families.push((family, subnet));
        Ok(subnet)
    })?;
    if subnets.is_empty() {
        return Err(FieldError::new("spec.subnets", "is missing: one CIDR, or one per family"));
    }
    Ok(subnets)
}

fn read_nodes(spec: &mut Fields) -> Result<Vec<NodeName>, FieldError> {
    let mut known: Vec<NodeName> = Vec::new();
    spec.list("nodes", |path, value| {
        let name = NodeName::try_from(string(path, value)?);
        let name = name.map_err(|error| FieldError::new(path, error.to_string()))?;
        if known.contains(&name) {
            return Err(FieldError::new(path, format!("{name} is listed twice")));
        }
        known.push(name.clone());
        Ok(name)
    })
}

pub(super) fn spec(network: &TenantNetwork) -> Map<String, Value> {
    let mut spec = Map::new();
    put(&mut spec, "subnets", texts(&network.subnets));
    put(&mut spec, "blockMargin", Some(network.margin));
    put(&mut spec, "mtu", network.mtu);
    put(&mut spec, "masquerade", Some(network.masquerade));
    put(&mut spec, "nodes", texts(&network.nodes));
    spec
}
