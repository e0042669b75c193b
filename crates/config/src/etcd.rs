//! Where etcd is, and how it is spoken to.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use super::keys::NOT_SHOWN;
use super::secrets;

/// etcd's port for clients.
const PORT: u16 = 2379;
/// More than any password has.
const MAX_PASSWORD: usize = 4096;
/// etcd takes keys of any length; a longer one is a mistake.
const MAX_KEY: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Etcd {
    /// `SCHEME://HOST:PORT`, all of one scheme, each once.
    pub endpoints: Vec<String>,
    /// Begins with a slash and does not end with one.
    pub prefix: String,
    /// None: `counter` under the prefix.
    pub counter: Option<String>,
    /// Who must have signed etcd's certificate. None: those whom the system trusts.
    pub ca: Option<PathBuf>,
    /// Our own certificate. With it comes the key.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// With a user comes a password.
    pub user: Option<String>,
    pub password: Option<Secret>,
    /// User and password may go over http.
    pub insecure: bool,
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
    /// Where it was read from.
    file: Option<PathBuf>,
}

impl Secret {
    /// The text itself, for whoever checks it.
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

/// An address of etcd as somebody wrote it.
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

/// The addresses with the scheme that all have. One that says none follows the others.
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

/// An address may hold a password although it must not; it may have any character.
pub(super) fn without_password(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((_, rest)) => format!("{NOT_SHOWN}@{rest}"),
        None => text.to_owned(),
    }
}

pub(super) fn endpoints(text: &str) -> Result<Vec<Endpoint>, String> {
    // Before anything is quoted.
    if text.contains('@') {
        return Err(
            "must be hosts such as etcd-1 without a user: use etcd.user and etcd.password_file".to_owned()
        );
    }
    let all = text.split(',').map(|part| endpoint(part.trim())).collect::<Result<Vec<_>, _>>()?;
    let said = |scheme| all.iter().any(|endpoint| endpoint.scheme == Some(scheme));
    if said(Scheme::Http) && said(Scheme::Https) {
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
    // As in a browser's address line; only a path would mean something.
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
        // No sign: a number's own parser takes one.
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => {
            port.parse().ok().filter(|port| *port != 0)?
        }
        Some(_) => return None,
    };
    Some((host, port))
}

/// An IPv4 address, or a name of DNS.
fn host_name(text: &str) -> Option<String> {
    let label = |label: &str| {
        let inside = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        (1..=63).contains(&label.len()) && label.bytes().all(inside) && !label.starts_with('-')
    };
    // What looks like an address but is none would be asked of DNS.
    let numeric = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if numeric {
        return text.parse::<Ipv4Addr>().ok().map(|address| address.to_string());
    }
    (text.len() <= 253 && text.split('.').all(label)).then(|| text.to_ascii_lowercase())
}

/// A directory of keys: whole segments.
pub(super) fn prefix(text: &str) -> Result<String, String> {
    let segments = text.strip_prefix('/').map(|rest| rest.split('/'));
    let usable = |segment: &str| !segment.is_empty() && is_printed(segment);
    if text.len() <= MAX_KEY && segments.is_some_and(|mut all| all.all(usable)) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "must begin with '/' and have one segment or more, none of them empty or with white space, such as /podwire; at most {MAX_KEY} bytes"
        ))
    }
}

pub(super) fn counter(text: &str) -> Result<String, String> {
    if !text.is_empty() && text.len() <= MAX_KEY && !text.ends_with('/') && is_printed(text) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "must be a key of 1 to {MAX_KEY} bytes without white space and without a slash at its end"
        ))
    }
}

fn is_printed(text: &str) -> bool {
    !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

pub(super) fn user(text: &str) -> Result<String, String> {
    // A colon would end it in a URL, and does in etcd's own tools.
    if !text.is_empty() && text.len() <= 256 && is_printed(text) && !text.contains(':') {
        Ok(text.to_owned())
    } else {
        Err("must have 1 to 256 bytes without ':' and white space".to_owned())
    }
}

pub(super) fn password(text: &str) -> Result<Secret, String> {
    if text.is_empty() || text.len() > MAX_PASSWORD || text.contains(char::is_control) {
        return Err(format!("must have 1 to {MAX_PASSWORD} bytes in one line"));
    }
    Ok(Secret { text: text.to_owned(), file: None })
}

/// The file's first and only line.
pub(super) fn password_file(text: &str) -> Result<Secret, String> {
    let path = super::values::path(text)?;
    // One more than is allowed, with the end of the line: then it is found to be too long.
    let read = secrets::read(&path, MAX_PASSWORD as u64 + 3);
    let content = read.map_err(|error| format!("cannot be read: {error}"))?;
    if let Some(exposure) = content.exposure {
        return Err(format!("holds a password and {exposure}"));
    }
    let line = content.text.strip_suffix('\n').unwrap_or(&content.text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    let secret = password(line).map_err(|allowed| format!("holds no password: it {allowed}"))?;
    Ok(Secret { file: Some(path), ..secret })
}
