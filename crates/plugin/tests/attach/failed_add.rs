//! A failed ADD is undone completely, and parallel ADDs are independent: E12.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testkit::{Call, Pod, Snapshot, Verb};
use types::AttachmentKey;

use crate::common::{DUAL, Host, MODES, ips, with, words};

/// A reason for an ADD to fail.
struct Case {
    /// Commands that run on the node before the ADD.
    node: &'static [&'static str],
    /// Changed keys of the config.
    config: Value,
    code: u32,
    message: &'static str,
}

/// In the order of the steps of an ADD. `{ifb}` is the link that would shape the pod's egress.
fn cases(mode: &str) -> Vec<Case> {
    let runtime_config = |runtime: Value| json!({"runtimeConfig": runtime});
    let mut cases = vec![
        Case { node: &[], config: json!({"bridge": "lo"}), code: 7, message: "not a bridge" },
        Case {
            node: &[],
            config: runtime_config(json!({"ips": ["10.88.0.2"]})),
            code: 101,
            message: "10.88.0.2",
        },
        Case {
            node: &[],
            config: runtime_config(json!({"ips": ["192.0.2.1"]})),
            code: 7,
            message: "192.0.2.1",
        },
        Case { node: &[], config: json!({"mtu": 1000}), code: 7, message: "1000" },
        Case {
            node: &[],
            config: runtime_config(json!({"portMappings": [{"hostPort": 8080, "containerPort": 80}]})),
            code: 103,
            message: "8080",
        },
        Case {
            node: &[],
            config: json!({"subnet": null, "ipam": {"ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]],
                "routes": [{"dst": "192.0.2.0/24", "gw": "224.0.0.1"}]}}),
            code: 103,
            message: "192.0.2.0/24",
        },
        Case {
            node: &["ip link add {ifb} type ifb"],
            config: runtime_config(json!({"bandwidth": {"egressRate": 8_000_000, "egressBurst": 8_000_000}})),
            code: 103,
            message: "{ifb}",
        },
    ];
    if mode == "routed" {
        let node = &["ip route add 10.88.0.77/32 dev lo"];
        cases.push(Case {
            node,
            config: runtime_config(json!({"ips": ["10.88.0.77"]})),
            code: 101,
            message: "10.88.0.77",
        });
    }
    cases
}

fn ifb(pod: &Pod) -> String {
    let key = AttachmentKey {
        network: "blue".try_into().unwrap(),
        container: pod.id().try_into().unwrap(),
        ifname: "eth0".try_into().unwrap(),
    };
    key.shaper_link().as_str().to_owned()
}

/// All files in the run directory except indexes, which only speed up allocation.
fn records(host: &Host) -> BTreeSet<String> {
    let dir = host.node.run_dir();
    let output = host
        .node
        .sh(&["find", dir.to_str().unwrap(), "-path", "*/index/*", "-prune", "-o", "-print"])
        .unwrap();
    output.lines().map(str::to_owned).collect()
}

#[test]
fn e12_a_failed_add_is_undone_and_its_del_succeeds() {
    for mode in MODES {
        for case in cases(mode) {
            let host = Host::new("e12");
            let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
            let ports = json!({"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]}});
            let (neighbour, result) = host.attached("neighbour", &with(&config, &ports));
            let pod = host.pod("a");
            for line in case.node {
                host.node.sh(&words(&line.replace("{ifb}", &ifb(&pod)))).unwrap();
            }
            let (node, inside) = (Snapshot::of(&host.node).unwrap(), Snapshot::of(&pod).unwrap());
            let files = records(&host);
            let failing = with(&config, &case.config);
            let error = host.refused(&pod, &failing);
            assert_eq!(error.code, case.code, "{mode} {}: {error:?}", case.config);
            let message = case.message.replace("{ifb}", &ifb(&pod));
            assert!(error.msg.contains(&message), "{mode} {}: {:?}", case.config, error.msg);
            for _ in 0..2 {
                node.expect_same(&host.node).unwrap_or_else(|e| panic!("{mode} {}: {e:#}", case.config));
                inside.expect_same(&pod).unwrap_or_else(|e| panic!("{mode} {}: {e:#}", case.config));
                assert_eq!(records(&host), files, "{mode} {}", case.config);
                host.del(&pod, &failing);
            }
            host.check(&neighbour, &with(&config, &ports), &result).unwrap();
            host.add(&pod, &config);
        }
    }
}

#[test]
fn e12_an_add_with_an_invalid_namespace_is_undone() {
    let host = Host::new("e12-netns");
    let config = host.config(&json!({"subnet": DUAL}));
    let pod = host.pod("a");
    let file = host.node.dir().join("plain");
    std::fs::write(&file, "").unwrap();
    let before = Snapshot::of(&host.node).unwrap();
    let own = host.node.path().display().to_string();
    for (netns, code) in [("/nowhere/at/all", 3), (file.to_str().unwrap(), 3), (own.as_str(), 4)] {
        let call = Call { netns: Some(netns.to_owned()), ..Call::pod(Verb::Add, &pod, &config) };
        let error = host.plugin.call(&host.node, &call).unwrap().error().unwrap();
        assert_eq!(error.code, code, "{netns}: {error:?}");
        assert!(error.msg.contains(netns), "{netns}: {}", error.msg);
        before.expect_same(&host.node).unwrap();
    }
}

#[test]
fn e12_parallel_adds_and_dels_are_independent() {
    const PODS: usize = 24;
    for mode in MODES {
        let host = Host::new("e12-many");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
        let pods: Vec<Pod> = (0..PODS).map(|n| host.pod(&format!("p{n}"))).collect();
        // On a new node all ADDs try to create the bridge, the tables and the run directory.
        let results: Vec<Value> = std::thread::scope(|scope| {
            let adding: Vec<_> = pods.iter().map(|pod| scope.spawn(|| host.add(pod, &config))).collect();
            adding.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let addresses: BTreeSet<_> = results.iter().flat_map(ips).collect();
        assert_eq!(addresses.len(), 2 * PODS, "{mode}: addresses were assigned twice");
        std::thread::scope(|scope| {
            for (number, (pod, result)) in pods.iter().zip(&results).enumerate() {
                let (host, config) = (&host, &config);
                scope.spawn(move || {
                    host.check(pod, config, result).unwrap();
                    if number % 2 == 0 {
                        host.del(pod, config);
                    }
                });
            }
        });
        for (pod, result) in pods.iter().zip(&results).skip(1).step_by(2) {
            host.check(pod, &config, result).unwrap();
        }
        let claims = std::fs::read_dir(host.node.run_dir().join("networks/blue/addresses")).unwrap();
        assert_eq!(claims.count(), PODS, "{mode}: two addresses for each remaining pod");
    }
}
