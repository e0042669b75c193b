//! The store in an etcd cluster.
//!
//! ```text
//!   calls ──► ask (tries again what is safe to do again, until the deadline) ──► connect: one connection, made when needed
//!   watch ──► a stream on that connection                                        failure: what an error of etcd means
//! ```
//!
//! Nothing is polled. A node that is idle costs etcd its watches and one keep-alive of its lease now and then.

mod ask;
mod backoff;
mod calls;
mod connect;
mod failure;
mod target;
mod watch;

use crate::Result;
use crate::config::EtcdConfig;
use connect::EtcdConnector;

pub(crate) use watch::EtcdWatch;

#[derive(Debug)]
pub(crate) struct EtcdBackend {
    link: EtcdConnector,
}

impl EtcdBackend {
    pub(crate) fn open(config: &EtcdConfig) -> Result<Self> {
        Ok(Self { link: EtcdConnector::new(config)? })
    }

    pub(crate) fn describe(&self) -> String {
        self.link.describe()
    }
}
