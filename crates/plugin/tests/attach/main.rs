//! ADD, CHECK, DEL and GC of the real plugin against the real kernel, one thing at a time. Needs root.

#![expect(clippy::unwrap_used, reason = "a test ends at its first surprise, in helpers as well")]

mod check;
#[path = "../common/mod.rs"]
mod common;
mod failing;
mod gc;
mod identity;
mod leaving;
mod neighbours;
mod network;
mod overlap;
mod sysctls;
mod wishes;
