//! The store in an etcd cluster.
//!
//! ```text
//!   calls ──► request (retries what is safe to retry, until the deadline) ──► connect: one connection, opened when needed
//!   watch ──► a stream on that connection                                     failure: classifies errors of etcd
//! ```
//!
//! Nothing is polled. An idle node costs etcd its watches and a periodic keep-alive of its lease.

mod backoff;
mod calls;
mod connect;
mod failure;
mod request;
mod target;
mod watch;

use crate::Result;
use crate::config::EtcdConfig;
use connect::EtcdConnector;

pub(crate) use failure::Reason;
pub(crate) use watch::EtcdWatch;

#[derive(Debug)]
pub(crate) struct EtcdBackend {
    connector: EtcdConnector,
}

impl EtcdBackend {
    pub(crate) fn open(config: &EtcdConfig) -> Result<Self> {
        Ok(Self { connector: EtcdConnector::new(config)? })
    }

    pub(crate) fn describe(&self) -> String {
        self.connector.describe()
    }
}
