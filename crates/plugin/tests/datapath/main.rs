//! What really arrives where, under which address: C8, hostPorts, bandwidth, spoofing, conntrack. Needs root.
//!
//! ```text
//!   pods ─ n1 ── up0 192.0.2.1, 2001:db8::1 ─────── 192.0.2.2, 2001:db8::2 eth0 ── out
//! ```

#![expect(clippy::unwrap_used, reason = "a test ends at its first surprise, in helpers as well")]

mod bandwidth;
#[path = "../common/mod.rs"]
mod common;
mod firewall;
mod flows;
mod frames;
mod hostports;
mod reach;
mod service;
mod spoofing;
mod world;
