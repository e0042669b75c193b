//! The firewall against the real kernel. Needs root and the programs nft, ip and conntrack.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod accepting;
mod clamping;
mod common;
mod dropping;
mod forgetting;
mod healing;
mod lab;
mod limiting;
mod listening;
mod membership;
mod nat;
mod peers;
mod policy;
mod pruning;
mod spoofing;
mod surplus;
