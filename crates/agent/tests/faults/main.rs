//! Faults of the agent and its clients: kills, upgrades, lost files and floods of requests. In all cases running pods keep their
//! network, the next request is served, and nothing leaks. Longer with `PODWIRE_SOAK=1` (`make soak`). `PODWIRE_SEED` repeats
//! a run with the same random times. Needs root.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod blocking_ipam;
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod cycles;
mod delegates;
mod files;
mod hostile;
mod kills;
mod load;
mod raw;
mod removed_namespaces;
mod sandbox;
mod signals;
mod special_files;
mod state;
mod tombstones;
mod upgrade;
