//! A store of one kind, with a separate directory for each test.

use std::sync::atomic::{AtomicU32, Ordering};

use store::{EtcdConfig, Store, StoreConfig};
use tempfile::TempDir;

use super::server::Etcd;

pub(crate) struct Testbed {
    pub(crate) store: Store,
    config: StoreConfig,
    directory: String,
    _dir: Option<TempDir>,
}

impl Testbed {
    pub(crate) fn embedded() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig::Embedded { dir: dir.path().join("a/store") };
        Self::new(config, Some(dir))
    }

    /// Uses an etcd that all tests of this process share.
    pub(crate) fn etcd() -> Self {
        let endpoints = vec![Etcd::shared().url()];
        Self::new(StoreConfig::Etcd(EtcdConfig { endpoints, ..EtcdConfig::default() }), None)
    }

    fn new(config: StoreConfig, dir: Option<TempDir>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let directory = format!("/test{}", COUNT.fetch_add(1, Ordering::Relaxed));
        Self { store: Store::open(&config).unwrap(), config, directory, _dir: dir }
    }

    /// A second client.
    pub(crate) fn second_client(&self) -> Store {
        match &self.config {
            // The embedded store has a single owner.
            StoreConfig::Embedded { .. } => self.store.clone(),
            StoreConfig::Etcd(_) => Store::open(&self.config).unwrap(),
        }
    }

    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }
}
