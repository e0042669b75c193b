//! Tests of etcd only: outages, authentication, and several members.

pub(crate) mod access;
mod members;
mod outage;

use store::{EtcdConfig, Store, StoreConfig};

use crate::common::Etcd;

pub(crate) fn config(servers: &[&Etcd]) -> EtcdConfig {
    EtcdConfig { endpoints: servers.iter().map(|server| server.url()).collect(), ..EtcdConfig::default() }
}

pub(crate) fn open(config: &EtcdConfig) -> Store {
    Store::open(&StoreConfig::Etcd(config.clone())).unwrap()
}
