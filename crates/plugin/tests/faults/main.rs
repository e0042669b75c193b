//! Kills, races and lost state. After a fault the next call must recover, and no state may remain at the end. `PODWIRE_SOAK=1`
//! (`make soak`) runs more rounds. `PODWIRE_SEED` repeats the random numbers of a run. Needs root.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test, also in helpers")]

#[path = "../common/mod.rs"]
mod common;
mod destroyed_pods;
mod kills;
mod leaks;
mod lost_state;
mod orphans;
mod races;
mod scene;
mod syscalls;
