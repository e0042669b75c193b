//! The agent's life and its clients: killed, upgraded, robbed of its files, flooded; whatever happens, pods run on, the
//! next request is served, and in the end nothing is left. Longer with `PODWIRE_SOAK=1` (`make soak`); `PODWIRE_SEED`
//! repeats a run with the same moments. Needs root.

#![expect(clippy::unwrap_used, reason = "a test ends at its first surprise, in helpers as well")]

mod clients;
#[path = "../common/mod.rs"]
mod common;
mod cycles;
mod delegates;
mod files;
mod gate;
mod hostile;
mod kills;
mod load;
mod raw;
mod sandbox;
mod signals;
mod special;
mod state;
mod tombstones;
mod upgrade;
mod vanished;
