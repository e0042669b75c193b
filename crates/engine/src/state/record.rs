//! One attachment as it is written down: everything that DEL, CHECK, GC and repair need, and nothing else is asked.

use std::net::IpAddr;

use cni::{Bandwidth, Dns, PodRoute, PortMapping};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use types::{AttachMode, AttachmentKey, IfName, Mac, Placement, RequestId};

/// The newest version of the record's form. A record of a newer form can be released, and is never overwritten.
pub const SCHEMA: u32 = 2;
/// A record without `addressing`, which versions before that field read too.
const FIRST_SCHEMA: u32 = 1;

/// An address of a pod, with the prefix length that its link carries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAddress {
    pub address: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// How the pod's interface gets its addresses, as far as the guard has to know it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Addressing {
    /// Podwire puts them on the interface, and the pod uses no others.
    #[default]
    Assigned,
    /// The same, and they come from a DHCP server, which is asked through the interface while the pod runs.
    Dhcp,
    /// Podwire knows of none (layer 2 only).
    None,
}

impl Addressing {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The schema of a record with this addressing. Versions that know only the first one would guard the pod as if Podwire
    /// had assigned its addresses.
    pub fn schema(self) -> u32 {
        if self.is_default() { FIRST_SCHEMA } else { SCHEMA }
    }
}

/// The pod or container as the runtime names it in CNI_ARGS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodName {
    /// Empty for runtimes without namespaces, such as podman.
    pub namespace: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// What is needed to make the pod's wire once more, or to give the answer once more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Wiring {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<PodRoute>,
    /// The bridge's own addresses, with the subnet's prefix length.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<IpNet>,
    pub hairpin: bool,
    /// What another IPAM plugin said for the answer.
    #[serde(skip_serializing_if = "Dns::is_empty")]
    pub dns: Dns,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    pub schema: u32,
    #[serde(flatten)]
    pub key: AttachmentKey,
    /// The namespace's path, verbatim as the runtime gave it, and its cookie: a path may lead elsewhere later.
    pub netns: String,
    /// None: not known, because the record was made anew from the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns_cookie: Option<u64>,
    pub mode: AttachMode,
    pub bridge: IfName,
    pub host_link: IfName,
    pub host_mac: Mac,
    pub pod_mac: Mac,
    pub mtu: u32,
    pub addresses: Vec<PodAddress>,
    /// Addresses came from another plugin, which also gets them back.
    #[serde(default)]
    pub delegated: bool,
    /// The name of that plugin. None: the record was recovered from the link, or an earlier version wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam_plugin: Option<String>,
    #[serde(default, skip_serializing_if = "Addressing::is_default")]
    pub addressing: Addressing,
    /// Where pod traffic keeps its address; elsewhere it is masqueraded. None: never masqueraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masquerade_outside: Option<Vec<IpNet>>,
    pub spoof_check: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortMapping>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bandwidth>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// Tenant, network and group. None: the pod is unplaced, because its record was recovered from a link whose alias does
    /// not hold them. An unplaced pod belongs to no group, also not to the default one.
    #[serde(default)]
    pub placement: Option<Placement>,
    /// The run of the plugin that asked for it: the same one gets the same answer again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
    #[serde(flatten)]
    pub wiring: Wiring,
    /// Seconds since 1970, for people.
    pub created: u64,
}

impl Attachment {
    /// Whether only the IPAM plugin's DEL is left to do, if the record is pending and the host link does not exist.
    pub(crate) fn is_retired(&self) -> bool {
        self.delegated && self.addresses.is_empty() && self.wiring == Wiring::default()
    }

    pub fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|a| a.address.addr())
    }
}

/// What a record's file holds.
#[derive(Debug)]
pub(super) enum RecordContent {
    Attachment(Box<Attachment>),
    /// A newer version of Podwire wrote it.
    Newer(u32),
    Damaged,
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
                Ok(_) | Err(_) => Self::Damaged,
            },
        }
    }

    /// The attachment, or the newer schema that is the reason why there is none.
    pub(super) fn split(self) -> (Option<Attachment>, Option<u32>) {
        match self {
            Self::Attachment(attachment) => (Some(*attachment), None),
            Self::Newer(schema) => (None, Some(schema)),
            Self::Damaged => (None, None),
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

    /// Versions without the field `addressing` know schema 1, and leave records of a newer one alone.
    #[test]
    fn a_record_with_another_addressing_than_the_default_has_schema_2() {
        for (addressing, schema) in [(Addressing::Assigned, 1), (Addressing::Dhcp, 2), (Addressing::None, 2)]
        {
            assert_eq!(addressing.schema(), schema);
            // The first versions with the field wrote schema 1.
            for schema in 1..=2 {
                let (read, newer) = RecordContent::of(text(addressing, schema).as_bytes()).split();
                assert_eq!((read.map(|read| read.addressing), newer), (Some(addressing), None), "{schema}");
            }
            assert_eq!(RecordContent::of(text(addressing, 3).as_bytes()).split(), (None, Some(3)));
            assert!(matches!(RecordContent::of(text(addressing, 0).as_bytes()), RecordContent::Damaged));
        }
    }
}
