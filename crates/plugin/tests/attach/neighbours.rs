//! Reused addresses: neighbours must not keep the MAC of the previous pod.

use serde_json::json;
use testkit::{inspect, ping};

use crate::common::{DUAL, Host, MODES, ips};

/// A pod's MAC is derived from its container id, so the next pod with the same address has a different MAC. Without an update,
/// the kernel keeps the old neighbour entry for up to a minute.
#[test]
fn e7_a_reused_address_is_reachable_immediately() {
    for mode in MODES {
        let host = Host::new("reuse");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (neighbour, _) = host.attached("n", &config);
        let mut fixed = config.clone();
        fixed["runtimeConfig"] = json!({"ips": ["10.88.0.9/24", "fd00:88::9/64"]});
        let mut macs = Vec::new();
        for name in ["a", "b", "c"] {
            let (pod, result) = host.attached(name, &fixed);
            macs.push(inspect::link(&pod, "eth0").unwrap().mac.unwrap());
            for ip in ips(&result) {
                for from in [&*host.node, &*neighbour] {
                    let report = ping(from, ip, 2).unwrap();
                    assert!(report.all(), "{mode}: {ip} of {name} from {}: {report:?}", from.name());
                }
            }
            host.del(&pod, &fixed);
        }
        macs.dedup();
        assert_eq!(macs.len(), 3, "the MACs do not differ, so the test proves nothing");
    }
}
