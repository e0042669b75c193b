//! The record of one attachment. It contains everything that DEL, CHECK, GC and repair need.

use std::net::IpAddr;

use cni::{Bandwidth, Dns, PodRoute, PortMapping};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use types::{AttachMode, AttachmentKey, IfName, Mac, Placement, RequestId};

/// The newest schema of a record. A record with a newer schema can be released, but is never overwritten.
pub const SCHEMA: u32 = 2;
/// The schema of a record without `addressing`. Versions before that field can read it too.
const FIRST_SCHEMA: u32 = 1;

/// An address of a pod, with the prefix length on its link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAddress {
    pub address: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// The source of the pod's addresses. The anti-spoofing filter depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Addressing {
    /// Podwire assigns them to the interface, and the pod uses no other addresses.
    #[default]
    Assigned,
    /// Like `Assigned`, but from a DHCP server. The pod sends DHCP requests through the interface while it runs.
    Dhcp,
    /// Podwire assigns none (layer 2 only).
    None,
}

impl Addressing {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The schema of a record with this addressing. Versions that know only the first schema would filter the pod as if Podwire
    /// had assigned its addresses.
    pub fn schema(self) -> u32 {
        if self.is_default() { FIRST_SCHEMA } else { SCHEMA }
    }
}

/// The name of the pod or container from CNI_ARGS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodName {
    /// Empty for runtimes without namespaces, such as podman.
    pub namespace: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// What is needed to recreate the pod's interface, or to repeat the CNI result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Wiring {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<PodRoute>,
    /// The addresses of the bridge, with the subnet's prefix length.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<IpNet>,
    pub hairpin: bool,
    /// DNS from a delegated IPAM plugin, for the CNI result.
    #[serde(skip_serializing_if = "Dns::is_empty")]
    pub dns: Dns,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    pub schema: u32,
    #[serde(flatten)]
    pub key: AttachmentKey,
    /// The path of the namespace as the runtime sent it. The cookie detects that the path refers to another namespace later.
    pub netns: String,
    /// None if unknown, because the record was recovered from the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns_cookie: Option<u64>,
    pub mode: AttachMode,
    pub bridge: IfName,
    pub host_link: IfName,
    pub host_mac: Mac,
    pub pod_mac: Mac,
    pub mtu: u32,
    pub addresses: Vec<PodAddress>,
    /// An IPAM plugin assigned the addresses, and has to release them.
    #[serde(default)]
    pub delegated: bool,
    /// The name of that plugin. None if the record was recovered from the link, or written by an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam_plugin: Option<String>,
    #[serde(default, skip_serializing_if = "Addressing::is_default")]
    pub addressing: Addressing,
    /// Destinations to which pod traffic is not masqueraded. None if it is never masqueraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masquerade_outside: Option<Vec<IpNet>>,
    pub spoof_check: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortMapping>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bandwidth>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// Tenant, network and group. None if the record was recovered from a link without them in its alias. Such a pod belongs to
    /// no group, not even to the default group.
    #[serde(default)]
    pub placement: Option<Placement>,
    /// The plugin run that requested the attachment. If it repeats the ADD, it gets the same result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
    #[serde(flatten)]
    pub wiring: Wiring,
    /// Unix time in seconds, for display. 0 if the record was recovered from the link.
    pub created: u64,
}

impl Attachment {
    /// When it was created, as Unix time. None if the record was recovered from the link, which has no time.
    pub fn created_at(&self) -> Option<u64> {
        Some(self.created).filter(|time| *time > 0)
    }

    /// For a pending record without a host link: whether only the IPAM plugin's DEL is missing.
    pub(crate) fn needs_only_ipam_del(&self) -> bool {
        self.delegated && self.addresses.is_empty() && self.wiring == Wiring::default()
    }

    pub fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|a| a.address.addr())
    }
}

/// The content of a record's file.
#[derive(Debug)]
pub(super) enum RecordContent {
    Attachment(Box<Attachment>),
    /// A newer version of Podwire wrote it.
    Newer(u32),
    Corrupt,
}

impl RecordContent {
    pub(super) fn of(bytes: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct SchemaVersion {
            schema: u32,
        }
        match serde_json::from_slice::<Attachment>(bytes) {
            Ok(read) if (FIRST_SCHEMA..=SCHEMA).contains(&read.schema) => Self::Attachment(Box::new(read)),
            // A newer schema may parse as this one or not, so the version alone decides.
            Ok(_) | Err(_) => match serde_json::from_slice(bytes) {
                Ok(SchemaVersion { schema }) if schema > SCHEMA => Self::Newer(schema),
                Ok(_) | Err(_) => Self::Corrupt,
            },
        }
    }

    /// The attachment, or the newer schema that prevents reading it.
    pub(super) fn split(self) -> (Option<Attachment>, Option<u32>) {
        match self {
            Self::Attachment(attachment) => (Some(*attachment), None),
            Self::Newer(schema) => (None, Some(schema)),
            Self::Corrupt => (None, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(addressing: Addressing, schema: u32) -> String {
        let mac = "02:00:00:00:00:01";
        let record = serde_json::json!({
            "schema": schema, "network": "blue", "container": "c1", "ifname": "eth0", "netns": "", "mode": "bridge",
            "bridge": "pw0", "host_link": "pw1", "host_mac": mac, "pod_mac": mac, "mtu": 1500, "addresses": [],
            "addressing": addressing, "spoof_check": true, "hairpin": false, "created": 0,
        });
        record.to_string()
    }

    /// Versions without the field `addressing` know schema 1, and do not change records with a newer one.
    #[test]
    fn a_record_with_a_non_default_addressing_has_schema_2() {
        for (addressing, schema) in [(Addressing::Assigned, 1), (Addressing::Dhcp, 2), (Addressing::None, 2)]
        {
            assert_eq!(addressing.schema(), schema);
            // The first versions with the field wrote schema 1.
            for schema in 1..=2 {
                let (read, newer) = RecordContent::of(text(addressing, schema).as_bytes()).split();
                assert_eq!((read.map(|read| read.addressing), newer), (Some(addressing), None), "{schema}");
            }
            assert_eq!(RecordContent::of(text(addressing, 3).as_bytes()).split(), (None, Some(3)));
            assert!(matches!(RecordContent::of(text(addressing, 0).as_bytes()), RecordContent::Corrupt));
        }
    }
}
