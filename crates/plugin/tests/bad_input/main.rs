//! Invalid input and faults of the node. Each must return the right code and an error with a fix, and must not change the node,
//! the pod and the run directory. Needs root.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test, also in helpers")]

#[path = "../common/mod.rs"]
mod common;
mod config;
mod kernel;
mod mounts;
mod netns;
mod ranges;
mod run_dir;
mod special_files;
mod stdin;
#[path = "../common/watch.rs"]
mod watch;
