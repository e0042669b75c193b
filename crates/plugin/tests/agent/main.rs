//! Agent mode as the protocol between plugin and agent: what is asked, what each answer becomes, what happens when none
//! comes. The agent is a stand-in that says what a test wants; the real one is tested elsewhere. Beside it the plugin's
//! other callers and readers: the journal, and the name `loopback`. Needs root.

#![expect(clippy::unwrap_used, reason = "a test ends at its first surprise, in helpers as well")]

mod answers;
#[path = "../common/mod.rs"]
mod common;
mod journal;
mod loopback;
mod retries;
mod standin;
mod tombstones;
#[expect(dead_code, reason = "what is watched here is little")]
#[path = "../common/watch.rs"]
mod watch;
