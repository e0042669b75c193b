//! Repairs by the real agent: removed objects are restored, orphaned ones are collected, unmanaged ones are kept, and all of it
//! is reported. The agents have a reconcile interval of one hour, so that only an event can cause a round, unless a test sets
//! another interval.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[path = "../common/mod.rs"]
mod common;

mod addressing;
mod collection;
mod conditions;
mod fault_detection;
mod forward_chains;
mod idle_rounds;
mod inspection;
mod load;
mod objects;
mod orphaned_links;
mod orphans;
mod overlap;
mod scene;
mod sysctls;
mod tables;
