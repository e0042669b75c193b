//! `podwire lab` as a person runs it: up, a look, faults, down, and nothing left. Needs root and etcd.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;
mod edges;
mod killed;
mod leftovers;
mod life;
