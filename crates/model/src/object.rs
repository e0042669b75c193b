//! Objects in the store: JSON with a schema version. A newer version is refused, so that an old agent never overwrites data
//! that it does not understand.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use types::{Mac, NodeName, NodeUid};

use crate::allocation::BlockAllocation;
use crate::fields::FieldError;
use crate::mesh::Transport;

/// The maximum size of a value that is parsed. A node record with 1,024 blocks has less than half of it.
pub const MAX_SIZE: usize = 128 << 10;
/// The maximum length of a reason, which may quote the value.
const MAX_REASON_LENGTH: usize = 200;
const MAX_VERSION_LENGTH: usize = 64;

/// Limits a parser's message, which may quote the value, for logs and terminals: short, without control characters.
pub(crate) fn bounded(reason: &str) -> String {
    let printed = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let mut text: String = reason.chars().take(MAX_REASON_LENGTH).map(printed).collect();
    if reason.chars().nth(MAX_REASON_LENGTH).is_some() {
        text.push('…');
    }
    text
}

/// The version is only displayed, so an invalid one does not invalidate the record.
fn version<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(text.chars().filter(char::is_ascii_graphic).take(MAX_VERSION_LENGTH).collect())
}

/// JSON with a schema version around the body of an object.
pub(crate) fn seal(kind: &str, schema: u32, body: &serde_json::Value) -> Vec<u8> {
    serde_json::json!({ "schema": schema, kind: body }).to_string().into_bytes()
}

/// The body of an object whose schema version is one of `schemas`.
pub(crate) fn open(
    kind: &'static str,
    schemas: RangeInclusive<u32>,
    bytes: &[u8],
) -> Result<serde_json::Value, DecodeError> {
    let unreadable = |reason: String| DecodeError::Unreadable { kind, reason: bounded(&reason) };
    if bytes.len() > MAX_SIZE {
        let size = bytes.len();
        return Err(unreadable(format!("it has {size} bytes; the maximum is {MAX_SIZE}")));
    }
    let mut value: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|e| unreadable(e.to_string()))?;
    match value.get("schema").and_then(serde_json::Value::as_u64) {
        None => return Err(unreadable("it has no schema version".to_owned())),
        Some(found) if found > u64::from(*schemas.end()) => {
            return Err(DecodeError::Newer { kind, found, known: *schemas.end() });
        }
        Some(found) if found < u64::from(*schemas.start()) => {
            return Err(DecodeError::Older { kind, found, oldest: *schemas.start() });
        }
        Some(_) => {}
    }
    Ok(value.get_mut(kind).map(serde_json::Value::take).unwrap_or_default())
}

/// An object that is written to the store and read from it. Objects of the catalog are a [`crate::ObjectRecord`], which keeps
/// fields of newer versions.
pub trait Object: Serialize + DeserializeOwned {
    /// The name of the kind in messages and in JSON.
    const KIND: &'static str;
    /// The version that this program writes, and the newest that it reads. A new optional field needs no new version: programs that
    /// do not know it ignore it.
    const SCHEMA: u32;
    /// The oldest version that this program reads.
    const OLDEST_SCHEMA: u32;

    fn encode(&self) -> Vec<u8> {
        // Objects contain names, addresses and lists, which always serialize.
        seal(Self::KIND, Self::SCHEMA, &serde_json::to_value(self).unwrap_or_default())
    }

    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let body = open(Self::KIND, Self::OLDEST_SCHEMA..=Self::SCHEMA, bytes)?;
        let unreadable = |e: serde_json::Error| DecodeError::Unreadable {
            kind: Self::KIND,
            reason: bounded(&e.to_string()),
        };
        serde_json::from_value(body).map_err(unreadable)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error(
        "schema version {found} of a {kind} is newer than this podwire supports ({known}): update podwire"
    )]
    Newer { kind: &'static str, found: u64, known: u32 },
    /// Of the time before the first release. It is not migrated.
    #[error("schema version {found} of a {kind} is older than this podwire supports ({oldest})")]
    Older { kind: &'static str, found: u64, oldest: u32 },
    #[error("a {kind} cannot be read: {reason}")]
    Unreadable { kind: &'static str, reason: String },
    #[error("a {kind} is invalid: {source}")]
    Field { kind: &'static str, source: FieldError },
}

impl DecodeError {
    /// Written by a newer version, so it must not be overwritten.
    pub fn is_newer(&self) -> bool {
        matches!(self, Self::Newer { .. })
    }

    /// Written by another version. The value is neither used nor overwritten.
    pub fn is_of_other_version(&self) -> bool {
        match self {
            Self::Newer { .. } | Self::Older { .. } => true,
            Self::Unreadable { .. } | Self::Field { .. } => false,
        }
    }
}

/// Settings that all nodes must agree on: those of the default network and of the tunnels. The first node writes them, the others compare them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkSpec {
    /// One, or one per family.
    pub subnets: Vec<IpNet>,
    /// The number of bits by which the prefix of a block is longer than its subnet's.
    pub margin: u8,
    /// VNI and port of the tunnels: a node with a different one drops the packets. The transport is not part of the settings,
    /// because every node accepts packets of both transports.
    pub vni: u32,
    pub vxlan_port: u16,
}

/// A node, without a lease. Other nodes route to its pods by this record. It exists until the node is removed permanently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub name: NodeName,
    pub uid: NodeUid,
    /// The addresses at which other nodes reach it: at most one per family.
    pub addresses: Vec<IpAddr>,
    pub blocks: BlockAllocation,
    /// The MAC of its tunnel devices.
    pub tunnel_mac: Mac,
    /// The MACs of the links with its addresses. Other nodes accept packets of its pods only from these, or through the tunnel. None:
    /// they do not check it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub macs: Vec<Mac>,
    /// The version of podwire. Printable and short.
    #[serde(deserialize_with = "version")]
    pub version: String,
    /// How it sends to other nodes. A node with direct transport creates a tunnel only for nodes that need one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
}

impl NodeRecord {
    /// The address of the same family as this network.
    pub fn address_for(&self, network: &IpNet) -> Option<IpAddr> {
        let is_v4 = matches!(network, IpNet::V4(_));
        self.addresses.iter().copied().find(|address| address.is_ipv4() == is_v4)
    }
}

/// The owner of a block. The key contains the block, so there can be only one claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockClaim {
    pub node: NodeName,
}

/// A heartbeat with a lease: an agent is running. The status and the detection of name conflicts use it. Routes do not depend on
/// it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliveRecord {
    pub uid: NodeUid,
    /// Seconds since 1970, by the clock of that node.
    pub since: u64,
}

impl Object for NetworkSpec {
    const KIND: &'static str = "network";
    const SCHEMA: u32 = 2;
    const OLDEST_SCHEMA: u32 = 2;
}

impl Object for NodeRecord {
    const KIND: &'static str = "node";
    const SCHEMA: u32 = 2;
    const OLDEST_SCHEMA: u32 = 2;
}

impl Object for BlockClaim {
    const KIND: &'static str = "claim";
    const SCHEMA: u32 = 2;
    const OLDEST_SCHEMA: u32 = 2;
}

impl Object for AliveRecord {
    const KIND: &'static str = "alive";
    const SCHEMA: u32 = 1;
    const OLDEST_SCHEMA: u32 = 1;
}

#[cfg(test)]
mod tests {
    use types::NetworkRef;

    use super::*;

    fn record() -> NodeRecord {
        NodeRecord {
            name: "n1".try_into().unwrap(),
            uid: NodeUid::from_random([7; 16]),
            addresses: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            blocks: BlockAllocation::from_iter([
                (NetworkRef::default(), "10.2.3.0/24".parse().unwrap()),
                (NetworkRef::try_from("blue.front".to_owned()).unwrap(), "fd00:2:0:3::/72".parse().unwrap()),
            ]),
            tunnel_mac: Mac::local([1, 2, 3, 4, 5]),
            macs: Vec::new(),
            version: "0.1.0".to_owned(),
            transport: Some(Transport::Vxlan),
        }
    }

    #[test]
    fn a_record_round_trips() {
        let bytes = record().encode();
        assert_eq!(NodeRecord::decode(&bytes), Ok(record()));
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains(r#""schema":2"#), "{text}");
        assert!(
            text.contains(
                r#""blocks":{"blue.front":["fd00:2:0:3::/72"],"default.default-net":["10.2.3.0/24"]"#
            ),
            "{text}"
        );
    }

    #[test]
    fn a_newer_or_older_schema_is_refused() {
        let newer = NodeRecord::decode(br#"{"schema":3,"node":{}}"#).unwrap_err();
        assert!(newer.is_newer() && newer.is_of_other_version());
        let older = NodeRecord::decode(br#"{"schema":1,"node":{}}"#).unwrap_err();
        assert!(older.is_of_other_version() && !older.is_newer());
        assert_eq!(older.to_string(), "schema version 1 of a node is older than this podwire supports (2)");
    }

    #[test]
    fn d_versions_with_and_without_an_added_field_read_the_same_record() {
        // An agent that does not know a field uses the record without it.
        let mut json: serde_json::Value = serde_json::from_slice(&record().encode()).unwrap();
        json["node"]["encryption"] = serde_json::json!({ "key": "abc" });
        assert_eq!(NodeRecord::decode(json.to_string().as_bytes()), Ok(record()));
        // `transport` was added as an optional field: a record without it is valid, and it is not written if it is not set.
        json["node"].as_object_mut().unwrap().remove("transport");
        let before = NodeRecord { transport: None, ..record() };
        assert_eq!(NodeRecord::decode(json.to_string().as_bytes()), Ok(before.clone()));
        assert!(!String::from_utf8(before.encode()).unwrap().contains("transport"));
        let more = br#"{"schema":2,"color":"red","claim":{"node":"n1","since":5}}"#;
        assert_eq!(BlockClaim::decode(more).unwrap().node.as_str(), "n1");
    }

    #[test]
    fn invalid_objects_are_reported() {
        for bad in
            ["", "{}", "[]", "10.2.3.0/24", r#"{"schema":2}"#, r#"{"schema":2,"claim":{"node":"a/b"}}"#]
        {
            let error = BlockClaim::decode(bad.as_bytes()).unwrap_err();
            assert!(!error.is_newer() && error.to_string().starts_with("a claim cannot be read"), "{error}");
        }
    }

    #[test]
    fn hostile_values_are_refused_with_a_short_printable_reason() {
        let nested = format!(r#"{{"schema":2,"node":{}{}}}"#, "[".repeat(50_000), "]".repeat(50_000));
        let mut many: serde_json::Value = serde_json::from_slice(&record().encode()).unwrap();
        many["node"]["addresses"] = vec!["192.0.2.1"; 20_000].into();
        let with = |field: &str, value: &str| {
            let mut json: serde_json::Value = serde_json::from_slice(&record().encode()).unwrap();
            json["node"][field] = value.into();
            json.to_string()
        };
        for hostile in [
            nested,
            many.to_string(),
            format!("\"{}\"", "x".repeat(10 << 20)),
            r#"{"schema":1e400,"node":{}}"#.to_owned(),
            r#"{"schema":18446744073709551616,"node":{}}"#.to_owned(),
            r#"{"schema":-1,"node":{}}"#.to_owned(),
            with("name", &"n".repeat(100_000)),
            with("transport", "\u{1b}]0;title\u{7}"),
            with("tunnel_mac", "00:00:00:00:00:00"),
            with("tunnel_mac", "ff:ff:ff:ff:ff:ff"),
            with("uid", "\u{1b}[2J"),
        ] {
            let error = NodeRecord::decode(hostile.as_bytes()).unwrap_err().to_string();
            assert!(error.len() < 700 && !error.contains(char::is_control), "{error:?}");
        }
        let decoded =
            NodeRecord::decode(with("version", &format!("\u{1b}[31m{}", "9".repeat(500))).as_bytes());
        let version = decoded.unwrap().version;
        assert!(version.len() == 64 && version.starts_with("[31m999"), "{version:?}");
    }

    #[test]
    fn the_address_has_the_family_of_the_network() {
        let v6: IpNet = "fd00::/64".parse().unwrap();
        assert_eq!(record().address_for(&v6), Some("2001:db8::1".parse().unwrap()));
        assert_eq!(NodeRecord { addresses: Vec::new(), ..record() }.address_for(&v6), None);
    }
}
