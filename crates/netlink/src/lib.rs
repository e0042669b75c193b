//! Talks to the kernel: a synchronous rtnetlink socket with typed calls, and network namespaces.
//!
//! ```text
//!   engine ── Op, links_by_name, dumps ──▶ RtSocket ─┐
//!   nft ───── its own messages ──────────────────────┴▶ Socket ──▶ kernel
//!   agent ─── Monitor (what changes, here and in pods), PeerMonitor (what leads to other nodes) ─▶ Socket
//!   agent ─── Ethtool (checksum offload) ─▶ Socket
//!   engine ── NetNs::run, RtSocket::open_in ──▶ netns.rs (the only file that calls setns)
//! ```
//!
//! On the way of a pod everything is one send and one read per namespace: requests are written into one reused buffer,
//! every request has its own sequence number, answers are matched by it. Dumps are for CHECK, sweeps and tests.
//! The types of the netlink-packet crates stay inside; callers see `types`, `ipnet` and what is defined here.
//! It touches the kernel's network configuration and nothing else: no files, no processes, no clock.

mod deletion;
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
mod words;

pub use deletion::{delete_link_early, deletions_under_way, was_deleted_here};
pub use dump::RouteFilter;
pub use error::Error;
pub use ethtool::Ethtool;
pub use exchange::Dump;
pub use monitor::{LinkEvent, Monitor, Where};
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
