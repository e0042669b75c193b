//! DEL, whatever has happened before: E14.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Pod, Snapshot, Verb, inspect};
use types::AttachmentKey;

use crate::common::{DUAL, Host, MODES, host_link, ips, with, with_previous, words};

/// A pod with everything that leaves traces, on a node where all that stays for good is there already.
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

    /// Nothing in the kernel, no claim, no record; and the same wishes can be granted again.
    fn expect_clean(&self, what: &str) {
        self.before.expect_same(&self.host.node).unwrap_or_else(|e| panic!("{what}: {e:#}"));
        for directory in ["addresses", "attachments"] {
            assert_eq!(
                names(&self.network_dir().join(directory)),
                Vec::<String>::new(),
                "{what}: {directory}"
            );
        }
        let (again, result) = self.host.attached("again", &self.config);
        self.host.check(&again, &self.config, &result).unwrap();
    }
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return vec![] };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn e14_del_again_and_again() {
    for mode in MODES {
        let scene = Scene::new("e14-again", mode);
        for _ in 0..3 {
            scene.del(&scene.call());
        }
        assert_eq!(inspect::links(&scene.pod).unwrap().len(), 1, "{mode}: only lo is left in the pod");
        scene.expect_clean(mode);
    }
}

#[test]
fn e14_del_of_what_never_was() {
    let host = Host::new("e14-never");
    let config = host.config(&json!({"subnet": DUAL}));
    let before = Snapshot::of(&host.node).unwrap();
    host.del(&host.pod("a"), &config);
    before.expect_same(&host.node).unwrap();
    assert!(!host.node.run_dir().exists(), "a DEL has no reason to make a state directory");
}

#[test]
fn e14_del_without_netns_without_prev_result_and_with_it() {
    for mode in MODES {
        for netns in [None, Some(""), Some("/nowhere/at/all")] {
            let scene = Scene::new("e14-netns", mode);
            scene.del(&Call { netns: netns.map(str::to_owned), ..scene.call() });
            assert!(
                inspect::link(&scene.pod, "eth0").is_err(),
                "{mode} {netns:?}: the link is gone in the pod too"
            );
            scene.expect_clean(&format!("{mode}, CNI_NETNS {netns:?}"));
        }
        let scene = Scene::new("e14-prev", mode);
        scene.del(&Call::pod(Verb::Del, &scene.pod, &with_previous(&scene.config, &scene.result)));
        scene.expect_clean(mode);
    }
}

#[test]
fn e14_del_after_the_namespace_vanished() {
    for mode in MODES {
        let scene = Scene::new("e14-gone", mode);
        scene.pod.destroy().unwrap();
        scene.del(&scene.call());
        scene.expect_clean(&format!("{mode}: destroyed"));
        let scene = Scene::new("e14-file", mode);
        scene.pod.destroy_but_leave_file().unwrap();
        scene.del(&scene.call());
        scene.expect_clean(&format!("{mode}: a plain file is at its path"));
    }
}

/// What somebody broke before the DEL, in the node's namespace. `{host}` and `{ifb}` are the pod's links.
const DAMAGES: &[&str] = &[
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
fn e14_del_after_parts_are_gone_already() {
    for mode in MODES {
        for damage in DAMAGES {
            let scene = Scene::new("e14-parts", mode);
            let line = damage.replace("{host}", host_link(&scene.result)).replace("{ifb}", &ifb(&scene.pod));
            scene.host.node.sh(&words(&line)).unwrap();
            scene.del(&scene.call());
            scene.expect_clean(&format!("{mode}, after `{line}`"));
        }
    }
}

#[test]
fn e14_del_after_bridge_or_tables_are_gone() {
    for mode in MODES {
        for damage in ["ip link del pw0", "nft delete table inet podwire", "nft flush ruleset"] {
            let scene = Scene::new("e14-whole", mode);
            scene.host.node.sh(&words(damage)).unwrap();
            scene.del(&scene.call());
            let left = scene.before.difference(&Snapshot::of(&scene.host.node).unwrap());
            assert!(left.new.is_empty(), "{mode}, after `{damage}`:\n{left}");
            let (again, result) = scene.host.attached("again", &scene.config);
            scene.host.check(&again, &scene.config, &result).unwrap();
        }
    }
}

#[test]
fn e14_del_with_a_config_that_was_broken_or_changed_in_between() {
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
fn e14_del_after_the_state_directory_is_gone() {
    for mode in MODES {
        let scene = Scene::new("e14-state", mode);
        std::fs::remove_dir_all(scene.host.node.run_dir()).unwrap();
        scene.del(&scene.call());
        scene.expect_clean(mode);
    }
}

#[test]
fn e14_del_with_a_record_that_cannot_be_read() {
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

/// What is not ours stays: a link of the host end's name, one in the pod under the same name, another network's state.
#[test]
fn e14_del_leaves_foreign_links_alone() {
    for mode in MODES {
        let scene = Scene::new("e14-foreign", mode);
        let (host, name) = (&scene.host, host_link(&scene.result));
        host.node.sh(&["ip", "link", "del", name]).unwrap();
        host.node.sh(&["ip", "link", "add", name, "type", "veth", "peer", "name", "foreign1"]).unwrap();
        scene.pod.sh(&words("ip link add eth0 type veth peer name foreign2")).unwrap();
        let inside = Snapshot::of(&scene.pod).unwrap();
        scene.del(&scene.call());
        assert_eq!(inspect::link(&host.node, name).unwrap().kind(), Some("veth"), "{mode}");
        inside.expect_same(&scene.pod).unwrap();
        host.node.sh(&["ip", "link", "del", name]).unwrap();
        scene.expect_clean(mode);
    }
}

/// The links of a destroyed namespace go by themselves; the DEL that comes during that must not mind.
#[test]
fn e14_del_while_the_kernel_takes_the_namespace_down() {
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
        let (_, result) = host.attached("again", &config);
        assert!(!ips(&result).is_empty());
    }
}

/// As `podman network connect` and `disconnect` do it.
/// As with the reference's `bridge`: pods of the second network reach the pod by its address there. Also after the pod left its
/// first network, and when that one has become its second.
#[test]
fn b12_a_second_network_is_reached_by_its_own_address() {
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
        let expect_reached = |peer: &Pod, result: &Value| {
            for ip in ips(result) {
                assert!(testkit::ping(peer, ip, 1).unwrap().all(), "{first} and {second}: {ip}");
            }
        };
        let in1 = host.add(&pod, &x1);
        let in2 = host.call_on(Verb::Add, (&pod, "eth1"), &x2).ok().unwrap();
        expect_reached(&peer1, &in1);
        expect_reached(&peer2, &in2);
        // Pods of the network on other nodes.
        let other = pod.sh(&["ip", "route", "get", "10.72.9.9"]).unwrap();
        assert_eq!(other.contains("dev eth1"), second == "routed", "{first} and {second}: {other}");
        host.del(&pod, &x1);
        expect_reached(&peer2, &in2);
        let in1 = host.add(&pod, &x1);
        expect_reached(&peer1, &in1);
        expect_reached(&peer2, &in2);
        host.del(&pod, &x1);
        host.call_on(Verb::Del, (&pod, "eth1"), &x2).ok().unwrap();
    }
}

/// Where tunnel modules are loaded, every namespace has devices such as tunl0. A network whose records cannot be listed shows
/// whether the DEL lists them.
#[test]
fn b12_a_del_reads_other_records_only_if_the_pod_has_another_interface() {
    for (link, reads) in [("tunl0 type bridge", false), ("eth7 up type veth peer name eth8", true)] {
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
        assert_eq!(deleted.stderr.contains("were not restored"), reads, "{link}: {}", deleted.stderr);
    }
}

/// Another process works on the remaining interface.
#[test]
fn b12_a_remaining_interface_that_is_busy_is_waited_for_and_reported() {
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
    let busy = std::fs::File::open(host.node.run_dir().join(record)).unwrap();
    busy.lock().unwrap();
    let deleted = host.plugin.del(&pod, &x1).unwrap();
    deleted.ok().unwrap();
    assert!(deleted.elapsed >= Duration::from_millis(500), "{:?}", deleted.elapsed);
    let stderr = deleted.stderr;
    assert!(stderr.contains("were not restored") && stderr.contains("stayed locked"), "{stderr}");
}

#[test]
fn b12_a_pod_that_leaves_its_first_network_gets_the_default_route_of_the_other() {
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
        // A route of another interface that the pod itself removed is not of this interface.
        pod.sh(&["ip", "route", "del", "192.0.2.0/24"]).unwrap();
        pod.sh(&["ip", "route", "add", "default", "dev", "eth2", "table", "77"]).unwrap();
        host.del(&pod, &x1);
        assert_eq!(pod.sh(&["ip", "route", "show", "192.0.2.0/24"]).unwrap(), "", "{first} and {second}");
        expect(72, "eth1");
        for gateway in ["10.72.0.1", "fd00:72::1"] {
            assert!(testkit::ping(&pod, gateway.parse().unwrap(), 1).unwrap().all(), "{gateway}");
        }
        // GC removes an attachment, too.
        host.plugin.gc(&host.node, &x2, &[]).unwrap().ok().unwrap();
        expect(73, "eth2");
        host.call_on(Verb::Del, (&pod, "eth2"), &x3).ok().unwrap();
        assert_eq!(defaults(), ["", ""]);
    }
}
