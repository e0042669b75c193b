//! Where etcd is and how to prove who we are: checked once, when the store is opened; certificates are read with every
//! connection, so that renewed ones are used without a restart.

use std::path::Path;
use std::time::Duration;

use etcd_client::ConnectOptions;
use tokio::task::spawn_blocking;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::failure::{EtcdFailure, Reason};
use crate::Result;
use crate::config::EtcdConfig;
use crate::error::Error;

/// One connection, up to the first answer.
pub(super) const CONNECT: Duration = Duration::from_secs(2);
/// A server that is silent for so long is asked whether it lives; etcd does not like to be asked more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(7);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// A large listing from far away should not wait for permission every 64 KiB.
const WINDOW: u32 = 4 << 20;

/// An endpoint, as a URL that is known to be one.
#[derive(Debug, Clone)]
pub(super) struct EtcdTarget {
    pub(super) url: String,
    endpoint: Endpoint,
    /// The name that its certificate must have, where it has one.
    tls_name: Option<String>,
}

fn wrong(problem: impl Into<String>) -> Error {
    Error::Config { problem: problem.into() }
}

pub(super) fn targets(config: &EtcdConfig) -> Result<Vec<EtcdTarget>> {
    if config.cert.is_some() != config.key.is_some() {
        return Err(wrong("a client certificate needs both its file and the file of its key"));
    }
    if config.user.is_some() != config.password.is_some() {
        return Err(wrong("etcd's user and password go together: set both or neither"));
    }
    if config.endpoints.is_empty() {
        return Err(wrong("no etcd endpoint is set"));
    }
    config.endpoints.iter().map(|text| target(text, config)).collect()
}

fn target(text: &str, config: &EtcdConfig) -> Result<EtcdTarget> {
    let url = match text.split_once("://") {
        None if config.ca.is_some() || config.cert.is_some() => format!("https://{text}"),
        None => format!("http://{text}"),
        Some(("http" | "https", _)) => text.to_owned(),
        Some((other, _)) => {
            return Err(wrong(format!(
                "the etcd endpoint {text} begins with {other}://, not https:// or http://"
            )));
        }
    };
    let is_tls = url.starts_with("https://");
    if !is_tls && config.ca.is_some() {
        return Err(wrong(format!("there is a CA, but the etcd endpoint {text} is not https://")));
    }
    if !is_tls && config.cert.is_some() {
        return Err(wrong(format!(
            "there is a client certificate, but the etcd endpoint {text} is not https://"
        )));
    }
    if !is_tls && config.user.is_some() && !config.insecure {
        return Err(wrong(format!(
            "user and password would go to the etcd endpoint {text} in clear text: use https://, or allow it with etcd.insecure"
        )));
    }
    let endpoint = Endpoint::from_shared(url.clone())
        .map_err(|_| wrong(format!("the etcd endpoint {text} is no URL like https://host:2379")))?;
    let uri = endpoint.uri();
    let host = uri.host().filter(|host| !host.is_empty() && uri.port().is_some());
    let host = host.ok_or_else(|| {
        wrong(format!("the etcd endpoint {text} needs a host and a port, like https://host:2379"))
    })?;
    let tls_name = is_tls.then(|| host.trim_start_matches('[').trim_end_matches(']').to_owned());
    let endpoint = endpoint
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        // etcd hangs up on whoever asks while nothing is under way.
        .keep_alive_while_idle(false);
    Ok(EtcdTarget { url, endpoint, tls_name })
}

impl EtcdTarget {
    /// Ready to connect, with the certificates as they are now. They are read on another thread: a slow disk delays neither a
    /// lease nor a watch.
    pub(super) async fn endpoint(&self, config: &EtcdConfig) -> Result<Endpoint, EtcdFailure> {
        let endpoint = self.endpoint.clone();
        let Some(name) = self.tls_name.clone() else { return Ok(endpoint) };
        let config = config.clone();
        let read = spawn_blocking(move || with_tls(&endpoint, &name, &config)).await;
        read.unwrap_or_else(|join| Err(EtcdFailure::NotDone(Reason::from(join.to_string()))))
    }
}

fn with_tls(endpoint: &Endpoint, name: &str, config: &EtcdConfig) -> Result<Endpoint, EtcdFailure> {
    let mut tls = ClientTlsConfig::new().domain_name(name);
    tls = match &config.ca {
        Some(ca) => tls.ca_certificate(Certificate::from_pem(read(ca)?)),
        None => tls.with_native_roots(),
    };
    if let (Some(cert), Some(key)) = (&config.cert, &config.key) {
        tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    endpoint.clone().tls_config(tls).map_err(|error| EtcdFailure::Denied {
        advice: "check the files of the CA, the certificate and its key",
        reason: Reason::of(&error),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, EtcdFailure> {
    files::open_config(path).and_then(|file| files::read_open(&file)).map_err(|error| EtcdFailure::Denied {
        advice: "check the files of the CA, the certificate and its key",
        reason: Reason::from(format!("cannot read {}: {error}", path.display())),
    })
}

pub(super) fn options(config: &EtcdConfig) -> ConnectOptions {
    // A member without a leader says so, instead of serving what may be old.
    let options = ConnectOptions::new().with_require_leader(true).with_auto_token_refresh(true);
    match (&config.user, &config.password) {
        (Some(user), Some(password)) => options.with_user(user, password),
        _ => options,
    }
}
