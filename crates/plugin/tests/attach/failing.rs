//! An ADD that fails leaves nothing, and those that run side by side do not meet: E12.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testkit::{Call, Pod, Snapshot, Verb};
use types::AttachmentKey;

use crate::common::{DUAL, Host, MODES, ips, with, words};

/// Something that makes an ADD fail: what the node is made to look like before, what the config asks for besides, and
/// what the answer must say.
struct Case {
    node: &'static [&'static str],
    config: Value,
    code: u32,
    says: &'static str,
}

/// In the order in which an attach would meet them. `{ifb}` is the link that would shape what the pod sends.
fn cases(mode: &str) -> Vec<Case> {
    let wish = |runtime: Value| json!({"runtimeConfig": runtime});
    let mut cases = vec![
        Case { node: &[], config: json!({"bridge": "lo"}), code: 7, says: "not a bridge" },
        Case { node: &[], config: wish(json!({"ips": ["10.88.0.2"]})), code: 101, says: "10.88.0.2" },
        Case { node: &[], config: wish(json!({"ips": ["192.0.2.1"]})), code: 7, says: "192.0.2.1" },
        Case { node: &[], config: json!({"mtu": 1000}), code: 7, says: "1000" },
        Case {
            node: &[],
            config: wish(json!({"portMappings": [{"hostPort": 8080, "containerPort": 80}]})),
            code: 103,
            says: "8080",
        },
        Case {
            node: &[],
            config: json!({"subnet": null, "ipam": {"ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]],
                "routes": [{"dst": "192.0.2.0/24", "gw": "224.0.0.1"}]}}),
            code: 103,
            says: "192.0.2.0/24",
        },
        Case {
            node: &["ip link add {ifb} type ifb"],
            config: wish(json!({"bandwidth": {"egressRate": 8_000_000, "egressBurst": 8_000_000}})),
            code: 103,
            says: "{ifb}",
        },
    ];
    if mode == "routed" {
        let node = &["ip route add 10.88.0.77/32 dev lo"];
        cases.push(Case {
            node,
            config: wish(json!({"ips": ["10.88.0.77"]})),
            code: 101,
            says: "10.88.0.77",
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

/// Files of the state directory but for cursors and bitmaps, which only say where to look first.
fn records(host: &Host) -> BTreeSet<String> {
    let dir = host.node.run_dir();
    let found = host
        .node
        .sh(&["find", dir.to_str().unwrap(), "-path", "*/index/*", "-prune", "-o", "-print"])
        .unwrap();
    found.lines().map(str::to_owned).collect()
}

#[test]
fn e12_an_add_that_fails_leaves_nothing_and_its_del_succeeds() {
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
            let asked = with(&config, &case.config);
            let error = host.refused(&pod, &asked);
            assert_eq!(error.code, case.code, "{mode} {}: {error:?}", case.config);
            let says = case.says.replace("{ifb}", &ifb(&pod));
            assert!(error.msg.contains(&says), "{mode} {}: {:?}", case.config, error.msg);
            for _ in 0..2 {
                node.expect_same(&host.node).unwrap_or_else(|e| panic!("{mode} {}: {e:#}", case.config));
                inside.expect_same(&pod).unwrap_or_else(|e| panic!("{mode} {}: {e:#}", case.config));
                assert_eq!(records(&host), files, "{mode} {}", case.config);
                host.del(&pod, &asked);
            }
            host.check(&neighbour, &with(&config, &ports), &result).unwrap();
            host.add(&pod, &config);
        }
    }
}

#[test]
fn e12_an_add_into_nowhere_or_into_the_nodes_own_namespace_leaves_nothing() {
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
fn e12_adds_and_dels_of_many_containers_side_by_side() {
    const PODS: usize = 24;
    for mode in MODES {
        let host = Host::new("e12-many");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
        let pods: Vec<Pod> = (0..PODS).map(|n| host.pod(&format!("p{n}"))).collect();
        // On a fresh node: all of them want to make the bridge, the tables and the state directory.
        let results: Vec<Value> = std::thread::scope(|scope| {
            let adding: Vec<_> = pods.iter().map(|pod| scope.spawn(|| host.add(pod, &config))).collect();
            adding.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let addresses: BTreeSet<_> = results.iter().flat_map(ips).collect();
        assert_eq!(addresses.len(), 2 * PODS, "{mode}: every pod has addresses of its own");
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
        assert_eq!(claims.count(), PODS, "{mode}: half of the pods, two addresses each");
    }
}
