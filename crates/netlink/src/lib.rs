//! Access to the kernel: a synchronous rtnetlink socket with typed calls, and network namespaces.
//!
//! ```text
//!   engine ── Op, links_by_name, dumps ──▶ RtSocket ─┐
//!   nft ───── its own messages ──────────────────────┴▶ Socket ──▶ kernel
//!   agent ─── Monitor (changes on the node and in pods), PeerMonitor (routes to other nodes) ─▶ Socket
//!   agent ─── Ethtool (checksum offload) ─▶ Socket
//!   engine ── NetNs::run, RtSocket::open_in ──▶ netns.rs (the only file that calls setns)
//! ```
//!
//! ADD and DEL need one send and one read per namespace. Requests are written into one reused buffer. Every request has its
//! own sequence number, by which answers are matched. Dumps are for CHECK, sweeps and tests.
//! The types of the netlink-packet crates are private; callers use `types`, `ipnet` and the types of this crate.
//! The crate accesses the kernel's network configuration only: no files, no processes, no clock.

mod deletion;
mod display;
mod dump;
mod encode;
mod error;
mod ethtool;
mod exchange;
mod header;
mod kernel;
mod listener;
mod lookup;
mod monitor;
mod netns;
mod op;
mod peers;
mod rtsocket;
mod socket;
mod view;
mod vxlan;
pub mod wire;

pub use deletion::{delete_link_early, pending_deletions, was_deleted_by_this_process};
pub use dump::RouteFilter;
pub use error::Error;
pub use ethtool::Ethtool;
pub use exchange::Dump;
pub use monitor::{EventNamespace, LinkEvent, Monitor};
pub use netns::{NetNs, NetNsError};
pub use op::{
    AddAddress, AddBridge, AddNeighbour, AddTbf, AddVxlan, Fdb, LinkRef, Mode, Op, QdiscAt, Route, RouteKind,
    RouteScope, SetLink, Tbf, Veth,
};
pub use peers::{PeerEvent, PeerMonitor};
pub use rtsocket::RtSocket;
pub use socket::{Content, NetlinkProtocol, Refusal, Reply, Socket};
pub use types::Family;
pub use view::{Address, Link, Neighbour, Qdisc, RouteLookup, RouteMatch, Vxlan};
