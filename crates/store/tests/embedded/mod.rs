//! What is special to the embedded store: its owner, kills, damage, and a disk that is full.

mod child;
mod compaction;
mod damage;
mod full;
mod processes;

use std::path::Path;

use store::{Store, StoreConfig};

pub(crate) fn open(dir: &Path) -> Store {
    Store::open(&StoreConfig::Embedded { dir: dir.to_owned() }).unwrap()
}
