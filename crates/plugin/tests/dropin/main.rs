//! Compatibility with the reference plugins: configs have the same meaning, and their IPAM plugins can be used. Needs root and
//! the reference plugins.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test, also in helpers")]

#[path = "../common/mod.rs"]
mod common;
mod delegation;
mod dhcp;
mod layer2;
mod reference;
mod release;
mod summary;
