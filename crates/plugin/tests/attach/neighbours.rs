//! An address that had another owner before: nobody may go on sending to the MAC of the old one.

use serde_json::json;
use testkit::{inspect, ping};

use crate::common::{DUAL, Host, MODES, ips};

/// The MAC of a pod is its container's, so that the next one with the address has another. Who has talked to the old one
/// believes in that MAC for the better part of a minute.
#[test]
fn e7_an_address_that_had_another_owner_is_reached_at_once() {
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
                    assert!(report.all(), "{mode}: {ip}, now of {name}, from {}: {report:?}", from.name());
                }
            }
            host.del(&pod, &fixed);
        }
        macs.dedup();
        assert_eq!(macs.len(), 3, "otherwise there is nothing to see here");
    }
}
