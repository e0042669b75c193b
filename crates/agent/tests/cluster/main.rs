//! Many nodes: real agents on namespaces, a real etcd, and what may go wrong with each. Whatever happens, pods that can
//! physically reach each other keep reaching each other. Needs root.

#![expect(clippy::unwrap_used, reason = "a test ends at its first surprise, in helpers as well")]

mod common;
mod network;
mod section_a;
mod store;
