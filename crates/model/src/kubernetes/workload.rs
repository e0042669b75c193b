//! Namespace, Pod and Node (core/v1).

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;
use types::{NodeName, Protocol};

use super::network_policy::protocol;
use super::{RawMetadata, each};
use crate::fields::{FieldError, quoted};
use crate::objects::{NamedPort, NamespacedName};
use crate::placement::PlacementRequest;
use crate::selector::Labels;

/// The label that the API server gives each namespace.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Kubelet runs a static pod with this uid. Its mirror in the API has a uid of its own.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Only mirrors of static pods have it.
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawNamespace {
    pub metadata: RawMetadata,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeNamespace {
    pub name: String,
    pub labels: Labels,
}

impl TryFrom<RawNamespace> for KubeNamespace {
    type Error = FieldError;

    fn try_from(raw: RawNamespace) -> Result<Self, FieldError> {
        let name = raw.metadata.name()?.to_owned();
        let mut labels = raw.metadata.labels.unwrap_or_default();
        labels.insert(NAME_LABEL.to_owned(), name.clone());
        Ok(Self { name, labels })
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawPod {
    pub metadata: RawMetadata,
    pub spec: RawPodSpec,
    pub status: RawPodStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawPodSpec {
    pub node_name: Option<String>,
    pub host_network: Option<bool>,
    pub containers: Option<Vec<RawContainer>>,
    pub init_containers: Option<Vec<RawContainer>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawContainer {
    pub ports: Option<Vec<RawContainerPort>>,
    pub restart_policy: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawContainerPort {
    pub name: Option<String>,
    pub container_port: u16,
    pub protocol: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawPodStatus {
    pub phase: Option<String>,
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pub pod_ips: Option<Vec<RawPodIp>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawPodIp {
    pub ip: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubePod {
    /// As in the runtime's K8S_POD_UID.
    pub uid: String,
    pub name: NamespacedName,
    /// None until it is scheduled.
    pub node: Option<NodeName>,
    pub labels: Labels,
    /// Sorted. A name occurs once per protocol.
    pub ports: Vec<NamedPort>,
    /// None if it uses the network of its node. Empty until it has addresses.
    pub addresses: Option<Vec<IpAddr>>,
    /// Succeeded or failed.
    pub is_completed: bool,
    pub placement: PlacementRequest,
}

impl TryFrom<RawPod> for KubePod {
    type Error = FieldError;

    fn try_from(raw: RawPod) -> Result<Self, FieldError> {
        let RawPod { metadata, spec, status } = raw;
        let name = metadata.name()?.to_owned();
        let uid = uid(&metadata).ok_or_else(|| FieldError::missing("metadata.uid"))?;
        let node = spec.node_name.as_deref().filter(|name| !name.is_empty()).map(NodeName::try_from);
        let node = node.transpose().map_err(|error| FieldError::new("spec.nodeName", error.to_string()))?;
        let addresses = match spec.host_network {
            Some(true) => None,
            Some(false) | None => Some(addresses(&status)?),
        };
        let labels = metadata.labels.clone().unwrap_or_default();
        Ok(Self {
            uid,
            node,
            ports: named_ports(&spec)?,
            addresses,
            is_completed: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            placement: PlacementRequest::of_labels(&labels),
            labels,
            name: NamespacedName { namespace: Some(metadata.namespace().to_owned()), name },
        })
    }
}

/// Kubelet's hash has 32 hexadecimal digits, so that an annotation cannot name the uid of another pod, which contains dashes.
fn uid(metadata: &RawMetadata) -> Option<String> {
    let annotation = |key: &str| metadata.annotations.as_ref()?.get(key);
    let is_hash = |text: &&String| text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let hash = annotation(CONFIG_MIRROR).and(annotation(CONFIG_HASH)).filter(is_hash);
    hash.or(metadata.uid.as_ref()).filter(|uid| !uid.is_empty()).cloned()
}

/// Of containers and of sidecars, which are init containers that keep running. As for Services, the first port of a name and
/// protocol counts, and containers precede sidecars.
fn named_ports(spec: &RawPodSpec) -> Result<Vec<NamedPort>, FieldError> {
    let containers = each("spec.containers", spec.containers.as_ref());
    let sidecars = each("spec.initContainers", spec.init_containers.as_ref())
        .filter(|(_, container)| container.restart_policy.as_deref() == Some("Always"));
    let mut found: BTreeMap<(String, Protocol), u16> = BTreeMap::new();
    for (path, container) in containers.chain(sidecars) {
        for (path, port) in each(&format!("{path}.ports"), container.ports.as_ref()) {
            let Some(name) = port.name.as_ref().filter(|name| !name.is_empty()) else { continue };
            let text = port.protocol.as_deref().unwrap_or("TCP");
            let protocol = protocol(&format!("{path}.protocol"), text)?;
            if port.container_port == 0 {
                return Err(FieldError::refused(&format!("{path}.containerPort"), 0, "1 to 65535"));
            }
            found.entry((name.clone(), protocol)).or_insert(port.container_port);
        }
    }
    Ok(found.into_iter().map(|((name, protocol), port)| NamedPort { name, protocol, port }).collect())
}

fn address(path: &str, text: &str) -> Result<IpAddr, FieldError> {
    let expected = "expected an IP address";
    text.parse().map_err(|_| FieldError::refused(path, quoted(&text.into()), expected))
}

fn addresses(status: &RawPodStatus) -> Result<Vec<IpAddr>, FieldError> {
    let listed: Vec<IpAddr> = each("status.podIPs", status.pod_ips.as_ref())
        .map(|(path, entry)| address(&format!("{path}.ip"), &entry.ip))
        .collect::<Result<_, _>>()?;
    match status.pod_ip.as_deref() {
        Some(single) if listed.is_empty() && !single.is_empty() => Ok(vec![address("status.podIP", single)?]),
        Some(_) | None => Ok(listed),
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawNode {
    pub metadata: RawMetadata,
    pub status: RawNodeStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawNodeStatus {
    pub addresses: Option<Vec<RawNodeAddress>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawNodeAddress {
    #[serde(rename = "type")]
    pub kind: String,
    pub address: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeNode {
    pub name: NodeName,
    /// Internal and external ones, without host names.
    pub addresses: Vec<IpAddr>,
    pub labels: Labels,
}

impl TryFrom<RawNode> for KubeNode {
    type Error = FieldError;

    fn try_from(raw: RawNode) -> Result<Self, FieldError> {
        let name = NodeName::try_from(raw.metadata.name()?);
        let addresses = each("status.addresses", raw.status.addresses.as_ref())
            .filter(|(_, entry)| matches!(entry.kind.as_str(), "InternalIP" | "ExternalIP"))
            .map(|(path, entry)| address(&format!("{path}.address"), &entry.address));
        Ok(Self {
            name: name.map_err(|error| FieldError::new("metadata.name", error.to_string()))?,
            addresses: addresses.collect::<Result<_, _>>()?,
            labels: raw.metadata.labels.unwrap_or_default(),
        })
    }
}
