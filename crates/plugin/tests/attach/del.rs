//! DEL in all states of a pod and its node: E14. Default routes of pods with several interfaces: B12.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Pod, Snapshot, Verb, inspect};
use types::AttachmentKey;

use crate::common::{DUAL, Host, MODES, host_link, ips, with, with_previous, words};

/// A pod with host ports and bandwidth limits. `before` has the bridge and the tables, which are not removed with the last pod.
struct Scene {
    host: Host,
    config: Value,
    pod: Pod,
    result: Value,
    before: Snapshot,
}

impl Scene {
    fn new(label: &str, mode: &str) -> Self {
        let host = Host::new(label);
        let limit = 80_000_000;
        let config = host.config(&json!({
            "mode": mode, "subnet": DUAL, "ipMasq": true,
            "runtimeConfig": {
                "portMappings": [{"hostPort": 8080, "containerPort": 80}],
                "bandwidth": {"ingressRate": limit, "ingressBurst": limit, "egressRate": limit, "egressBurst": limit},
            },
        }));
        let (first, _) = host.attached("first", &config);
        host.del(&first, &config);
        let before = Snapshot::of(&host.node).unwrap();
        let (pod, result) = host.attached("a", &config);
        Self { host, config, pod, result, before }
    }

    fn del(&self, call: &Call) {
        let outcome = self.host.plugin.call(&self.host.node, call).unwrap();
        assert_eq!(outcome.ok().unwrap(), Value::Null);
    }

    fn call(&self) -> Call {
        Call::pod(Verb::Del, &self.pod, &self.config)
    }

    fn network_dir(&self) -> PathBuf {
        self.host.node.run_dir().join("networks/blue")
    }

    /// Expects no objects in the kernel, no claim and no record, and that the same host port can be used again.
    fn expect_clean(&self, case: &str) {
        self.before.expect_same(&self.host.node).unwrap_or_else(|e| panic!("{case}: {e:#}"));
        for directory in ["addresses", "attachments"] {
            assert_eq!(
                names(&self.network_dir().join(directory)),
                Vec::<String>::new(),
                "{case}: {directory}"
            );
        }
        let (next, result) = self.host.attached("next", &self.config);
        self.host.check(&next, &self.config, &result).unwrap();
    }
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return vec![] };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn e14_del_can_be_repeated() {
    for mode in MODES {
        let scene = Scene::new("e14-repeat", mode);
        for _ in 0..3 {
            scene.del(&scene.call());
        }
        assert_eq!(inspect::links(&scene.pod).unwrap().len(), 1, "{mode}: the pod has links other than lo");
        scene.expect_clean(mode);
    }
}

#[test]
fn e14_del_of_an_unknown_pod_succeeds() {
    let host = Host::new("e14-never");
    let config = host.config(&json!({"subnet": DUAL}));
    let before = Snapshot::of(&host.node).unwrap();
    host.del(&host.pod("a"), &config);
    before.expect_same(&host.node).unwrap();
    assert!(!host.node.run_dir().exists(), "the DEL created a run directory");
}

#[test]
fn e14_del_needs_neither_netns_nor_prev_result() {
    for mode in MODES {
        for netns in [None, Some(""), Some("/nowhere/at/all")] {
            let scene = Scene::new("e14-netns", mode);
            scene.del(&Call { netns: netns.map(str::to_owned), ..scene.call() });
            assert!(
                inspect::link(&scene.pod, "eth0").is_err(),
                "{mode} {netns:?}: the pod still has its link"
            );
            scene.expect_clean(&format!("{mode}, CNI_NETNS {netns:?}"));
        }
        let scene = Scene::new("e14-prev", mode);
        scene.del(&Call::pod(Verb::Del, &scene.pod, &with_previous(&scene.config, &scene.result)));
        scene.expect_clean(mode);
    }
}

#[test]
fn e14_del_succeeds_after_the_namespace_was_destroyed() {
    for mode in MODES {
        let scene = Scene::new("e14-gone", mode);
        scene.pod.destroy().unwrap();
        scene.del(&scene.call());
        scene.expect_clean(&format!("{mode}: destroyed"));
        let scene = Scene::new("e14-file", mode);
        scene.pod.destroy_but_leave_file().unwrap();
        scene.del(&scene.call());
        scene.expect_clean(&format!("{mode}: a regular file is at the path"));
    }
}

/// Commands that remove parts of an attachment, in the node's namespace. `{host}` and `{ifb}` are the pod's links.
const REMOVALS: &[&str] = &[
    "ip link del {host}",
    "ip link del {ifb}",
    "ip link set {host} nomaster",
    "ip link set {host} down",
    "tc qdisc del dev {host} root",
    "nft flush set inet podwire pods4",
    "nft flush map inet podwire hostport4_any",
    "conntrack -F",
];

fn ifb(pod: &Pod) -> String {
    let key = AttachmentKey {
        network: "blue".try_into().unwrap(),
        container: pod.id().try_into().unwrap(),
        ifname: "eth0".try_into().unwrap(),
    };
    key.shaper_link().as_str().to_owned()
}

#[test]
fn e14_del_succeeds_if_parts_of_the_attachment_are_missing() {
    for mode in MODES {
        for removal in REMOVALS {
            let scene = Scene::new("e14-parts", mode);
            let line = removal.replace("{host}", host_link(&scene.result)).replace("{ifb}", &ifb(&scene.pod));
            scene.host.node.sh(&words(&line)).unwrap();
            scene.del(&scene.call());
            scene.expect_clean(&format!("{mode}, after `{line}`"));
        }
    }
}

#[test]
fn e14_del_succeeds_without_bridge_or_tables() {
    for mode in MODES {
        for removal in ["ip link del pw0", "nft delete table inet podwire", "nft flush ruleset"] {
            let scene = Scene::new("e14-whole", mode);
            scene.host.node.sh(&words(removal)).unwrap();
            scene.del(&scene.call());
            let difference = scene.before.difference(&Snapshot::of(&scene.host.node).unwrap());
            assert!(difference.new.is_empty(), "{mode}, after `{removal}`:\n{difference}");
            let (next, result) = scene.host.attached("next", &scene.config);
            scene.host.check(&next, &scene.config, &result).unwrap();
        }
    }
}

#[test]
fn e14_del_succeeds_with_a_changed_or_invalid_config() {
    for mode in MODES {
        for change in [
            json!({"subnet": "nonsense"}),
            json!({"subnet": null}),
            json!({"bridge": "another0", "mode": "nonsense"}),
            json!({"mtu": -1, "runtimeConfig": 7}),
            json!({"runtimeConfig": null, "ipMasq": null}),
        ] {
            let scene = Scene::new("e14-config", mode);
            scene.del(&Call::pod(Verb::Del, &scene.pod, &with(&scene.config, &change)));
            scene.expect_clean(&format!("{mode}, {change}"));
        }
    }
}

#[test]
fn e14_del_succeeds_without_the_run_directory() {
    for mode in MODES {
        let scene = Scene::new("e14-state", mode);
        std::fs::remove_dir_all(scene.host.node.run_dir()).unwrap();
        scene.del(&scene.call());
        scene.expect_clean(mode);
    }
}

#[test]
fn e14_del_succeeds_with_an_unreadable_record() {
    for mode in MODES {
        for text in ["", "{", "null", "\u{0}\u{0}\u{0}", r#"{"schema":1,"network":"blue"}"#] {
            let scene = Scene::new("e14-record", mode);
            let record =
                scene.network_dir().join("attachments").join(format!("{}@eth0.ready", scene.pod.id()));
            std::fs::write(&record, text).unwrap();
            scene.del(&scene.call());
            scene.expect_clean(&format!("{mode}, record {text:?}"));
        }
    }
}

/// An unmanaged link has the name of the host end, and another one the name of the pod's interface.
#[test]
fn e14_del_does_not_remove_unmanaged_links() {
    for mode in MODES {
        let scene = Scene::new("e14-unmanaged", mode);
        let (host, name) = (&scene.host, host_link(&scene.result));
        host.node.sh(&["ip", "link", "del", name]).unwrap();
        host.node.sh(&["ip", "link", "add", name, "type", "veth", "peer", "name", "unmanaged1"]).unwrap();
        scene.pod.sh(&words("ip link add eth0 type veth peer name unmanaged2")).unwrap();
        let inside = Snapshot::of(&scene.pod).unwrap();
        scene.del(&scene.call());
        assert_eq!(inspect::link(&host.node, name).unwrap().kind(), Some("veth"), "{mode}");
        inside.expect_same(&scene.pod).unwrap();
        host.node.sh(&["ip", "link", "del", name]).unwrap();
        scene.expect_clean(mode);
    }
}

/// The kernel removes the links of a destroyed namespace while the DEL runs.
#[test]
fn e14_del_succeeds_while_the_kernel_destroys_the_namespace() {
    for mode in MODES {
        let host = Host::new("e14-race");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (first, _) = host.attached("first", &config);
        host.del(&first, &config);
        let before = Snapshot::of(&host.node).unwrap();
        let pods: Vec<(Pod, Value)> = (0..12).map(|n| host.attached(&format!("p{n}"), &config)).collect();
        std::thread::scope(|scope| {
            for (pod, _) in &pods {
                let (host, config) = (&host, &config);
                scope.spawn(move || {
                    pod.destroy().unwrap();
                    host.del(pod, config);
                });
            }
        });
        before.wait_for_same(&host.node, DEADLINE).unwrap();
        let (_, result) = host.attached("next", &config);
        assert!(!ips(&result).is_empty());
    }
}

/// As in the reference bridge plugin, pods of the second network reach the pod at its address in that network. This also holds
/// after `podman network disconnect` and `connect` of the first network.
#[test]
fn b12_a_pod_is_reachable_in_its_second_network() {
    for (first, second) in MODES.into_iter().flat_map(|first| MODES.map(|second| (first, second))) {
        let host = Host::new("b12second");
        let network = |name: &str, n: u8, mode: &str| {
            let (subnet, all) = (format!("10.{n}.0.0/24,fd00:{n}::/64"), format!("10.{n}.0.0/16"));
            let keys = json!({"name": name, "bridge": name, "mode": mode, "subnet": subnet, "network": all});
            host.config(&keys)
        };
        let (x1, x2) = (network("x1", 71, first), network("x2", 72, second));
        let pod = host.pod("a");
        let (peer1, peer2) = (host.attached("p1", &x1).0, host.attached("p2", &x2).0);
        let expect_reachable = |peer: &Pod, result: &Value| {
            for ip in ips(result) {
                assert!(testkit::ping(peer, ip, 1).unwrap().all(), "{first} and {second}: {ip}");
            }
        };
        let in1 = host.add(&pod, &x1);
        let in2 = host.call_on(Verb::Add, (&pod, "eth1"), &x2).ok().unwrap();
        expect_reachable(&peer1, &in1);
        expect_reachable(&peer2, &in2);
        // An address of the same network on another node.
        let route = pod.sh(&["ip", "route", "get", "10.72.9.9"]).unwrap();
        assert_eq!(route.contains("dev eth1"), second == "routed", "{first} and {second}: {route}");
        host.del(&pod, &x1);
        expect_reachable(&peer2, &in2);
        let in1 = host.add(&pod, &x1);
        expect_reachable(&peer1, &in1);
        expect_reachable(&peer2, &in2);
        host.del(&pod, &x1);
        host.call_on(Verb::Del, (&pod, "eth1"), &x2).ok().unwrap();
    }
}

/// If tunnel modules are loaded, every namespace has devices such as tunl0, which do not count as another interface. The
/// records of one network cannot be listed, so a DEL that lists them prints a warning.
#[test]
fn b12_del_lists_other_records_only_for_pods_with_several_interfaces() {
    for (link, lists_records) in [("tunl0 type bridge", false), ("eth7 up type veth peer name eth8", true)] {
        let host = Host::new("b12-reads");
        let config = host.config(&json!({"subnet": DUAL, "isDefaultGateway": true}));
        let (pod, _) = host.attached("a", &config);
        pod.sh(&["sh", "-c", &format!("ip link add {link}")]).unwrap();
        let other = host.node.run_dir().join("networks/other");
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("lock"), "").unwrap();
        std::os::unix::fs::symlink("attachments", other.join("attachments")).unwrap();
        let deleted = host.plugin.del(&pod, &config).unwrap();
        deleted.ok().unwrap();
        assert_eq!(
            deleted.stderr.contains("cannot restore routes"),
            lists_records,
            "{link}: {}",
            deleted.stderr
        );
    }
}

/// Another process holds the lock of the remaining interface.
#[test]
fn b12_del_reports_a_remaining_interface_that_stays_locked() {
    let host = Host::new("b12-busy");
    let network = |name: &str, subnet: &str| {
        host.config(&json!({"name": name, "bridge": name, "subnet": subnet, "isDefaultGateway": true}))
    };
    let x1 = network("x1", "10.71.0.0/24,fd00:71::/64");
    let x2 = network("x2", "10.72.0.0/24,fd00:72::/64");
    let pod = host.pod("a");
    host.add(&pod, &x1);
    host.call_on(Verb::Add, (&pod, "eth1"), &x2).ok().unwrap();
    let record = format!("networks/x2/attachments/{}@eth1.ready", pod.id());
    let locked = std::fs::File::open(host.node.run_dir().join(record)).unwrap();
    locked.lock().unwrap();
    let deleted = host.plugin.del(&pod, &x1).unwrap();
    deleted.ok().unwrap();
    assert!(deleted.elapsed >= Duration::from_millis(500), "{:?}", deleted.elapsed);
    let stderr = deleted.stderr;
    assert!(stderr.contains("cannot restore routes") && stderr.contains("was locked"), "{stderr}");
}

#[test]
fn b12_del_moves_the_default_route_to_a_remaining_interface() {
    for (first, second) in MODES.into_iter().flat_map(|first| MODES.map(|second| (first, second))) {
        let host = Host::new("b12");
        let network = |name: &str, n: u8, mode: &str| {
            let subnet = format!("10.{n}.0.0/24,fd00:{n}::/64");
            let ipam = (name == "x3").then(|| json!({"routes": [{"dst": "192.0.2.0/24"}]}));
            host.config(&json!({"name": name, "bridge": name, "mode": mode, "subnet": subnet, "ipam": ipam,
                "isDefaultGateway": true}))
        };
        let (x1, x2, x3) = (network("x1", 71, first), network("x2", 72, second), network("x3", 73, second));
        let pod = host.pod("a");
        host.add(&pod, &x1);
        for (ifname, config) in [("eth1", &x2), ("eth2", &x3)] {
            host.call_on(Verb::Add, (&pod, ifname), config).ok().unwrap();
        }
        let defaults = || {
            ["-4", "-6"]
                .map(|family| pod.sh(&["ip", family, "route", "show", "default"]).unwrap().trim().to_owned())
        };
        let expect = |n: u8, ifname: &str| {
            let [v4, v6] = defaults();
            let case = format!("{first} and {second}: {v4} {v6}");
            assert!(v4.starts_with(&format!("default via 10.{n}.0.1 dev {ifname}")), "{case}");
            assert!(v6.starts_with(&format!("default via fd00:{n}::1 dev {ifname}")), "{case}");
        };
        expect(71, "eth0");
        // The DEL restores default routes only, not other routes that were removed inside the pod.
        pod.sh(&["ip", "route", "del", "192.0.2.0/24"]).unwrap();
        pod.sh(&["ip", "route", "add", "default", "dev", "eth2", "table", "77"]).unwrap();
        host.del(&pod, &x1);
        assert_eq!(pod.sh(&["ip", "route", "show", "192.0.2.0/24"]).unwrap(), "", "{first} and {second}");
        expect(72, "eth1");
        for gateway in ["10.72.0.1", "fd00:72::1"] {
            assert!(testkit::ping(&pod, gateway.parse().unwrap(), 1).unwrap().all(), "{gateway}");
        }
        // GC also moves the default route.
        host.plugin.gc(&host.node, &x2, &[]).unwrap().ok().unwrap();
        expect(73, "eth2");
        host.call_on(Verb::Del, (&pod, "eth2"), &x3).ok().unwrap();
        assert_eq!(defaults(), ["", ""]);
    }
}
