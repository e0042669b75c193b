//! Kills, races, losses: whatever happens to the plugin or around it, the next call finds its way, and in the end nothing
//! is left. Longer with `PODWIRE_SOAK=1` (`make soak`); `PODWIRE_SEED` repeats a run with the same moments. Needs root.

#![expect(clippy::unwrap_used, reason = "a test ends at its first surprise, in helpers as well")]

#[path = "../common/mod.rs"]
mod common;
mod kills;
mod leaks;
mod losses;
mod orphans;
mod races;
mod scene;
mod syscalls;
mod vanished;
