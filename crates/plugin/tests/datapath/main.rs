//! Traffic tests: reachability and masquerade (C8), host ports, bandwidth limits, source check and conntrack. Needs root.
//!
//! ```text
//!   pods ─ n1 ── up0 192.0.2.1, 2001:db8::1 ─────── 192.0.2.2, 2001:db8::2 eth0 ── out
//! ```

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test, also in helpers")]

mod bandwidth;
#[path = "../common/mod.rs"]
mod common;
mod firewall;
mod flows;
mod frames;
mod hostports;
mod probes;
mod reachability;
mod service;
mod spoofing;
