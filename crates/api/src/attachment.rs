//! Attachments in the API and in `podwire pods -o json`. Records on disk have a different format.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// The output of `podwire pods -o json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttachmentsView {
    pub attachments: Vec<AttachmentView>,
}

/// An attachment in a run directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttachmentView {
    /// The CNI network.
    pub network: String,
    /// The name of the record's file, without its extension.
    pub record_name: String,
    pub phase: AttachmentPhase,
    /// Null if the record is unreadable.
    pub record: Option<AttachmentRecord>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum AttachmentPhase {
    /// An ADD or DEL is in progress, or was interrupted.
    Pending,
    Ready,
    /// The runtime sent DEL while no agent ran. The agent serves it after its start.
    Deleting,
    /// The record is unreadable. DEL or GC removes it.
    Unreadable,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttachmentRecord {
    pub container_id: String,
    /// The interface in the pod.
    pub interface: String,
    /// The path of the network namespace, as the runtime gave it.
    pub netns: String,
    /// Null if it is unknown, because the record was recovered from the link.
    pub netns_cookie: Option<u64>,
    /// `bridge` or `routed`.
    pub mode: String,
    pub bridge: String,
    pub host_link: String,
    pub host_mac: String,
    pub pod_mac: String,
    pub mtu: u32,
    pub addresses: Vec<AddressView>,
    pub ipam: IpamView,
    pub masquerade: MasqueradeView,
    pub spoof_check: bool,
    pub ports: Vec<PortView>,
    /// Null if there are no limits.
    pub bandwidth: Option<BandwidthView>,
    /// Null if the runtime passed no pod name.
    pub pod: Option<PodView>,
    /// Null if the pod has no placement.
    pub placement: Option<PlacementView>,
    /// The request that created it. Null if it was recovered from the link.
    pub request_id: Option<String>,
    pub routes: Vec<PodRouteView>,
    /// The addresses of the bridge.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub gateways: Vec<IpNet>,
    pub hairpin: bool,
    pub dns: DnsView,
    /// Null if it was recovered from the link.
    pub created_at: Option<Timestamp>,
}

/// The source of the addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum IpamView {
    Podwire,
    Dhcp,
    /// Another IPAM plugin.
    Plugin,
    /// A layer-2 attachment. Podwire does not know its addresses.
    None,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AddressView {
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub address: IpNet,
    pub gateway: Option<IpAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct MasqueradeView {
    pub enabled: bool,
    /// Destinations without masquerading.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub except: Vec<IpNet>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PortView {
    pub host_port: u16,
    pub container_port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Null for all addresses of the node.
    pub host_ip: Option<IpAddr>,
}

impl fmt::Display for PortView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host_ip {
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:")?,
            Some(IpAddr::V4(ip)) => write!(f, "{ip}:")?,
            None => {}
        }
        write!(f, "{} to {}/{}", self.host_port, self.container_port, self.protocol)
    }
}

/// Rates in bits per second, bursts in bits. A rate of 0 means no limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BandwidthView {
    pub ingress_rate: u64,
    pub ingress_burst: u64,
    pub egress_rate: u64,
    pub egress_burst: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodView {
    /// Null for runtimes without namespaces, such as podman.
    pub namespace: Option<String>,
    pub name: String,
    pub uid: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlacementView {
    pub tenant: String,
    pub network: String,
    pub group: Option<String>,
}

/// A route in the pod. Null fields have the kernel's default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodRouteView {
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub destination: IpNet,
    pub gateway: Option<IpAddr>,
    pub mtu: Option<u32>,
    pub advertised_mss: Option<u32>,
    pub priority: Option<u32>,
    pub table: Option<u32>,
    pub scope: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DnsView {
    pub nameservers: Vec<String>,
    pub domain: Option<String>,
    pub search: Vec<String>,
    pub options: Vec<String>,
}

/// The output of `podwire attachment show -o json`: the record, and the state of its kernel objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttachmentDetails {
    #[serde(flatten)]
    pub attachment: AttachmentView,
    pub kernel: Vec<KernelCheck>,
    /// Null if the pod has no placement, or if no agent answers.
    pub policies: Option<PodGroupView>,
}

/// What the group of a pod adds to it. Empty without a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodGroupView {
    pub profile: Option<String>,
    pub policies: Vec<String>,
    /// The rules of all policies in the order in which they are evaluated.
    pub rules: Vec<crate::RuleView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct KernelCheck {
    /// The object, such as `route to 10.88.0.2 through pw1`.
    pub object: String,
    pub state: KernelState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum KernelState {
    Ok,
    Missing,
    /// The state could not be read.
    Unknown,
}
