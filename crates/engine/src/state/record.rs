//! One attachment as it is written down: everything that DEL, CHECK, GC and repair need, and nothing else is asked.

use std::net::IpAddr;

use cni::{Bandwidth, Dns, PortMapping, Route};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use types::{AttachMode, AttachmentKey, IfName, Mac, Placement, RequestId};

/// The version of the record's form. A record of another form is treated as one that cannot be read: it can be released.
pub const SCHEMA: u32 = 1;

/// Before the MAC in a link's alias.
pub(crate) const MAC_MARK: &str = "mac=";

/// An address of a pod, with the prefix length that its link carries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAddress {
    pub address: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// The pod as Kubernetes calls it, where the runtime told us.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodName {
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
    pub routes: Vec<Route>,
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
    /// Whose the pod is. None: the record was made anew from the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|a| a.address.addr())
    }

    /// The alias of the host end: key and addresses, and the MAC if somebody asked for one, so that the kernel alone can tell what the link is for.
    pub fn alias(&self) -> String {
        let mut alias = self.key.alias();
        for address in &self.addresses {
            let next = format!(" {}", address.address);
            // The kernel takes 255 bytes and refuses more.
            if alias.len() + next.len() <= 255 {
                alias.push_str(&next);
            }
        }
        let mac = format!(" {MAC_MARK}{}", self.pod_mac);
        if self.pod_mac != self.key.pod_mac() && alias.len() + mac.len() <= 255 {
            alias.push_str(&mac);
        }
        alias
    }
}
