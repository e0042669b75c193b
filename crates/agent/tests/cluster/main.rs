//! Tests with several nodes: real agents in namespaces, a real etcd, and faults of each. In all cases, pods that can physically
//! reach each other keep reaching each other. Needs root.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;
mod network;
mod networks;
mod policies;
mod section_a;
mod store;
