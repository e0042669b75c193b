//! Tests of the embedded store only: its owner, kills, corruption, and a full disk.

mod child;
mod compaction;
mod corruption;
mod full;
mod processes;

use std::path::Path;

use store::{Store, StoreConfig};

pub(crate) fn open(dir: &Path) -> Store {
    Store::open(&StoreConfig::Embedded { dir: dir.to_owned() }).unwrap()
}
