#![expect(clippy::unwrap_used, reason = "a test ends at its first surprise, in helpers as well")]
#[path = "../cluster/common.rs"]
mod common;
#[path = "../cluster/network.rs"]
mod network;
