//! A node at work, and what it must look like again afterwards.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Outcome, Pod, Snapshot, Verb, inspect, wait_until};

use crate::common::{DUAL, Host, with};

/// A node where everything that stays for good is there (bridge, tables), and a pod that must not notice anything.
pub(crate) struct Scene {
    pub(crate) host: Host,
    pub(crate) config: Value,
    pub(crate) neighbour: Pod,
    /// A namespace that is not attached.
    pub(crate) other: Pod,
    neighbours_result: Value,
    before: Snapshot,
    files: BTreeSet<String>,
}

impl Scene {
    /// Network `blue` of both families with masquerade, and these keys besides or instead.
    pub(crate) fn new(label: &str, more: &Value) -> Self {
        let host = Host::new(label);
        let config = with(&host.config(&json!({"subnet": DUAL, "ipMasq": true})), more);
        // Whatever a pod may wish: what the first one of its kind makes for good is not to be seen as a leak later.
        let (first, _) = host.attached("first", &with(&config, &wishes()));
        let (neighbour, neighbours_result) = host.attached("neighbour", &config);
        host.del(&first, &with(&config, &wishes()));
        if config["mode"] != "routed" {
            settle(&host);
        }
        let before = Snapshot::of(&host.node).unwrap();
        let (files, other) = (files(&host), host.pod("other"));
        Self { host, config, neighbour, other, neighbours_result, before, files }
    }

    /// The node is as it was, the neighbour too, and no address is claimed but the neighbour's.
    #[track_caller]
    pub(crate) fn expect_as_before(&self, case: &str) {
        assert_eq!(files(&self.host), self.files, "{case}: records or claims are left, or too few");
        if let Err(error) = self.before.expect_same(&self.host.node) {
            panic!("{case}: {error:#}");
        }
    }

    #[track_caller]
    pub(crate) fn expect_neighbour(&self, case: &str) {
        if let Err(error) = self.host.check(&self.neighbour, &self.config, &self.neighbours_result) {
            panic!("{case}: the neighbour suffered: {error:?}");
        }
    }

    pub(crate) fn neighbours_ips(&self) -> Vec<std::net::IpAddr> {
        crate::common::ips(&self.neighbours_result)
    }

    /// GC where the neighbour is the only one that lives.
    #[track_caller]
    pub(crate) fn gc(&self) {
        let valid = [(self.neighbour.id(), "eth0")];
        self.host.plugin.gc(&self.host.node, &self.config, &valid).unwrap().ok().unwrap();
    }

    pub(crate) fn call(&self, call: &Call) -> Outcome {
        self.host.plugin.call(&self.host.node, call).unwrap()
    }

    /// ADD that must do: a new attachment, or one that somebody who was killed had just completed. Returns the result
    /// of a new one.
    #[track_caller]
    pub(crate) fn add_or_there_already(&self, add: &Call, case: &str) -> Option<Value> {
        let outcome = self.call(add);
        if outcome.success() {
            return Some(outcome.ok().unwrap());
        }
        let error = outcome.error().unwrap();
        assert_eq!(error.code, 102, "{case}: {error:?}");
        None
    }

    #[track_caller]
    pub(crate) fn del(&self, del: &Call, case: &str) {
        let outcome = self.call(del);
        assert!(outcome.success(), "{case}: {outcome:?}");
    }
}

/// The kernel gives a bridge its link-local address some time after its first port carries.
fn settle(host: &Host) {
    let link_local = |a: &inspect::ListedAddress| a.net.addr().is_ipv6() && a.scope == "link";
    wait_until("the bridge's link-local address", DEADLINE, || {
        Ok(inspect::addresses(&host.node, "pw0")?.iter().any(link_local))
    })
    .unwrap();
}

/// A host port, and a limit in both directions.
pub(crate) fn wishes() -> Value {
    json!({"runtimeConfig": {
        "portMappings": [{"hostPort": 8080, "containerPort": 80}],
        "bandwidth": {"ingressRate": 80_000_000, "ingressBurst": 80_000_000,
                      "egressRate": 80_000_000, "egressBurst": 80_000_000},
    }})
}

pub(crate) fn network_dir(host: &Host) -> PathBuf {
    host.node.run_dir().join("networks/blue")
}

/// Records (also half-written ones) and claims. Index and cursors are left out: they only say where to look first.
pub(crate) fn files(host: &Host) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for directory in ["attachments", "addresses"] {
        for entry in fs::read_dir(network_dir(host).join(directory)).into_iter().flatten() {
            found.insert(format!("{directory}/{}", entry.unwrap().file_name().to_string_lossy()));
        }
    }
    found
}

/// A call about a container of this name in the pod's namespace.
pub(crate) fn call(verb: Verb, (pod, container): (&Pod, &str), config: &Value) -> Call {
    Call { container: Some(container.to_owned()), ..Call::pod(verb, pod, config) }
}
