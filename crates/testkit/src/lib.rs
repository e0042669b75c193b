//! For tests and the benchmark only. Re-exports the lab and adds fault injection (a kill at a given time or at any system call),
//! traffic and servers, forged frames, the reference plugins and a DHCP server.
//!
//! ```text
//!   trace::kill_at_syscall(&plugin, &node, &call, n) ─► a call that is killed at its n-th system-call stop
//!   tcp_echo, tcp_connects, PingStream, PacketSocket ─► traffic, and which packets arrive
//! ```
//!
//! No program that ships depends on this crate (`tools/arrows`).

mod dhcp;
pub mod docs;
mod echo;
pub mod frames;
mod packet;
mod plugin;
mod probe;
mod random;
mod stream;
pub mod trace;

pub use dhcp::{DHCP_SERVER, Dhcp};
pub use echo::{Echo, tcp_echo, udp_echo};
pub use lab::*;
pub use packet::PacketSocket;
pub use plugin::{call_contained, call_killed_after, copy_program, reference_plugin};
pub use probe::{tcp_connects, udp_connects};
pub use random::{Random, is_soak};
pub use stream::{PingStream, StreamReport};
