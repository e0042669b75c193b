//! Configuration of a store.

use std::fmt;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreConfig {
    /// A local directory. It is created if it does not exist.
    Embedded {
        dir: PathBuf,
    },
    Etcd(EtcdConfig),
}

#[derive(Clone, Default, PartialEq, Eq)]
pub struct EtcdConfig {
    /// `https://host:2379` or `http://host:2379`. `host:2379` means https if a CA or a certificate is set, otherwise http.
    pub endpoints: Vec<String>,
    /// CA bundle (PEM) for the servers' certificates. None: system trust store. All files are read for every connection.
    pub ca: Option<PathBuf>,
    /// Client certificate and key (PEM).
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub user: Option<String>,
    pub password: Option<String>,
    /// Whether user and password may be sent over http.
    pub insecure: bool,
}

/// Omits the password, so that it is never logged.
impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("endpoints", &self.endpoints)
            .field("ca", &self.ca)
            .field("cert", &self.cert)
            .field("key", &self.key)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "…"))
            .field("insecure", &self.insecure)
            .finish()
    }
}
