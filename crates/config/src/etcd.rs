//! Endpoints and credentials of etcd.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use super::keys::NOT_SHOWN;
use super::secrets;

/// etcd's client port.
const PORT: u16 = 2379;
/// An arbitrary limit, in bytes.
const MAX_PASSWORD: usize = 4096;
/// etcd accepts longer keys. A longer one is taken for a mistake.
const MAX_KEY: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Etcd {
    /// `SCHEME://HOST:PORT`, all with the same scheme, without duplicates.
    pub endpoints: Vec<String>,
    /// Starts with a slash and does not end with one.
    pub prefix: String,
    /// The key of the counter at which a new node starts its search for a free block. None: `counter` under the prefix.
    pub counter: Option<String>,
    /// CA bundle for etcd's server certificate. None: the system's trust store.
    pub ca: Option<PathBuf>,
    /// The client certificate. Set together with `key`.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// Set together with `password`.
    pub user: Option<String>,
    pub password: Option<Secret>,
    /// Whether user and password may be sent over http.
    pub insecure: bool,
}

/// A text that is never printed or logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
    /// The file that it was read from.
    file: Option<PathBuf>,
}

impl Secret {
    /// The text, for authentication.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NOT_SHOWN)
    }
}

/// An endpoint as given by the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) scheme: Option<Scheme>,
    /// Host and port.
    authority: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    Http,
    Https,
}

/// The URLs of all endpoints with a common scheme, which also applies to endpoints without one.
pub(super) fn complete(endpoints: &[Endpoint], scheme: Scheme) -> Vec<String> {
    let scheme = match scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
    };
    let mut all: Vec<String> = Vec::new();
    for Endpoint { authority, .. } in endpoints {
        let address = format!("{scheme}://{authority}");
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

/// Hides everything before the last `@`: a user may have put a password into the URL, although this is not allowed.
pub(super) fn without_password(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((_, host)) => format!("{NOT_SHOWN}@{host}"),
        None => text.to_owned(),
    }
}

pub(super) fn endpoints(text: &str) -> Result<Vec<Endpoint>, String> {
    // Must come first: the messages below quote the text.
    if text.contains('@') {
        return Err(
            "must be hosts such as etcd-1 without user and password: use etcd.user and etcd.password_file"
                .to_owned(),
        );
    }
    let all = text.split(',').map(|part| endpoint(part.trim())).collect::<Result<Vec<_>, _>>()?;
    let has_scheme = |scheme| all.iter().any(|endpoint| endpoint.scheme == Some(scheme));
    if has_scheme(Scheme::Http) && has_scheme(Scheme::Https) {
        return Err("must be all http or all https, not both".to_owned());
    }
    Ok(all)
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    let error = || {
        format!(
            "must be hosts such as etcd-1, 192.0.2.1:2379, https://etcd-1.example:2379 or [2001:db8::1]:2379, not {text:?}"
        )
    };
    let (scheme, rest) = match text.split_once("://") {
        None => (None, text),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (Some(Scheme::Http), rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (Some(Scheme::Https), rest),
        Some(_) => return Err(error()),
    };
    // A trailing slash is accepted in a URL. A path is not.
    let rest = if scheme.is_some() { rest.strip_suffix('/').unwrap_or(rest) } else { rest };
    let (host, port) = split(rest).ok_or_else(error)?;
    Ok(Endpoint { scheme, authority: format!("{host}:{port}") })
}

fn split(text: &str) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(inner) => {
            let (address, port) = inner.split_once(']')?;
            let address: Ipv6Addr = address.parse().ok()?;
            let port = if port.is_empty() { None } else { Some(port.strip_prefix(':')?) };
            (format!("[{address}]"), port)
        }
        None => {
            let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
            (host_name(host)?, port)
        }
    };
    let port = match port {
        None => PORT,
        // The integer parser accepts a sign.
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => {
            port.parse().ok().filter(|port| *port != 0)?
        }
        Some(_) => return None,
    };
    Some((host, port))
}

/// An IPv4 address or a DNS name.
fn host_name(text: &str) -> Option<String> {
    let label = |label: &str| {
        let inside = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        (1..=63).contains(&label.len()) && label.bytes().all(inside) && !label.starts_with('-')
    };
    // A malformed address would be resolved as a DNS name.
    let numeric = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if numeric {
        return text.parse::<Ipv4Addr>().ok().map(|address| address.to_string());
    }
    (text.len() <= 253 && text.split('.').all(label)).then(|| text.to_ascii_lowercase())
}

/// A key prefix that consists of complete segments.
pub(super) fn prefix(text: &str) -> Result<String, String> {
    let segments = text.strip_prefix('/').map(|rest| rest.split('/'));
    let is_valid = |segment: &str| !segment.is_empty() && is_printable(segment);
    if text.len() <= MAX_KEY && segments.is_some_and(|mut all| all.all(is_valid)) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "must start with '/' and have one or more non-empty segments without white space, such as /podwire; at most {MAX_KEY} bytes"
        ))
    }
}

pub(super) fn counter(text: &str) -> Result<String, String> {
    if !text.is_empty() && text.len() <= MAX_KEY && !text.ends_with('/') && is_printable(text) {
        Ok(text.to_owned())
    } else {
        Err(format!("must be a key of 1 to {MAX_KEY} bytes without white space and without a trailing slash"))
    }
}

fn is_printable(text: &str) -> bool {
    !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

pub(super) fn user(text: &str) -> Result<String, String> {
    // etcd's tools separate user and password by a colon.
    if !text.is_empty() && text.len() <= 256 && is_printable(text) && !text.contains(':') {
        Ok(text.to_owned())
    } else {
        Err("must have 1 to 256 bytes without ':' or white space".to_owned())
    }
}

pub(super) fn password(text: &str) -> Result<Secret, String> {
    if text.is_empty() || text.len() > MAX_PASSWORD || text.contains(char::is_control) {
        return Err(format!("must be a single line of 1 to {MAX_PASSWORD} bytes"));
    }
    Ok(Secret { text: text.to_owned(), file: None })
}

/// Reads the only line of the file.
pub(super) fn password_file(text: &str) -> Result<Secret, String> {
    let path = super::values::path(text)?;
    // One byte more than the longest valid content, so that a longer password is detected.
    let read = secrets::read(&path, MAX_PASSWORD as u64 + 3);
    let content = read.map_err(|error| format!("cannot be read: {error}"))?;
    if let Some(exposure) = content.exposure {
        return Err(format!("contains a password and {exposure}"));
    }
    let line = content.text.strip_suffix('\n').unwrap_or(&content.text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    let secret = password(line).map_err(|allowed| format!("contains no valid password: it {allowed}"))?;
    Ok(Secret { file: Some(path), ..secret })
}
