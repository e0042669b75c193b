//! F1, F2, F6 and F7: sysctls that the agent relies on or changes.

use serde_json::Value;
use testkit::{Agent, CableEnd, Lab, Ns, Plugin, wait_until};

use crate::common::{Host, MODES, host_link, ips};
use crate::scene::{BRIDGE, BY_EVENTS, Scene, TIMEOUT, run};

fn sysctl(ns: &Ns, key: &str) -> String {
    ns.sh(&["cat", &format!("/proc/sys/net/{key}")]).unwrap().trim().to_owned()
}

/// A node without an agent.
fn bare(label: &str) -> (Lab, testkit::Node) {
    let lab = Lab::new(label).unwrap();
    let node = lab.node("n1").unwrap();
    (lab, node)
}

fn start(lab: Lab, node: testkit::Node, mode: &str) -> Host {
    let flags = ["--no-install", "--network-mode", mode, BY_EVENTS[0], BY_EVENTS[1]];
    let agent = Agent::start(&node, &flags).unwrap();
    Host { agent, plugin: Plugin::podwire().unwrap(), node, lab }
}

#[test]
fn f1_f7_a_learnt_default_route_is_kept_and_cleanup_restores_sysctls() {
    let (lab, node) = bare("f1");
    let out = lab.node("out").unwrap();
    let up = |dev| CableEnd { ns: &node, dev, addresses: &[] };
    lab.wire(&up("up0"), &CableEnd { ns: &out, dev: "eth0", addresses: &[] }).unwrap();
    lab.wire(&up("up1"), &CableEnd { ns: &out, dev: "eth1", addresses: &[] }).unwrap();
    run(&node, "ip -6 route add default via fe80::b dev up0 proto ra");
    let keys =
        ["ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv6/conf/up0/accept_ra", "ipv6/conf/up1/accept_ra"];
    let before = keys.map(|key| sysctl(&node, key));
    let mut host = start(lab, node, "routed");
    assert_eq!(keys.map(|key| sysctl(&host.node, key)), ["1", "1", "2", "1"], "before: {before:?}");
    let recorded = std::fs::read_to_string(host.agent.run_dir().join("sysctls")).unwrap();
    let recorded: Value = serde_json::from_str(&recorded).unwrap();
    for (key, before) in keys.iter().zip(&before).take(3) {
        assert_eq!(recorded[format!("/proc/sys/net/{key}")]["before"], before.as_str(), "{recorded}");
    }
    assert_eq!(recorded.as_object().unwrap().len(), 3, "{recorded}");
    // The recorded value is that from before the agent's first start, also after a repair.
    let _pod = host.attached("a");
    run(&host.node, "sysctl -q -w net.ipv4.ip_forward=0");
    run(&host.node, &format!("ip link set {BRIDGE} down"));
    wait_until("the repair", TIMEOUT, || Ok(sysctl(&host.node, keys[0]) == "1")).unwrap();
    host.agent.stop().unwrap();
    let run_dir = host.agent.run_dir().display().to_string();
    let cleaned = host.agent.podwire(&["cleanup", "--run-dir", &run_dir]).unwrap();
    assert!(cleaned.success(), "{cleaned:?}");
    assert_eq!(keys.map(|key| sysctl(&host.node, key)), before, "{}", cleaned.stdout);
}

#[test]
fn f2_no_managed_link_accepts_router_advertisements() {
    for mode in MODES {
        let scene = Scene::new("f2", mode);
        let expect = |case: &str| {
            for link in [BRIDGE, scene.host_end()] {
                assert_eq!(
                    sysctl(scene.node(), &format!("ipv6/conf/{link}/accept_ra")),
                    "0",
                    "{mode}, {case}: {link}"
                );
            }
            for key in ["accept_ra", "autoconf", "accept_redirects", "disable_ipv6"] {
                assert_eq!(
                    sysctl(&scene.a.0, &format!("ipv6/conf/eth0/{key}")),
                    "0",
                    "{mode}, {case}: {key}"
                );
            }
        };
        expect("created");
        scene.repairs_after("host end", || scene.run(&format!("ip link del {}", scene.host_end())));
        scene.repairs_after("bridge", || scene.run(&format!("ip link del {BRIDGE}")));
        expect("created again");
        // A hostPort is also available on the host's loopback, even through a new bridge or host end.
        let link = if mode == "bridge" { BRIDGE } else { scene.host_end() };
        assert_eq!(sysctl(scene.node(), &format!("ipv4/conf/{link}/route_localnet")), "1", "{mode}");
    }
}

#[test]
fn f6_pods_work_with_strict_reverse_path_filtering() {
    let (lab, node) = bare("f6");
    for key in ["all", "default"] {
        run(&node, &format!("sysctl -q -w net.ipv4.conf.{key}.rp_filter=1"));
    }
    let host = start(lab, node, "routed");
    let out = crate::scene::outside(&host);
    let (a, b) = (host.attached("a"), host.attached("b"));
    assert_eq!(sysctl(&host.node, &format!("ipv4/conf/{}/rp_filter", host_link(&a.1))), "1");
    host.expect_connectivity((&a.0, &a.1), (&b.0, &b.1));
    for to in crate::scene::OUT {
        assert!(testkit::ping(&a.0, to.parse().unwrap(), 1).unwrap().all(), "{to}");
    }
    for to in ips(&a.1) {
        assert!(testkit::ping(&host.node, to, 1).unwrap().all(), "{to}");
    }
    drop(out);
}
