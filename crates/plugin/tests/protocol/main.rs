//! The CNI protocol as a runtime meets it: the real plugin's environment, stdin, stdout, exit status and log. Needs root.

#![expect(clippy::unwrap_used, reason = "a test ends at its first surprise, in helpers as well")]

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
