//! For tests of calls that must be refused: what the refusal says, and whether it changed anything.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::{CniError, DEADLINE, Ns, Outcome, Plugin, Pod, Snapshot, inspect, wait_until};

use crate::common::{DUAL, Host, with};

/// The bridge of the shared config.
pub(crate) const BRIDGE: &str = "pw0";

/// A network of both families with masquerade, and these keys besides or instead.
pub(crate) fn dual(host: &Host, more: &Value) -> Value {
    with(&host.config(&json!({"subnet": DUAL, "ipMasq": true})), more)
}

/// A plugin that is a shell script around ours, which is `"$PLUGIN"` in it.
///
/// Written by another process: a descriptor of our own could be inherited by a child that another test starts at this
/// moment, and a file that is open for writing cannot be executed.
pub(crate) fn wrapped(host: &Host, name: &str, script: &str) -> Plugin {
    let path = host.lab.dir().join(name);
    let text = format!("#!/bin/sh\nPLUGIN='{}'\n{script}\n", host.plugin.path.display());
    let write = format!("cat >{0} && chmod 755 {0}", path.display());
    let outcome = host.node.run(&["sh", "-c", &write], text.as_bytes()).unwrap();
    assert!(outcome.success(), "{}", outcome.stderr);
    Plugin { path }
}

/// Everything that a refused call must leave alone: links, addresses, routes and rules of the node and of pods, and the
/// records and claims in the state directory.
pub(crate) struct Watch {
    namespaces: Vec<(Ns, Snapshot)>,
    state: PathBuf,
    held: BTreeSet<String>,
}

impl Watch {
    pub(crate) fn on(host: &Host, pods: &[&Pod]) -> Self {
        Self::on_state(host, pods, &host.node.run_dir())
    }

    pub(crate) fn on_state(host: &Host, pods: &[&Pod], state: &Path) -> Self {
        let node: &Ns = &host.node;
        let all = [node].into_iter().chain(pods.iter().map(|pod| -> &Ns { pod }));
        let namespaces = all.map(|ns| (ns.clone(), settled(ns))).collect();
        Self { namespaces, state: state.to_owned(), held: held(state) }
    }

    #[track_caller]
    pub(crate) fn expect_same(&self, case: &str) {
        for (ns, before) in &self.namespaces {
            if let Err(error) = before.expect_same(ns) {
                panic!("{case}: {error:#}");
            }
        }
        assert_eq!(held(&self.state), self.held, "{case}: records or claims changed");
    }
}

/// A snapshot after which nothing comes by itself. Once a link carries, which may be some time after it was set up, the
/// kernel gives it an IPv6 link-local address, and only then its other addresses are in the local table.
fn settled(ns: &Ns) -> Snapshot {
    wait_until("the kernel to be done with IPv6", DEADLINE, || {
        let links = ns.json(&["ip", "-d", "-j", "link", "show"])?.as_array().cloned().unwrap_or_default();
        let addresses = inspect::all_addresses(ns)?;
        let table = ns.json(&["ip", "-6", "-j", "route", "show", "table", "local"])?;
        let has_route = |address: &inspect::ListedAddress| {
            let ip = address.net.addr().to_string();
            let here = |route: &Value| route["dst"] == ip && route["dev"] == address.dev;
            address.scope == "link" || table.as_array().is_some_and(|routes| routes.iter().any(here))
        };
        Ok(links.iter().filter(|link| will_have_ipv6(link, &links)).all(|link| {
            let mut own = addresses.iter().filter(|a| link["ifname"] == a.dev && a.net.addr().is_ipv6());
            own.clone().any(|a| a.scope == "link") && own.all(has_route)
        }))
    })
    .unwrap();
    Snapshot::of(ns).unwrap()
}

/// A bridge carries a little later than its first port does.
fn will_have_ipv6(link: &Value, all: &[Value]) -> bool {
    let has =
        |link: &Value, flag: &str| link["flags"].as_array().is_some_and(|flags| flags.contains(&json!(flag)));
    let carries =
        |other: &Value| has(other, "LOWER_UP") && (other == link || other["master"] == link["ifname"]);
    let wants = link["link_type"] == "ether" && link["inet6_addr_gen_mode"] != "none";
    wants && link["mtu"].as_u64() >= Some(1280) && has(link, "UP") && all.iter().any(carries)
}

/// The records and claims under a state directory, each as `network/kind/name`.
pub(crate) fn held(state: &Path) -> BTreeSet<String> {
    let names = |dir: &Path| -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let networks = state.join("networks");
    let mut held = BTreeSet::new();
    for network in names(&networks) {
        for kind in ["attachments", "addresses"] {
            let of_kind = names(&networks.join(&network).join(kind));
            held.extend(of_kind.into_iter().map(|name| format!("{network}/{kind}/{name}")));
        }
    }
    held
}

/// The error of a call that failed as the protocol asks: exit 1, and one object with the spec's fields alone on stdout.
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

/// As `refused`, with the code that it must have and words that message or details must hold.
#[track_caller]
pub(crate) fn refused_with(case: &str, outcome: &Outcome, (code, words): (u32, &[&str])) -> CniError {
    let error = refused(case, outcome);
    assert_eq!(error.code, code, "{case}: {error:?}");
    let said = format!("{} {}", error.msg, error.details);
    for word in words {
        assert!(said.contains(word), "{case}: {word:?} is not in {said:?}");
    }
    error
}
