//! Faults and bad input: each is the right code and a sentence that says what to change, and each leaves the node, the pod
//! and the state directory as they were. Needs root.

#![expect(clippy::unwrap_used, reason = "a test ends at its first surprise, in helpers as well")]

#[path = "../common/mod.rs"]
mod common;
mod config;
mod disk;
mod kernel;
mod mounts;
mod netns;
mod ranges;
mod special;
mod stdin;
#[path = "../common/watch.rs"]
mod watch;
