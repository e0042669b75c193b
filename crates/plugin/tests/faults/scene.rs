//! A node with a running pod, and the state that it must have after a test.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Outcome, Pod, Snapshot, Verb, inspect, wait_until};

use crate::common::{DUAL, Host, with};

/// A node with bridge and tables, which are not removed with the last pod, and with a running pod.
pub(crate) struct Scene {
    pub(crate) host: Host,
    pub(crate) config: Value,
    /// A running pod that no test may affect.
    pub(crate) unaffected: Pod,
    /// A namespace that is not attached.
    pub(crate) other: Pod,
    unaffected_result: Value,
    before: Snapshot,
    files: BTreeSet<String>,
}

impl Scene {
    /// Dual-stack network `blue` with masquerade, and with the keys of `more`.
    pub(crate) fn new(label: &str, more: &Value) -> Self {
        let host = Host::new(label);
        let config = with(&host.config(&json!({"subnet": DUAL, "ipMasq": true})), more);
        // The first pod with host ports and limits creates objects that remain, so that they do not count as leaks later.
        let (first, _) = host.attached("first", &with(&config, &ports_and_limits()));
        let (unaffected, unaffected_result) = host.attached("unaffected", &config);
        host.del(&first, &with(&config, &ports_and_limits()));
        if config["mode"] != "routed" {
            wait_for_link_local(&host);
        }
        let before = Snapshot::of(&host.node).unwrap();
        let (files, other) = (files(&host), host.pod("other"));
        Self { host, config, unaffected, other, unaffected_result, before, files }
    }

    /// Expects the initial state of the node, and only the record and claims of the unaffected pod.
    #[track_caller]
    pub(crate) fn expect_as_before(&self, case: &str) {
        assert_eq!(files(&self.host), self.files, "{case}: records or claims differ");
        if let Err(error) = self.before.expect_same(&self.host.node) {
            panic!("{case}: {error:#}");
        }
    }

    #[track_caller]
    pub(crate) fn expect_unaffected(&self, case: &str) {
        if let Err(error) = self.host.check(&self.unaffected, &self.config, &self.unaffected_result) {
            panic!("{case}: the unaffected pod was changed: {error:?}");
        }
    }

    pub(crate) fn unaffected_ips(&self) -> Vec<std::net::IpAddr> {
        crate::common::ips(&self.unaffected_result)
    }

    /// GC with the unaffected pod as the only valid attachment.
    #[track_caller]
    pub(crate) fn gc(&self) {
        let valid = [(self.unaffected.id(), "eth0")];
        self.host.plugin.gc(&self.host.node, &self.config, &valid).unwrap().ok().unwrap();
    }

    pub(crate) fn call(&self, call: &Call) -> Outcome {
        self.host.plugin.call(&self.host.node, call).unwrap()
    }

    /// Expects the ADD to succeed, or to be refused because a killed ADD had already completed. Returns the result of a new
    /// attachment.
    #[track_caller]
    pub(crate) fn add_unless_attached(&self, add: &Call, case: &str) -> Option<Value> {
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

/// The kernel adds the bridge's link-local address some time after its first port has carrier.
fn wait_for_link_local(host: &Host) {
    let link_local = |a: &inspect::ListedAddress| a.net.addr().is_ipv6() && a.scope == "link";
    wait_until("the bridge's link-local address", DEADLINE, || {
        Ok(inspect::addresses(&host.node, "pw0")?.iter().any(link_local))
    })
    .unwrap();
}

/// A host port and bandwidth limits for both directions.
pub(crate) fn ports_and_limits() -> Value {
    json!({"runtimeConfig": {
        "portMappings": [{"hostPort": 8080, "containerPort": 80}],
        "bandwidth": {"ingressRate": 80_000_000, "ingressBurst": 80_000_000,
                      "egressRate": 80_000_000, "egressBurst": 80_000_000},
    }})
}

pub(crate) fn network_dir(host: &Host) -> PathBuf {
    host.node.run_dir().join("networks/blue")
}

/// Records, including incomplete ones, and claims. Indexes are ignored, because they only speed up allocation.
pub(crate) fn files(host: &Host) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for directory in ["attachments", "addresses"] {
        for entry in fs::read_dir(network_dir(host).join(directory)).into_iter().flatten() {
            files.insert(format!("{directory}/{}", entry.unwrap().file_name().to_string_lossy()));
        }
    }
    files
}

/// A call with this container id in the pod's namespace.
pub(crate) fn call(verb: Verb, (pod, container): (&Pod, &str), config: &Value) -> Call {
    Call { container: Some(container.to_owned()), ..Call::pod(verb, pod, config) }
}
