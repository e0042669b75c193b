//! Beside the reference plugins: what their users write means the same here, and their IPAM plugins can be used. Needs root
//! and the reference plugins.

#![expect(clippy::unwrap_used, reason = "a test ends at its first surprise, in helpers as well")]

#[path = "../common/mod.rs"]
mod common;
mod delegation;
mod dhcp;
mod layer2;
mod picture;
mod releases;
mod twins;
