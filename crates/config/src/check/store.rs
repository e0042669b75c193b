//! What the keys of the store say together.

use super::ConfigFinding;
use crate::draft::{Draft, Origins, StoreKind};
use crate::etcd::Scheme;

pub(super) fn look(draft: &Draft, origins: &Origins) -> Vec<ConfigFinding> {
    let found = match draft.store() {
        StoreKind::Embedded => vec![unused(draft, origins)],
        StoreKind::Etcd => vec![missing(draft), plain(draft), user(draft), clear_text(draft)],
    };
    let always = [pair(draft), passwords(draft)];
    found.into_iter().chain(always).flatten().collect()
}

/// Endpoints alone choose etcd; then somebody said otherwise.
fn unused(draft: &Draft, origins: &Origins) -> Option<ConfigFinding> {
    if draft.endpoints.is_empty() {
        return None;
    }
    let (origin, endpoints) = origins.get("etcd.endpoints")?;
    Some(ConfigFinding {
        key: "store",
        also: &["etcd.endpoints"],
        allowed: format!(
            "contradicts etcd.endpoints {endpoints:?} ({origin}): say store etcd, or leave the endpoints out"
        ),
    })
}

fn missing(draft: &Draft) -> Option<ConfigFinding> {
    draft.endpoints.is_empty().then(|| ConfigFinding {
        key: "store",
        also: &["etcd.endpoints"],
        allowed: "needs etcd.endpoints (ETCD_HOST), such as https://etcd-1:2379".to_owned(),
    })
}

/// Whoever gives certificates wants them to be used.
fn plain(draft: &Draft) -> Option<ConfigFinding> {
    let http = draft.endpoints.iter().any(|endpoint| endpoint.scheme == Some(Scheme::Http));
    let given = draft.ca.as_ref().map(|_| "etcd.ca").or(draft.cert.as_ref().map(|_| "etcd.cert"))?;
    http.then(|| ConfigFinding {
        key: "etcd.endpoints",
        also: &["etcd.ca", "etcd.cert"],
        allowed: format!("must be https with {given}: over http no certificate is used"),
    })
}

/// A password over http can be read on the way.
fn clear_text(draft: &Draft) -> Option<ConfigFinding> {
    // One without the other is refused anyhow.
    let has_secret = draft.user.is_some() && (draft.password.is_some() || draft.password_file.is_some());
    let is_plain = draft.scheme() == Scheme::Http && !draft.endpoints.is_empty();
    (has_secret && is_plain && draft.insecure != Some(true)).then(|| ConfigFinding {
        key: "etcd.endpoints",
        also: &["etcd.ca", "etcd.cert", "etcd.insecure"],
        allowed:
            "must be https://… with etcd.user: over http, which is also meant where no scheme is given, the \
                  password can be read on the way; etcd.insecure = true allows it"
                .to_owned(),
    })
}

fn pair(draft: &Draft) -> Option<ConfigFinding> {
    let (key, lacks) = match (&draft.cert, &draft.key) {
        (Some(_), None) => ("etcd.cert", "etcd.key"),
        (None, Some(_)) => ("etcd.key", "etcd.cert"),
        (Some(_), Some(_)) | (None, None) => return None,
    };
    let allowed = format!("needs {lacks} beside it");
    Some(ConfigFinding { key, also: &["etcd.cert", "etcd.key"], allowed })
}

fn passwords(draft: &Draft) -> Option<ConfigFinding> {
    (draft.password.is_some() && draft.password_file.is_some()).then(|| ConfigFinding {
        key: "etcd.password_file",
        also: &["etcd.password"],
        allowed: "cannot stand beside etcd.password: give one of them".to_owned(),
    })
}

fn user(draft: &Draft) -> Option<ConfigFinding> {
    let also = &["etcd.user", "etcd.password", "etcd.password_file"];
    let file = draft.password_file.is_some();
    let (key, allowed) = match (&draft.user, draft.password.is_some() || file) {
        (Some(_), false) => ("etcd.user", "needs etcd.password or etcd.password_file beside it"),
        (None, true) if file => ("etcd.password_file", "needs etcd.user beside it"),
        (None, true) => ("etcd.password", "needs etcd.user beside it"),
        (Some(_), true) | (None, false) => return None,
    };
    Some(ConfigFinding { key, also, allowed: allowed.to_owned() })
}
