//! The CNI protocol of the real plugin: environment, stdin, stdout, exit code and log. Needs root.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test, also in helpers")]

#[path = "../common/mod.rs"]
mod common;
mod config;
mod environment;
mod log;
mod process;
mod results;
mod status;
#[path = "../common/watch.rs"]
mod watch;
