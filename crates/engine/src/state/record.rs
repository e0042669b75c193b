//! One attachment as it is written down: everything that DEL, CHECK, GC and repair need, and nothing else is asked.

use std::net::IpAddr;

use cni::{Bandwidth, Dns, PortMapping, Route};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use types::{AttachMode, AttachmentKey, IfName, Mac, Placement, RequestId};

/// The newest version of the record's form. A record of a newer form can be released, and is never overwritten.
pub const SCHEMA: u32 = 2;
/// A record without `addressing`, which versions before that field read too.
const FIRST_SCHEMA: u32 = 1;

/// Before the MAC in a link's alias.
pub(crate) const MAC_MARK: &str = "mac=";
/// Before the kind of addressing in a link's alias, unless it is the default.
const ADDRESSING_MARK: &str = "ipam=";
/// Before the placement in a link's alias: `in=TENANT/NETWORK`, or `in=TENANT/NETWORK/GROUP`.
pub(crate) const PLACEMENT_MARK: &str = "in=";
/// The kernel accepts this many bytes and refuses more.
const LONGEST_ALIAS: usize = 255;

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
    const MARKED: [Self; 2] = [Self::Dhcp, Self::None];

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The schema of a record with this addressing. Versions that know only the first one would guard the pod as if Podwire
    /// had assigned its addresses.
    pub fn schema(self) -> u32 {
        if self.is_default() { FIRST_SCHEMA } else { SCHEMA }
    }

    /// In a link's alias. Those of earlier versions have none.
    fn word(self) -> Option<String> {
        match self {
            Self::Assigned => None,
            Self::Dhcp => Some(format!("{ADDRESSING_MARK}dhcp")),
            Self::None => Some(format!("{ADDRESSING_MARK}none")),
        }
    }

    pub(crate) fn in_alias(alias: &str) -> Self {
        let has = |addressing: &Self| {
            addressing.word().is_some_and(|word| alias.split(' ').skip(1).any(|found| found == word))
        };
        Self::MARKED.into_iter().find(has).unwrap_or_default()
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

    /// The alias of the host end: key, kind of addressing, addresses, the MAC if one was requested, and the placement. The kernel alone then
    /// holds what is needed to recover the record. A word that does not fit is left out, never cut.
    pub fn alias(&self) -> String {
        let mut alias = self.key.alias();
        // First: without it the guard of a recovered record would be another.
        let addressing = self.addressing.word();
        let addresses = self.addresses.iter().map(|address| address.address.to_string());
        let mac = (self.pod_mac != self.key.pod_mac()).then(|| format!("{MAC_MARK}{}", self.pod_mac));
        for word in addressing
            .into_iter()
            .chain(addresses)
            .chain(mac)
            .chain(self.placement.as_ref().map(placement_word))
        {
            if alias.len() + 1 + word.len() <= LONGEST_ALIAS {
                alias.push(' ');
                alias.push_str(&word);
            }
        }
        alias
    }
}

/// The longest word of an address.
const LONGEST_ADDRESS: usize = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128".len();

/// Whether an address may have been left out of the alias, because it did not fit.
pub(crate) fn may_lack_addresses(alias: &str) -> bool {
    let is_later = |word: &&str| word.starts_with(MAC_MARK) || word.starts_with(PLACEMENT_MARK);
    let addresses: usize =
        alias.split(' ').take_while(|word| !is_later(word)).map(|word| word.len() + 1).sum();
    addresses + LONGEST_ADDRESS > LONGEST_ALIAS
}

fn placement_word(placement: &Placement) -> String {
    let Placement { tenant, network, group } = placement;
    let group = group.as_ref().map_or_else(String::new, |group| format!("/{group}"));
    format!("{PLACEMENT_MARK}{tenant}/{network}{group}")
}

/// The placement in the words of an alias. None where there is none, or anything but exactly one: aliases of earlier
/// versions have none.
pub(crate) fn placement_in(alias: &str) -> Option<Placement> {
    let mut words = alias.split(' ').skip(1).filter_map(|word| word.strip_prefix(PLACEMENT_MARK));
    let (word, None) = (words.next()?, words.next()) else { return None };
    let parts: Vec<&str> = word.split('/').collect();
    match parts.as_slice() {
        [tenant, network] => Placement::parse(Some(tenant), Some(network), None).ok(),
        [tenant, network, group] => Placement::parse(Some(tenant), Some(network), Some(group)).ok(),
        _ => None,
    }
}

/// What a record's file holds.
#[derive(Debug)]
pub(super) enum Content {
    Attachment(Box<Attachment>),
    /// A newer version of Podwire wrote it.
    Newer(u32),
    Damaged,
}

impl Content {
    pub(super) fn of(bytes: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        match serde_json::from_slice::<Attachment>(bytes) {
            Ok(read) if (FIRST_SCHEMA..=SCHEMA).contains(&read.schema) => Self::Attachment(Box::new(read)),
            // A newer schema may parse as this one or not, so the version alone decides.
            Ok(_) | Err(_) => match serde_json::from_slice(bytes) {
                Ok(Version { schema }) if schema > SCHEMA => Self::Newer(schema),
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
    use proptest::prelude::*;

    use super::*;

    fn placement(parts: [&str; 3]) -> Placement {
        let group = Some(parts[2]).filter(|group| !group.is_empty());
        Placement::parse(Some(parts[0]), Some(parts[1]), group).unwrap()
    }

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
                let (read, newer) = Content::of(text(addressing, schema).as_bytes()).split();
                assert_eq!((read.map(|read| read.addressing), newer), (Some(addressing), None), "{schema}");
            }
            assert_eq!(Content::of(text(addressing, 3).as_bytes()).split(), (None, Some(3)));
            assert!(matches!(Content::of(text(addressing, 0).as_bytes()), Content::Damaged));
        }
    }

    #[test]
    fn a9_only_an_exact_placement_is_taken_from_an_alias() {
        let key = "podwire:blue/c1/eth0";
        for (words, wanted) in [
            ("10.0.0.2/24 in=shop/front/web", Some(["shop", "front", "web"])),
            ("in=shop/front", Some(["shop", "front", ""])),
            // As the version before wrote them.
            ("10.0.0.2/24 fd00::2/64", None),
            ("10.0.0.2/24 mac=02:00:00:00:00:01", None),
            ("in=", None),
            ("in=shop", None),
            ("in=shop/", None),
            ("in=shop/front/", None),
            ("in=/front/web", None),
            ("in=shop/front/web/more", None),
            ("in=shop/front/w\u{1b}eb", None),
            ("in=../front/web", None),
            ("in=shop/front/web in=other/front/web", None),
            ("x in=shop/front/web\n", None),
        ] {
            assert_eq!(placement_in(&format!("{key} {words}")), wanted.map(placement), "{words:?}");
        }
        assert_eq!(placement_in("in=shop/front/web"), None, "the first word is the key");
    }

    proptest! {
        #[test]
        fn a9_a_placement_survives_in_the_alias_or_is_left_out(
            container in "[a-z0-9]{1,80}", tenant in "[a-z0-9]{1,90}", group in proptest::option::of("[a-z0-9]{1,60}"),
        ) {
            let key = AttachmentKey {
                network: "podwire".try_into().unwrap(),
                container: container.as_str().try_into().unwrap(),
                ifname: "eth0".try_into().unwrap(),
            };
            let place = Placement::parse(Some(&tenant), Some("front"), group.as_deref()).unwrap();
            let text = serde_json::json!({
                "schema": SCHEMA, "network": "podwire", "container": container, "ifname": "eth0", "netns": "",
                "mode": "routed", "bridge": "b", "host_link": key.host_link(0), "host_mac": key.host_mac(),
                "pod_mac": key.pod_mac(), "mtu": 1500, "spoof_check": true, "placement": place, "created": 0,
                "addresses": [{"address": "10.88.100.200/32"}, {"address": "fd00:1111:2222:3333:4444:5555:6666:7777/128"}],
            });
            let attachment: Attachment = serde_json::from_value(text).unwrap();
            let alias = attachment.alias();
            prop_assert!(alias.len() <= LONGEST_ALIAS);
            let bare = Attachment { placement: None, ..attachment }.alias();
            let fits = bare.len() + 1 + placement_word(&place).len() <= LONGEST_ALIAS;
            prop_assert_eq!(placement_in(&alias), fits.then_some(place));
        }
    }
}
