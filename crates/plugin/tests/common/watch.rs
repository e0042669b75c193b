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

/// A pod that runs: bridge, gateways and firewall are there, so that what comes next meets a node at work.
pub(crate) fn running_pod(host: &Host, name: &str, config: &Value) -> Pod {
    let (pod, _) = host.attached(name, config);
    settle(host);
    pod
}

/// The kernel gives a bridge its link-local address some time after its first port carries.
fn settle(host: &Host) {
    let link_local = |a: &inspect::Address| a.net.addr().is_ipv6() && a.scope == "link";
    wait_until("the bridge's link-local address", DEADLINE, || {
        Ok(inspect::addresses(&host.node, BRIDGE)?.iter().any(link_local))
    })
    .unwrap();
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
/// records and claims in the state folder.
pub(crate) struct Watch {
    namespaces: Vec<(Ns, Snapshot)>,
    state: PathBuf,
    held: BTreeSet<String>,
}

impl Watch {
    pub(crate) fn on(host: &Host, pods: &[&Pod]) -> Self {
        Self::on_state(host, pods, &host.node.state_dir())
    }

    pub(crate) fn on_state(host: &Host, pods: &[&Pod], state: &Path) -> Self {
        let node: &Ns = &host.node;
        let all = [node].into_iter().chain(pods.iter().map(|pod| -> &Ns { pod }));
        let namespaces = all.map(|ns| (ns.clone(), Snapshot::of(ns).unwrap())).collect();
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

/// The records and claims under a state folder, each as `network/kind/name`.
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
