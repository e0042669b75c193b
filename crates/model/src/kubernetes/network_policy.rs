//! NetworkPolicy (networking.k8s.io/v1).

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;
use types::Protocol;

use super::{InvalidPolicy, RawMetadata, RawSelector, each, read_raw};
use crate::fields::{FieldError, quoted};
use crate::objects::{
    NamespaceScope, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicyRule, PortMatch,
    PortRange,
};
use crate::selector::Selector;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawNetworkPolicy {
    pub metadata: RawMetadata,
    pub spec: RawNetworkPolicySpec,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawNetworkPolicySpec {
    pub pod_selector: Option<RawSelector>,
    pub policy_types: Option<Vec<String>>,
    pub ingress: Option<Vec<RawIngressRule>>,
    pub egress: Option<Vec<RawEgressRule>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawIngressRule {
    pub from: Option<Vec<RawPolicyPeer>>,
    pub ports: Option<Vec<RawPolicyPort>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawEgressRule {
    pub to: Option<Vec<RawPolicyPeer>>,
    pub ports: Option<Vec<RawPolicyPort>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawPolicyPeer {
    pub pod_selector: Option<RawSelector>,
    pub namespace_selector: Option<RawSelector>,
    pub ip_block: Option<RawIpBlock>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawIpBlock {
    pub cidr: String,
    pub except: Option<Vec<String>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawPolicyPort {
    pub protocol: Option<String>,
    /// A number or a name.
    pub port: Option<Value>,
    pub end_port: Option<i64>,
}

impl NetworkPolicy {
    pub fn decode(object: Value) -> Result<Self, InvalidPolicy<Self>> {
        let metadata: Option<RawMetadata> =
            object.get("metadata").and_then(|metadata| read_raw(metadata.clone()).ok());
        match read_raw::<RawNetworkPolicy>(object) {
            Ok(raw) => Self::try_from(raw),
            // Which pods it selects is not known, so it selects all of its namespace.
            Err(error) => {
                let metadata = metadata.filter(|metadata| !metadata.name.is_empty());
                let closed =
                    metadata.map(|metadata| Box::new(isolating(&metadata, Selector::all(), [true; 2])));
                Err(InvalidPolicy { error, closed })
            }
        }
    }
}

/// Isolates the subjects for ingress and egress, and allows nothing.
fn isolating(metadata: &RawMetadata, subjects: Selector, [ingress, egress]: [bool; 2]) -> NetworkPolicy {
    NetworkPolicy {
        namespace: metadata.namespace().to_owned(),
        name: metadata.name.clone(),
        subjects,
        ingress: ingress.then(Vec::new),
        egress: egress.then(Vec::new),
    }
}

impl TryFrom<RawNetworkPolicy> for NetworkPolicy {
    type Error = InvalidPolicy<Self>;

    fn try_from(raw: RawNetworkPolicy) -> Result<Self, Self::Error> {
        let RawNetworkPolicy { metadata, spec } = raw;
        metadata.name().map_err(|error| InvalidPolicy { error, closed: None })?;
        let selector = spec.pod_selector.unwrap_or_default().parse("spec.podSelector");
        let directions = directions(spec.policy_types.as_ref(), spec.egress.as_ref());
        let closed = || {
            let subjects = selector.clone().unwrap_or_default();
            Box::new(isolating(&metadata, subjects, directions.clone().unwrap_or([true; 2])))
        };
        let invalid = |error| InvalidPolicy { error, closed: Some(closed()) };
        let mut policy =
            isolating(&metadata, selector.clone().map_err(invalid)?, directions.clone().map_err(invalid)?);
        if let Some(rules) = &mut policy.ingress {
            for (path, raw) in each("spec.ingress", spec.ingress.as_ref()) {
                let peers = (format!("{path}.from"), raw.from.as_ref());
                rules.push(rule(&path, peers, raw.ports.as_ref()).map_err(invalid)?);
            }
        }
        if let Some(rules) = &mut policy.egress {
            for (path, raw) in each("spec.egress", spec.egress.as_ref()) {
                let peers = (format!("{path}.to"), raw.to.as_ref());
                rules.push(rule(&path, peers, raw.ports.as_ref()).map_err(invalid)?);
            }
        }
        Ok(policy)
    }
}

/// Whether the policy isolates ingress and egress. Without types: ingress, and egress if it has egress rules.
fn directions(
    types: Option<&Vec<String>>,
    egress: Option<&Vec<RawEgressRule>>,
) -> Result<[bool; 2], FieldError> {
    let Some(types) = types.filter(|types| !types.is_empty()) else {
        return Ok([true, egress.is_some_and(|rules| !rules.is_empty())]);
    };
    let mut found = [false; 2];
    for (path, name) in each("spec.policyTypes", Some(types)) {
        match name.as_str() {
            "Ingress" => found[0] = true,
            "Egress" => found[1] = true,
            other => return Err(FieldError::refused(&path, quoted(&other.into()), "Ingress or Egress")),
        }
    }
    Ok(found)
}

fn rule(
    path: &str,
    (peers_path, peers): (String, Option<&Vec<RawPolicyPeer>>),
    ports: Option<&Vec<RawPolicyPort>>,
) -> Result<NetworkPolicyRule, FieldError> {
    let peers = each(&peers_path, peers).map(|(path, peer)| peer.parse(&path));
    let ports = each(&format!("{path}.ports"), ports).map(|(path, port)| port.parse(&path));
    Ok(NetworkPolicyRule {
        peers: peers.collect::<Result<_, _>>()?,
        ports: ports.collect::<Result<_, FieldError>>()?,
    })
}

impl RawPolicyPeer {
    fn parse(&self, path: &str) -> Result<NetworkPolicyPeer, FieldError> {
        let has_selector = self.pod_selector.is_some() || self.namespace_selector.is_some();
        match &self.ip_block {
            Some(block) if !has_selector => block.parse(&format!("{path}.ipBlock")),
            Some(_) => Err(FieldError::new(path, "a peer with ipBlock cannot have selectors")),
            None if !has_selector => {
                Err(FieldError::new(path, "must have podSelector, namespaceSelector or ipBlock"))
            }
            None => {
                let namespaces = match &self.namespace_selector {
                    None => NamespaceScope::Own,
                    Some(raw) => NamespaceScope::Matching(raw.parse(&format!("{path}.namespaceSelector"))?),
                };
                let pods = self.pod_selector.as_ref().map(|raw| raw.parse(&format!("{path}.podSelector")));
                Ok(NetworkPolicyPeer::Pods { namespaces, pods: pods.transpose()?.unwrap_or_default() })
            }
        }
    }
}

impl RawIpBlock {
    fn parse(&self, path: &str) -> Result<NetworkPolicyPeer, FieldError> {
        let cidr = block(&format!("{path}.cidr"), &self.cidr)?;
        let except = each(&format!("{path}.except"), self.except.as_ref()).map(|(path, text)| {
            let except = block(&path, text)?;
            if cidr.contains(&except) && cidr != except {
                return Ok(except);
            }
            Err(FieldError::refused(&path, except, format!("it must be inside {cidr} and smaller")))
        });
        Ok(NetworkPolicyPeer::Block { cidr, except: except.collect::<Result<_, _>>()? })
    }
}

/// Kubernetes allows bits behind the prefix and ignores them.
pub(super) fn block(path: &str, text: &str) -> Result<IpNet, FieldError> {
    let parsed: Result<IpNet, _> = text.parse();
    let expected = "expected a CIDR such as 10.0.0.0/8 or fd00::/8";
    parsed.map(|net| net.trunc()).map_err(|_| FieldError::refused(path, quoted(&text.into()), expected))
}

impl RawPolicyPort {
    fn parse(&self, path: &str) -> Result<NetworkPolicyPort, FieldError> {
        let protocol = match &self.protocol {
            None => Protocol::Tcp,
            Some(text) => protocol(&format!("{path}.protocol"), text)?,
        };
        let port_path = format!("{path}.port");
        let end_path = format!("{path}.endPort");
        let first = match (&self.port, self.end_port) {
            (None, None) => return Ok(NetworkPolicyPort { protocol, port: PortMatch::All }),
            (None, Some(_)) => return Err(FieldError::new(end_path, "needs a port")),
            (Some(Value::String(name)), None) => {
                let port = PortMatch::Named(port_name(&port_path, name)?);
                return Ok(NetworkPolicyPort { protocol, port });
            }
            (Some(Value::String(_)), Some(_)) => {
                return Err(FieldError::new(end_path, "needs a port that is a number"));
            }
            (Some(number), _) => port_number(&port_path, number)?,
        };
        let last = self.end_port.map_or(Ok(first), |end| port_number(&end_path, &end.into()))?;
        let range = PortRange::new(first, last)
            .ok_or_else(|| FieldError::refused(&end_path, last, format!("at least the port, {first}")))?;
        Ok(NetworkPolicyPort { protocol, port: PortMatch::Range(range) })
    }
}

pub(super) fn protocol(path: &str, text: &str) -> Result<Protocol, FieldError> {
    text.parse().map_err(|_| FieldError::refused(path, quoted(&text.into()), "TCP, UDP or SCTP"))
}

pub(super) fn port_number(path: &str, value: &Value) -> Result<u16, FieldError> {
    let number = value.as_u64().and_then(|number| u16::try_from(number).ok()).filter(|number| *number > 0);
    number.ok_or_else(|| FieldError::refused(path, quoted(value), "1 to 65535"))
}

/// IANA_SVC_NAME, RFC 6335.
pub(super) fn port_name(path: &str, name: &str) -> Result<String, FieldError> {
    let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let has_letter = name.bytes().any(|b| b.is_ascii_lowercase());
    let has_valid_dashes = !name.starts_with('-') && !name.ends_with('-') && !name.contains("--");
    if name.len() <= 15 && name.bytes().all(is_allowed) && has_letter && has_valid_dashes {
        return Ok(name.to_owned());
    }
    let allowed =
        "the name of a port has up to 15 lower-case letters, digits and '-', and at least one letter";
    Err(FieldError::refused(path, quoted(&name.into()), allowed))
}
