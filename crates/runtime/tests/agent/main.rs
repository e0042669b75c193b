//! The agent and a real containerd on one machine, with every path at its default: the agent installs itself, pods come
//! and go through the CRI, and each of the two is ended in every way while the other one and the pods live. Needs root.

#![expect(clippy::unwrap_used, reason = "a test ends at its first surprise, in helpers as well")]

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
