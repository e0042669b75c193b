use serde_json::{Map, Value};
use types::{Protocol, TenantName};

use super::policy::read_ports;
use super::{ObjectId, name_in, names_in, put, texts, typed};
use crate::fields::{FieldError, Fields, quoted, string};
use crate::objects::{PortRange, Share, SharedPart};

pub(super) fn read(id: &ObjectId, spec: &mut Fields) -> Result<Share, FieldError> {
    let network = name_in(spec, "network")?;
    let group = name_in(spec, "group")?;
    let part = match (network, group) {
        (None, None) => SharedPart::AllPods,
        (Some(network), None) => SharedPart::Network(typed(network)),
        (None, Some(group)) => SharedPart::Group(typed(group)),
        (Some(_), Some(_)) => {
            let reason = "a share has a network or a group; write two shares for both";
            return Err(FieldError::new("spec.group", reason));
        }
    };
    let with: Vec<TenantName> = names_in(spec, "with")?.into_iter().map(typed).collect();
    if let Some(i) = with.iter().position(|tenant| tenant == id.tenant_name()) {
        let reason = format!("{} is the owner; a share is for other tenants", id.tenant_name());
        return Err(FieldError::new(format!("spec.with[{i}]"), reason));
    }
    let ports = spec.list("ports", |path, value| read_port(path, string(path, value)?))?;
    Ok(Share { tenant: id.tenant_name().clone(), name: id.name().to_owned(), part, with, ports })
}

/// `tcp/80`, `udp/5000-5100`, or `sctp` for all ports.
fn read_port(path: &str, text: String) -> Result<(Protocol, PortRange), FieldError> {
    let (protocol, ports) = match text.split_once('/') {
        Some((protocol, ports)) => (protocol, Some(ports.to_owned())),
        None => (text.as_str(), None),
    };
    let Ok(protocol) = protocol.parse::<Protocol>() else {
        let allowed = "tcp, udp or sctp, with a port or range such as tcp/80 or udp/5000-5100";
        return Err(FieldError::refused(path, quoted(&Value::String(text)), allowed));
    };
    let ports = ports.map(|ports| read_ports(path, &Value::String(ports))).transpose()?;
    Ok((protocol, ports.unwrap_or(PortRange::ALL)))
}

pub(super) fn spec(share: &Share) -> Map<String, Value> {
    let mut spec = Map::new();
    match &share.part {
        SharedPart::AllPods => {}
        SharedPart::Network(network) => put(&mut spec, "network", Some(network.as_str())),
        SharedPart::Group(group) => put(&mut spec, "group", Some(group.as_str())),
    }
    put(&mut spec, "with", texts(&share.with));
    let ports = share.ports.iter().map(|(protocol, ports)| match *ports {
        PortRange::ALL => protocol.to_string(),
        ports => format!("{protocol}/{ports}"),
    });
    let ports: Vec<String> = ports.collect();
    put(&mut spec, "ports", texts(&ports));
    spec
}
