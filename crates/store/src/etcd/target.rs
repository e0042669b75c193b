//! Endpoints and credentials of etcd. They are validated once, when the store is opened. Certificates are read for every
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

/// The timeout of one connection attempt, up to the first answer.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of HTTP/2 pings. etcd closes connections with pings more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(7);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// The HTTP/2 flow-control window. The default of 64 KiB makes large listings slow over long distances.
const WINDOW: u32 = 4 << 20;

/// A validated endpoint.
#[derive(Debug, Clone)]
pub(super) struct EtcdTarget {
    pub(super) url: String,
    endpoint: Endpoint,
    /// The name that the certificate must have, if the endpoint uses TLS.
    tls_name: Option<String>,
}

fn invalid(problem: impl Into<String>) -> Error {
    Error::Config { problem: problem.into() }
}

pub(super) fn targets(config: &EtcdConfig) -> Result<Vec<EtcdTarget>> {
    if config.cert.is_some() != config.key.is_some() {
        return Err(invalid("a client certificate requires both the certificate file and the key file"));
    }
    if config.user.is_some() != config.password.is_some() {
        return Err(invalid("etcd.user and a password must be set together"));
    }
    if config.endpoints.is_empty() {
        return Err(invalid("no etcd endpoint is set"));
    }
    config.endpoints.iter().map(|text| target(text, config)).collect()
}

fn target(text: &str, config: &EtcdConfig) -> Result<EtcdTarget> {
    let url = match text.split_once("://") {
        None if config.ca.is_some() || config.cert.is_some() => format!("https://{text}"),
        None => format!("http://{text}"),
        Some(("http" | "https", _)) => text.to_owned(),
        Some((other, _)) => {
            return Err(invalid(format!(
                "the scheme of etcd endpoint {text} is {other}://, not https:// or http://"
            )));
        }
    };
    let is_tls = url.starts_with("https://");
    if !is_tls && config.ca.is_some() {
        return Err(invalid(format!("a CA is set, but etcd endpoint {text} is not https://")));
    }
    if !is_tls && config.cert.is_some() {
        return Err(invalid(format!(
            "a client certificate is set, but etcd endpoint {text} is not https://"
        )));
    }
    if !is_tls && config.user.is_some() && !config.insecure {
        return Err(invalid(format!(
            "user and password would be sent to etcd endpoint {text} in clear text: use https://, or set etcd.insecure"
        )));
    }
    let endpoint = Endpoint::from_shared(url.clone())
        .map_err(|_| invalid(format!("etcd endpoint {text} is not a URL such as https://host:2379")))?;
    let uri = endpoint.uri();
    let host = uri.host().filter(|host| !host.is_empty() && uri.port().is_some());
    let host = host.ok_or_else(|| {
        invalid(format!("etcd endpoint {text} needs a host and a port, such as https://host:2379"))
    })?;
    let tls_name = is_tls.then(|| host.trim_start_matches('[').trim_end_matches(']').to_owned());
    let endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        // etcd closes connections on which clients send pings without a pending request.
        .keep_alive_while_idle(false);
    Ok(EtcdTarget { url, endpoint, tls_name })
}

impl EtcdTarget {
    /// The endpoint with the current certificates. They are read on another thread, so that a slow disk delays neither a lease
    /// nor a watch.
    pub(super) async fn endpoint(&self, config: &EtcdConfig) -> Result<Endpoint, EtcdFailure> {
        let endpoint = self.endpoint.clone();
        let Some(name) = self.tls_name.clone() else { return Ok(endpoint) };
        let config = config.clone();
        let read = spawn_blocking(move || with_tls(&endpoint, &name, &config)).await;
        read.unwrap_or_else(|join| Err(EtcdFailure::NotExecuted(Reason::from(join.to_string()))))
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
    // A member without a leader returns an error instead of stale data.
    let options = ConnectOptions::new().with_require_leader(true).with_auto_token_refresh(true);
    match (&config.user, &config.password) {
        (Some(user), Some(password)) => options.with_user(user, password),
        _ => options,
    }
}
