//! The condition of an unreachable store, with a command that checks it.

use types::{Code, Finding, Fix};

use config::{Config, Etcd, RESTART, StoreChoice};

pub(crate) fn finding(config: &Config, reason: &str) -> Finding {
    match &config.store {
        StoreChoice::Embedded => Finding::new(Code::StoreFailed, "store", reason),
        StoreChoice::Etcd(etcd) => {
            // A reason such as "is it running?" is a question, so a new sentence starts after it.
            let start = if reason.ends_with('?') { " Start" } else { "; start" };
            let place = config.place("etcd.endpoints");
            let message = format!(
                "{reason}{start} etcd, or correct the endpoints (the command checks them): {place}, then {RESTART}"
            );
            Finding::new(Code::StoreUnreachable, "store", message).fix(check(etcd))
        }
    }
}

/// The command that queries the health of each endpoint with the agent's certificates.
fn check(etcd: &Etcd) -> Fix {
    let mut words = ["curl", "-m", "3"].map(str::to_owned).to_vec();
    // curl takes a colon in the path of a certificate for the start of its password.
    let escaped = |path: &std::path::PathBuf| path.to_string_lossy().replace('\\', r"\\").replace(':', r"\:");
    let plain = |path: &std::path::PathBuf| path.to_string_lossy().into_owned();
    let files = [
        ("--cacert", etcd.ca.as_ref().map(plain)),
        ("--cert", etcd.cert.as_ref().map(escaped)),
        ("--key", etcd.key.as_ref().map(plain)),
    ];
    for (option, path) in files {
        words.extend(path.into_iter().flat_map(|path| [option.to_owned(), path]));
    }
    words.extend(etcd.endpoints.iter().map(|endpoint| format!("{endpoint}/health")));
    Fix::words(words)
}

#[cfg(test)]
mod tests {
    use config::Flags;

    use super::*;

    fn etcd(endpoints: &[&str]) -> Etcd {
        Etcd {
            endpoints: endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect(),
            prefix: "/podwire".to_owned(),
            counter: None,
            ca: None,
            cert: None,
            key: None,
            user: Some("root".to_owned()),
            password: None,
            insecure: true,
        }
    }

    #[test]
    fn a2_an_outage_of_etcd_has_a_fix_that_checks_its_endpoints() {
        let plain = etcd(&["http://192.0.2.1:2379", "http://[2001:db8::1]:2379"]);
        let with_store = |store| Config { store, ..Config::load(&Flags::default(), Vec::new()).unwrap() };
        let finding = |store, reason: &str| finding(&with_store(store), reason);
        let outage = finding(StoreChoice::Etcd(plain.clone()), "connection refused");
        assert_eq!(outage.code, Code::StoreUnreachable);
        // The command only checks the endpoints. The message says how to end the condition.
        let message = "start etcd, or correct the endpoints (the command checks them): etcd.endpoints in \
                       /etc/podwire/agent.toml, then systemctl restart podwire";
        assert_eq!(outage.message, format!("connection refused; {message}"));
        let question = finding(StoreChoice::Etcd(plain.clone()), "is it running?");
        assert!(question.message.starts_with("is it running? Start etcd"), "{}", question.message);
        let expected = "curl -m 3 http://192.0.2.1:2379/health 'http://[2001:db8::1]:2379/health'";
        assert_eq!(outage.fix.as_deref(), Some(expected));
        let path = |name: &str| Some(name.into());
        let (ca, cert, key) = (path("/etc/it's/ca.pem"), path("/etc/a:b.pem"), path("/etc/key.pem"));
        let tls = Etcd { ca, cert, key, endpoints: vec!["https://etcd-1:2379".to_owned()], ..plain };
        let expected = r"curl -m 3 --cacert '/etc/it'\''s/ca.pem' --cert '/etc/a\:b.pem' --key /etc/key.pem https://etcd-1:2379/health";
        assert_eq!(finding(StoreChoice::Etcd(tls), "").fix.as_deref(), Some(expected));
        assert_eq!(finding(StoreChoice::Embedded, "").fix, None);
    }
}
