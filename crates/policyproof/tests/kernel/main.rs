//! The engine in a real kernel: what the kernel lists, and what it does with real connections. Needs root and the programs nft and
//! ip.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[path = "../common/mod.rs"]
mod common;
mod connections;
mod listed;
mod listing;
mod node;
mod probes;
mod site;
