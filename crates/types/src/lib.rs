//! Ids, names and keys. External input is parsed into these types once, at the edge, and is valid afterwards.
//!
//! Pure: no I/O, no clock, no runtime. Every crate may depend on it. It depends on no other crate of Podwire.

#![forbid(unsafe_code)]

mod closest;
pub mod condition;
mod family;
mod fix;
mod hash;
mod key;
mod mac;
mod mode;
mod name;
mod peer;
mod placement;
mod protocol;
mod special;
mod subnet;
mod text;

pub use closest::closest;
pub use condition::{Code, Finding, Severity};
pub use family::Family;
pub use fix::Fix;
pub use hash::Digest;
pub use key::AttachmentKey;
pub use mac::{Mac, MacError};
pub use mode::AttachMode;
pub use name::{
    ContainerId, GroupName, IfName, NameError, NetworkId, NetworkName, NodeName, NodeUid, RequestId,
    TenantName,
};
pub use peer::PeerSource;
pub use placement::{DEFAULT_NETWORK, DEFAULT_TENANT, NetworkRef, Placement};
pub use protocol::{Protocol, ProtocolError};
pub use special::Special;
pub use subnet::{DEFAULT_SUBNET_V4, DEFAULT_SUBNET_V6, DEFAULT_SUBNETS};
use text::shell_word;
pub use text::{cause, count, one_line, printable, printable_json};

/// The route protocol number of managed routes and neighbours of pods (`ip route show proto 112`).
pub const ROUTE_PROTOCOL: u8 = 112;
/// The route protocol number of managed routes and neighbours of peers (`ip route show proto 113`).
pub const PEER_PROTOCOL: u8 = 113;
/// RT_TABLE_MAIN: the default routing table.
pub const TABLE_MAIN: u32 = 254;
/// The smallest MTU that IPv6 allows on a link (RFC 8200, section 5).
pub const MIN_MTU_V6: u32 = 1280;
/// The smallest MTU that IPv4 allows on a link (RFC 791).
pub const MIN_MTU_V4: u32 = 68;
/// The largest MTU that a veth accepts.
pub const MAX_MTU: u32 = 65_535;
