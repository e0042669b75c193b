//! `podwire lab`: creation, status, faults and removal. Needs root and etcd.
#![expect(clippy::unwrap_used, reason = "test helpers panic like tests")]

mod common;
mod edges;
mod killed;
mod leftovers;
mod life;
