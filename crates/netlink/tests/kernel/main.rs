//! Tests on a real kernel, in their own namespaces. Needs root.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod deletion;
mod ethtool;
mod ip;
mod link;
mod monitor;
mod netns;
mod peers;
mod tc;
mod testbed;
mod vxlan;
