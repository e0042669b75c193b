//! Checks across the keys of the store.

use super::ConfigFinding;
use crate::draft::{Draft, Origins, StoreKind};
use crate::etcd::Scheme;

pub(super) fn check(draft: &Draft, origins: &Origins) -> Vec<ConfigFinding> {
    let by_store = match draft.store() {
        StoreKind::Embedded => vec![unused_endpoints(draft, origins)],
        StoreKind::Etcd => {
            vec![
                missing_endpoints(draft),
                http_with_certificates(draft),
                incomplete_user(draft),
                clear_text(draft),
            ]
        }
    };
    let always = [certificate_pair(draft), two_passwords(draft)];
    by_store.into_iter().chain(always).flatten().collect()
}

/// Endpoints select etcd by default, so the embedded store was set explicitly.
fn unused_endpoints(draft: &Draft, origins: &Origins) -> Option<ConfigFinding> {
    if draft.endpoints.is_empty() {
        return None;
    }
    let (origin, endpoints) = origins.get("etcd.endpoints")?;
    Some(ConfigFinding {
        key: "store",
        related: &["etcd.endpoints"],
        reason: format!(
            "contradicts etcd.endpoints {endpoints:?} ({origin}): set store to etcd, or remove the endpoints"
        ),
    })
}

fn missing_endpoints(draft: &Draft) -> Option<ConfigFinding> {
    draft.endpoints.is_empty().then(|| ConfigFinding {
        key: "store",
        related: &["etcd.endpoints"],
        reason: "requires etcd.endpoints (ETCD_HOST), such as https://etcd-1:2379".to_owned(),
    })
}

/// Certificates have no effect over http.
fn http_with_certificates(draft: &Draft) -> Option<ConfigFinding> {
    let http = draft.endpoints.iter().any(|endpoint| endpoint.scheme == Some(Scheme::Http));
    let certificate = draft.ca.as_ref().map(|_| "etcd.ca").or(draft.cert.as_ref().map(|_| "etcd.cert"))?;
    http.then(|| ConfigFinding {
        key: "etcd.endpoints",
        related: &["etcd.ca", "etcd.cert"],
        reason: format!("must be https with {certificate}: http uses no certificates"),
    })
}

/// Over http, the network can read the password.
fn clear_text(draft: &Draft) -> Option<ConfigFinding> {
    // A user without a password, or a password without a user, is reported by another check.
    let has_secret = draft.user.is_some() && (draft.password.is_some() || draft.password_file.is_some());
    let is_plain = draft.scheme() == Scheme::Http && !draft.endpoints.is_empty();
    (has_secret && is_plain && draft.insecure != Some(true)).then(|| ConfigFinding {
        key: "etcd.endpoints",
        related: &["etcd.ca", "etcd.cert", "etcd.insecure"],
        reason: "must be https://… with etcd.user: over http (the default without a scheme) the password \
                  is sent in clear text; etcd.insecure = true allows this"
            .to_owned(),
    })
}

fn certificate_pair(draft: &Draft) -> Option<ConfigFinding> {
    let (key, missing) = match (&draft.cert, &draft.key) {
        (Some(_), None) => ("etcd.cert", "etcd.key"),
        (None, Some(_)) => ("etcd.key", "etcd.cert"),
        (Some(_), Some(_)) | (None, None) => return None,
    };
    let reason = format!("requires {missing}");
    Some(ConfigFinding { key, related: &["etcd.cert", "etcd.key"], reason })
}

fn two_passwords(draft: &Draft) -> Option<ConfigFinding> {
    (draft.password.is_some() && draft.password_file.is_some()).then(|| ConfigFinding {
        key: "etcd.password_file",
        related: &["etcd.password"],
        reason: "conflicts with etcd.password: set only one of them".to_owned(),
    })
}

fn incomplete_user(draft: &Draft) -> Option<ConfigFinding> {
    let related = &["etcd.user", "etcd.password", "etcd.password_file"];
    let has_file = draft.password_file.is_some();
    let (key, reason) = match (&draft.user, draft.password.is_some() || has_file) {
        (Some(_), false) => ("etcd.user", "requires etcd.password or etcd.password_file"),
        (None, true) if has_file => ("etcd.password_file", "requires etcd.user"),
        (None, true) => ("etcd.password", "requires etcd.user"),
        (Some(_), true) | (None, false) => return None,
    };
    Some(ConfigFinding { key, related, reason: reason.to_owned() })
}
