//! Agent mode: requests to the agent, its answers, retries and tombstones. The agent is a fake with scripted replies; tests of
//! the real agent are in `crates/agent`. Also tests the journal and the `loopback` plugin. Needs root.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test, also in helpers")]

mod answers;
#[path = "../common/mod.rs"]
mod common;
mod fake_agent;
mod journal;
mod loopback;
mod retries;
mod tombstones;
#[expect(dead_code, reason = "only a part of the shared helpers is used here")]
#[path = "../common/watch.rs"]
mod watch;
