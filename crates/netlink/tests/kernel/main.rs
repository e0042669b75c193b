//! The crate against a real kernel, in namespaces of its own. Needs root.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod deletion;
mod ip;
mod link;
mod monitor;
mod netns;
mod tc;
mod world;
