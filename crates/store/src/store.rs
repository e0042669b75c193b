//! The public interface. It validates calls and passes them to the backend.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::StoreConfig;
use crate::embedded::{Embedded, EmbeddedWatch};
use crate::error::{Error, Operation};
use crate::etcd::{EtcdBackend, EtcdWatch};
use crate::types::{Change, CommitOutcome, Compare, Entry, LeaseId, LeaseState, Listing, Watched};
use crate::{Result, check};

/// The default timeout of a call.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// A handle. Clones share one connection.
#[derive(Debug, Clone)]
pub struct Store {
    backend: Backend,
    deadline: Duration,
}

#[derive(Debug, Clone)]
enum Backend {
    Embedded(Arc<Embedded>),
    Etcd(Arc<EtcdBackend>),
}

/// One call: its operation and its deadline.
#[derive(Debug, Clone)]
pub(crate) struct StoreCall {
    pub(crate) operation: Operation,
    pub(crate) deadline: Instant,
    pub(crate) timeout: Duration,
}

impl StoreCall {
    pub(crate) fn timed_out(&self, store: String) -> Error {
        Error::Timeout { operation: self.operation.clone(), store, waited: self.timeout }
    }
}

impl Store {
    /// Validates the configuration. The server need not be running yet.
    pub fn open(config: &StoreConfig) -> Result<Self> {
        let backend = match config {
            StoreConfig::Embedded { dir } => Backend::Embedded(Arc::new(Embedded::open(dir)?)),
            StoreConfig::Etcd(config) => Backend::Etcd(Arc::new(EtcdBackend::open(config)?)),
        };
        Ok(Self { backend, deadline: DEADLINE })
    }

    /// The same store with another timeout for each call.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { backend: self.backend.clone(), deadline }
    }

    /// `etcd at https://a:2379, https://b:2379`, `directory /var/lib/podwire/store`
    pub fn describe(&self) -> String {
        match &self.backend {
            Backend::Embedded(embedded) => embedded.describe(),
            Backend::Etcd(etcd) => etcd.describe(),
        }
    }

    /// The directory of an embedded store.
    pub fn directory(&self) -> Option<&std::path::Path> {
        match &self.backend {
            Backend::Embedded(embedded) => Some(embedded.directory()),
            Backend::Etcd(_) => None,
        }
    }

    fn call(&self, verb: &'static str, object: impl Into<String>) -> StoreCall {
        let operation = Operation::new(verb, object);
        StoreCall { operation, deadline: Instant::now() + self.deadline, timeout: self.deadline }
    }

    pub async fn get(&self, key: &str) -> Result<Option<Entry>> {
        let call = self.call("read", key);
        check::key(&call.operation, key)?;
        match &self.backend {
            Backend::Embedded(embedded) => embedded.get(&call, key).await,
            Backend::Etcd(etcd) => etcd.get(&call, key).await,
        }
    }

    /// All entries below a directory, which ends with a slash.
    pub async fn list(&self, prefix: &str) -> Result<Listing> {
        let call = self.call("list", prefix);
        check::directory(&call.operation, prefix)?;
        match &self.backend {
            Backend::Embedded(embedded) => embedded.list(&call, prefix).await,
            Backend::Etcd(etcd) => etcd.list(&call, prefix).await,
        }
    }

    /// All keys below a directory, without values.
    pub async fn keys(&self, prefix: &str) -> Result<Vec<String>> {
        let call = self.call("list keys of", prefix);
        check::directory(&call.operation, prefix)?;
        match &self.backend {
            Backend::Embedded(embedded) => embedded.keys(&call, prefix).await,
            Backend::Etcd(etcd) => etcd.keys(&call, prefix).await,
        }
    }

    /// Applies all changes if all compares hold, otherwise none.
    pub async fn commit(&self, compares: &[Compare], changes: &[Change]) -> Result<CommitOutcome> {
        let object = match changes {
            [] => "nothing".to_owned(),
            [one] => one.key().to_owned(),
            [first, others @ ..] => format!("{} and {} more", first.key(), others.len()),
        };
        let call = self.call("write", object);
        check::commit(&call.operation, compares, changes)?;
        match &self.backend {
            Backend::Embedded(embedded) => embedded.commit(&call, compares, changes).await,
            Backend::Etcd(etcd) => etcd.commit(&call, compares, changes).await,
        }
    }

    /// Increments a counter with a single write, and returns its previous value, starting with 0. A failed call may have
    /// incremented it.
    pub async fn put_counter(&self, key: &str) -> Result<u64> {
        let call = self.call("increment", key);
        check::key(&call.operation, key)?;
        match &self.backend {
            Backend::Embedded(embedded) => embedded.put_counter(&call, key).await,
            Backend::Etcd(etcd) => etcd.put_counter(&call, key).await,
        }
    }

    /// Watches a directory for changes from this revision on.
    pub async fn watch(&self, prefix: &str, from: u64) -> Result<Watch> {
        let call = self.call("watch", prefix);
        check::directory(&call.operation, prefix)?;
        Ok(Watch(match &self.backend {
            Backend::Embedded(embedded) => Watching::Embedded(embedded.watch(&call, prefix, from).await?),
            Backend::Etcd(etcd) => Watching::Etcd(Box::new(etcd.watch(&call, prefix, from).await?)),
        }))
    }

    /// Grants a lease that expires unless it is renewed within `ttl`. The store may use a longer time.
    pub async fn grant(&self, ttl: Duration) -> Result<LeaseId> {
        let call = self.call("grant", format!("a lease of {} s", ttl.as_secs_f64()));
        match &self.backend {
            Backend::Embedded(embedded) => embedded.grant(&call, ttl).await,
            Backend::Etcd(etcd) => etcd.grant(&call, ttl).await,
        }
    }

    pub async fn keep_alive(&self, lease: LeaseId) -> Result<LeaseState> {
        let call = self.call("keep alive", format!("lease {lease}"));
        match &self.backend {
            Backend::Embedded(embedded) => embedded.keep_alive(&call, lease).await,
            Backend::Etcd(etcd) => etcd.keep_alive(&call, lease).await,
        }
    }

    /// Ends a lease and removes its keys. An expired lease is not an error.
    pub async fn revoke(&self, lease: LeaseId) -> Result<()> {
        let call = self.call("revoke", format!("lease {lease}"));
        match &self.backend {
            Backend::Embedded(embedded) => embedded.revoke(&call, lease).await,
            Backend::Etcd(etcd) => etcd.revoke(&call, lease).await,
        }
    }
}

/// An open watch. It ends when it is dropped.
#[derive(Debug)]
pub struct Watch(Watching);

#[derive(Debug)]
enum Watching {
    Embedded(EmbeddedWatch),
    Etcd(Box<EtcdWatch>),
}

impl Watch {
    /// Asks whether the watch works and is complete. If so, [`Watched::Current`] follows.
    pub async fn request_progress(&mut self) -> Result<()> {
        match &mut self.0 {
            Watching::Embedded(watch) => {
                watch.request_progress();
                Ok(())
            }
            Watching::Etcd(watch) => watch.request_progress().await,
        }
    }

    /// Waits for the next events. Can be cancelled and called again without losing events. After an error the watch has ended:
    /// list again, and watch from that revision.
    pub async fn next(&mut self) -> Result<Watched> {
        match &mut self.0 {
            Watching::Embedded(watch) => watch.next().await,
            Watching::Etcd(watch) => watch.next().await,
        }
    }
}
