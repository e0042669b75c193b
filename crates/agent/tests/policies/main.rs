//! Policies of the real agent on one node: tenants, shares and groups decide which pods communicate, and the rules survive flushed
//! tables, changed links and agents that are killed.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[path = "../common/mod.rs"]
mod common;

mod drift;
mod faults;
mod groups;
mod objects;
mod profiles;
mod scene;
mod tenants;
