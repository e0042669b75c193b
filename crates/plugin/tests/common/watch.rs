//! Helpers for calls that must fail: checks of the error, and that the call changed nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::{CniError, DEADLINE, Ns, Outcome, Plugin, Pod, Snapshot, inspect, wait_until};

use crate::common::{DUAL, Host, with};

/// The bridge of the shared config.
pub(crate) const BRIDGE: &str = "pw0";

/// A dual-stack network with masquerade, and with the keys of `more`.
pub(crate) fn dual(host: &Host, more: &Value) -> Value {
    with(&host.config(&json!({"subnet": DUAL, "ipMasq": true})), more)
}

/// A shell script that runs podwire-cni as `"$PLUGIN"`.
///
/// Another process writes the script: a file that is open for writing cannot be executed, and a child process of a parallel
/// test could inherit the descriptor of this process.
pub(crate) fn wrapped(host: &Host, name: &str, script: &str) -> Plugin {
    let path = host.lab.dir().join(name);
    let text = format!("#!/bin/sh\nPLUGIN='{}'\n{script}\n", host.plugin.path.display());
    let write = format!("cat >{0} && chmod 755 {0}", path.display());
    let outcome = host.node.run(&["sh", "-c", &write], text.as_bytes()).unwrap();
    assert!(outcome.success(), "{}", outcome.stderr);
    Plugin { path }
}

/// The state that a failed call must not change: links, addresses, routes and rules of the node and of pods, and the records
/// and claims in the run directory.
pub(crate) struct Watch {
    namespaces: Vec<(Ns, Snapshot)>,
    run_dir: PathBuf,
    records: BTreeSet<String>,
}

impl Watch {
    pub(crate) fn on(host: &Host, pods: &[&Pod]) -> Self {
        Self::with_run_dir(host, pods, &host.node.run_dir())
    }

    pub(crate) fn with_run_dir(host: &Host, pods: &[&Pod], run_dir: &Path) -> Self {
        let node: &Ns = &host.node;
        let all = [node].into_iter().chain(pods.iter().map(|pod| -> &Ns { pod }));
        let namespaces = all.map(|ns| (ns.clone(), settled(ns))).collect();
        Self { namespaces, run_dir: run_dir.to_owned(), records: records_and_claims(run_dir) }
    }

    #[track_caller]
    pub(crate) fn expect_same(&self, case: &str) {
        for (ns, before) in &self.namespaces {
            if let Err(error) = before.expect_same(ns) {
                panic!("{case}: {error:#}");
            }
        }
        assert_eq!(records_and_claims(&self.run_dir), self.records, "{case}: records or claims changed");
    }
}

/// A snapshot after all pending changes of the kernel. When a link gets carrier, some time after it was set up, the kernel adds
/// an IPv6 link-local address. Only then it adds the other addresses to the local table.
fn settled(ns: &Ns) -> Snapshot {
    wait_until("pending IPv6 addresses and routes", DEADLINE, || {
        let links = ns.json(&["ip", "-d", "-j", "link", "show"])?.as_array().cloned().unwrap_or_default();
        let addresses = inspect::all_addresses(ns)?;
        let table = ns.json(&["ip", "-6", "-j", "route", "show", "table", "local"])?;
        let has_route = |address: &inspect::ListedAddress| {
            let ip = address.net.addr().to_string();
            let is_local_route = |route: &Value| route["dst"] == ip && route["dev"] == address.dev;
            address.scope == "link"
                || table.as_array().is_some_and(|routes| routes.iter().any(is_local_route))
        };
        Ok(links.iter().filter(|link| will_have_ipv6(link, &links)).all(|link| {
            let mut own = addresses.iter().filter(|a| link["ifname"] == a.dev && a.net.addr().is_ipv6());
            own.clone().any(|a| a.scope == "link") && own.all(has_route)
        }))
    })
    .unwrap();
    Snapshot::of(ns).unwrap()
}

/// Whether the kernel will add an IPv6 link-local address. A bridge gets carrier a little later than its first port.
fn will_have_ipv6(link: &Value, all: &[Value]) -> bool {
    let has =
        |link: &Value, flag: &str| link["flags"].as_array().is_some_and(|flags| flags.contains(&json!(flag)));
    let has_carrier =
        |other: &Value| has(other, "LOWER_UP") && (other == link || other["master"] == link["ifname"]);
    let uses_ipv6 = link["link_type"] == "ether" && link["inet6_addr_gen_mode"] != "none";
    uses_ipv6 && link["mtu"].as_u64() >= Some(1280) && has(link, "UP") && all.iter().any(has_carrier)
}

/// The records and claims in a run directory, each as `network/kind/name`.
pub(crate) fn records_and_claims(run_dir: &Path) -> BTreeSet<String> {
    let names = |dir: &Path| -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let networks = run_dir.join("networks");
    let mut all = BTreeSet::new();
    for network in names(&networks) {
        for kind in ["attachments", "addresses"] {
            let files = names(&networks.join(&network).join(kind));
            all.extend(files.into_iter().map(|name| format!("{network}/{kind}/{name}")));
        }
    }
    all
}

/// The error of a failed call. Expects exit code 1 and one object with only the fields of the CNI specification on stdout.
#[track_caller]
pub(crate) fn refused(case: &str, outcome: &Outcome) -> CniError {
    assert_eq!(outcome.status.code(), Some(1), "{case}: {outcome:?}");
    let error = outcome.error().unwrap_or_else(|e| panic!("{case}: {e:#}"));
    let value = outcome.json().unwrap();
    let known = ["cniVersion", "code", "msg", "details"];
    assert!(value.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())), "{case}: {value}");
    assert!(value["cniVersion"].is_string() && !error.msg.is_empty(), "{case}: {value}");
    error
}

/// As `refused`. Also expects this code, and all `words` in message or details.
#[track_caller]
pub(crate) fn refused_with(case: &str, outcome: &Outcome, (code, words): (u32, &[&str])) -> CniError {
    let error = refused(case, outcome);
    assert_eq!(error.code, code, "{case}: {error:?}");
    let text = format!("{} {}", error.msg, error.details);
    for word in words {
        assert!(text.contains(word), "{case}: {word:?} is not in {text:?}");
    }
    error
}
