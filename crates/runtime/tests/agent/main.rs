//! The agent and a real containerd on one machine with default paths. The agent installs the plugin, the CRI adds and removes
//! pods, and the agent and containerd are stopped and killed while pods are running. Needs root.

#![expect(clippy::unwrap_used, reason = "a test stops at the first error, also in helper functions")]

mod absence;
#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod directories;
mod files;
mod killed;
mod pods;
mod restarts;
mod site;
mod stream;
mod upgrade;
