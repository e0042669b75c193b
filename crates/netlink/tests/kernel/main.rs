//! The crate against a real kernel, in namespaces of its own. Needs root.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod deletion;
mod ethtool;
mod ip;
mod link;
mod monitor;
mod netns;
mod peers;
mod tc;
mod vxlan;
mod world;
