//! Which store, and how to get at it.

use std::fmt;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreConfig {
    /// A directory of this machine, made if need be.
    Embedded {
        dir: PathBuf,
    },
    Etcd(EtcdConfig),
}

#[derive(Clone, Default, PartialEq, Eq)]
pub struct EtcdConfig {
    /// `https://host:2379`, `http://host:2379`; `host:2379` is https if there is a CA or a certificate, else http.
    pub endpoints: Vec<String>,
    /// PEM: who signs the servers' certificates; none: whom the system trusts. Files are read anew with every connection.
    pub ca: Option<PathBuf>,
    /// PEM: our certificate and its key.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub user: Option<String>,
    pub password: Option<String>,
    /// User and password may go over http.
    pub insecure: bool,
}

/// Without the password: it must not get into a log.
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
