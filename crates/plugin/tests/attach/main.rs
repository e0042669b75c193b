//! ADD, CHECK, DEL and GC of the real plugin with the real kernel, one feature per test. Needs root.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test, also in helpers")]

mod check;
#[path = "../common/mod.rs"]
mod common;
mod del;
mod failed_add;
mod gc;
mod identity;
mod neighbours;
mod network;
mod overlap;
mod requested;
mod sysctls;
