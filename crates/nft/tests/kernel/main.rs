//! The firewall against the real kernel. Needs root and the programs nft, ip and conntrack.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;
mod connection_limit;
mod conntrack;
mod dscp;
mod lab;
mod monitor;
mod mss_clamp;
mod nat;
mod peers;
mod pods;
mod policies;
mod policy;
mod prune;
mod repair;
mod spoofing;
mod surplus;
mod unmanaged_accept;
mod unmanaged_drops;
