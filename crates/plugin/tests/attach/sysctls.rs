//! Kernel settings: F1, F2, F6, F7, F8.

use serde_json::{Value, json};
use testkit::{CableEnd, Ns, inspect, ping, tcp_connects, tcp_echo};

use crate::common::{DUAL, Host, MODES, host_link, ips, v4, words};

fn sysctl(ns: &Ns, key: &str) -> String {
    ns.sh(&["cat", &format!("/proc/sys/net/{key}")]).unwrap().trim().to_owned()
}

fn set(ns: &Ns, key: &str, value: &str) {
    let line = format!("echo {value} >/proc/sys/net/{key}");
    ns.sh(&["sh", "-c", &line]).unwrap();
}

fn recorded(host: &Host) -> Value {
    let text =
        std::fs::read_to_string(host.node.run_dir().join("sysctls")).unwrap_or_else(|_| "{}".to_owned());
    serde_json::from_str(&text).unwrap()
}

/// Connects the node through `up0` to a host outside the network.
fn uplink(host: &Host) -> testkit::Node {
    let outside = host.lab.node("out").unwrap();
    let here = CableEnd { ns: &host.node, dev: "up0", addresses: &["192.0.2.1/24", "2001:db8::1/64"] };
    let there = CableEnd { ns: &outside, dev: "eth0", addresses: &["192.0.2.2/24", "2001:db8::2/64"] };
    host.lab.wire(&here, &there).unwrap();
    outside
}

#[test]
fn f1_a_default_route_from_a_router_survives_forwarding() {
    for mode in MODES {
        let host = Host::new("f1");
        let _outside = uplink(&host);
        set(&host.node, "ipv6/conf/all/forwarding", "0");
        set(&host.node, "ipv6/conf/up0/accept_ra", "1");
        set(&host.node, "ipv6/conf/lo/accept_ra", "1");
        host.node.sh(&words("ip -6 route add default via fe80::b dev up0 proto ra")).unwrap();
        host.attached("a", &host.config(&json!({"subnet": DUAL, "mode": mode})));
        assert_eq!(sysctl(&host.node, "ipv6/conf/all/forwarding"), "1", "{mode}");
        assert_eq!(
            sysctl(&host.node, "ipv6/conf/up0/accept_ra"),
            "2",
            "{mode}: router advertisements are ignored"
        );
        assert_eq!(
            sysctl(&host.node, "ipv6/conf/lo/accept_ra"),
            "1",
            "{mode}: lo has no route from a router"
        );
        let changed = &recorded(&host)["/proc/sys/net/ipv6/conf/up0/accept_ra"];
        assert_eq!(*changed, json!({"before": "1", "ours": "2"}), "{mode}");
    }
}

#[test]
fn f1_accept_ra_is_only_changed_if_necessary() {
    for (subnet, protocol) in [(DUAL, "static"), ("10.88.0.0/24", "ra")] {
        let host = Host::new("f1-not");
        let _outside = uplink(&host);
        set(&host.node, "ipv6/conf/all/forwarding", "0");
        set(&host.node, "ipv6/conf/up0/accept_ra", "1");
        let route = format!("ip -6 route add default via fe80::b dev up0 proto {protocol}");
        host.node.sh(&words(&route)).unwrap();
        host.attached("a", &host.config(&json!({"subnet": subnet})));
        assert_eq!(sysctl(&host.node, "ipv6/conf/up0/accept_ra"), "1", "{subnet} {protocol}");
        let forwarding = if subnet == DUAL { "1" } else { "0" };
        assert_eq!(
            sysctl(&host.node, "ipv6/conf/all/forwarding"),
            forwarding,
            "{subnet}: IPv6 forwarding is only enabled for IPv6 subnets"
        );
    }
}

#[test]
fn f2_pod_link_host_end_and_bridge_ignore_router_advertisements() {
    for mode in MODES {
        for subnet in [DUAL, "10.88.0.0/24", "fd00:88::/64"] {
            let host = Host::new("f2");
            let (pod, result) = host.attached("a", &host.config(&json!({"subnet": subnet, "mode": mode})));
            for key in ["accept_ra", "autoconf", "accept_redirects"] {
                assert_eq!(sysctl(&pod, &format!("ipv6/conf/eth0/{key}")), "0", "{mode} {subnet} {key}");
            }
            for link in [host_link(&result), "pw0"] {
                assert_eq!(
                    sysctl(&host.node, &format!("ipv6/conf/{link}/accept_ra")),
                    "0",
                    "{mode} {subnet} {link}"
                );
            }
        }
        let host = Host::new("f2-bridge");
        host.node.sh(&words("ip link add pw0 type bridge")).unwrap();
        host.attached("a", &host.config(&json!({"subnet": DUAL, "mode": mode})));
        assert_eq!(sysctl(&host.node, "ipv6/conf/pw0/accept_ra"), "0", "{mode}: an existing bridge");
    }
}

#[test]
fn f2_ipv6_is_enabled_in_pods_with_an_ipv6_address() {
    for mode in MODES {
        for (subnet, disabled) in [(DUAL, "0"), ("10.88.0.0/24", "1")] {
            let host = Host::new("f2-off");
            let pod = host.pod("a");
            // Some runtimes disable IPv6 like this.
            for link in ["all", "default"] {
                set(&pod, &format!("ipv6/conf/{link}/disable_ipv6"), "1");
            }
            let result = host.add(&pod, &host.config(&json!({"subnet": subnet, "mode": mode})));
            assert_eq!(sysctl(&pod, "ipv6/conf/eth0/disable_ipv6"), disabled, "{mode} {subnet}");
            let gateways = result["ips"].as_array().unwrap().iter().map(|ip| ip["gateway"].as_str().unwrap());
            for gateway in gateways {
                assert!(ping(&pod, gateway.parse().unwrap(), 1).unwrap().all(), "{mode}: {gateway}");
            }
        }
    }
}

/// The node has IPv6 disabled for new links (`default`) or for all links.
#[test]
fn f2_ipv6_is_enabled_on_managed_links_if_the_node_disables_it() {
    for mode in MODES {
        for (links, is_unmanaged) in
            [(&["default"][..], false), (&["all", "default"][..], false), (&["default"][..], true)]
        {
            let case = format!("{mode} {links:?}, unmanaged bridge: {is_unmanaged}");
            let host = Host::new("f2-node");
            for link in links {
                set(&host.node, &format!("ipv6/conf/{link}/disable_ipv6"), "1");
            }
            if is_unmanaged {
                host.node.sh(&words("ip link add pw0 type bridge")).unwrap();
            }
            let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
            let ((a, ra), (_b, rb)) = (host.attached("a", &config), host.attached("b", &config));
            for ip in ips(&ra).into_iter().chain(ips(&rb)) {
                assert!(ping(&host.node, ip, 1).unwrap().all(), "{case}: host to pod {ip}");
                assert!(ping(&a, ip, 1).unwrap().all(), "{case}: pod to pod {ip}");
            }
            assert!(ping(&a, "fd00:88::1".parse().unwrap(), 1).unwrap().all(), "{case}: pod to host");
            // The setting for unrelated links is not changed.
            assert_eq!(sysctl(&host.node, "ipv6/conf/default/disable_ipv6"), "1", "{case}");
            let change = &recorded(&host)["/proc/sys/net/ipv6/conf/pw0/disable_ipv6"];
            let expected = if is_unmanaged { json!({"before": "1", "ours": "0"}) } else { Value::Null };
            assert_eq!(*change, expected, "{case}");
            // If another process disables IPv6 on the bridge, the next ADD enables it.
            set(&host.node, "ipv6/conf/pw0/disable_ipv6", "1");
            let (c, _) = host.attached("c", &config);
            assert!(ping(&c, "fd00:88::1".parse().unwrap(), 1).unwrap().all(), "{case}: after repair");
        }
    }
}

#[test]
fn f6_pods_are_reachable_with_strict_rp_filter() {
    for mode in MODES {
        let host = Host::new("f6");
        let outside = uplink(&host);
        outside.sh(&words("ip route add 10.88.0.0/24 via 192.0.2.1")).unwrap();
        for link in ["all", "default", "up0"] {
            set(&host.node, &format!("ipv4/conf/{link}/rp_filter"), "1");
        }
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let ((a, ra), (b, rb)) = (host.attached("a", &config), host.attached("b", &config));
        assert_eq!(sysctl(&host.node, &format!("ipv4/conf/{}/rp_filter", host_link(&ra))), "1", "{mode}");
        for ip in ips(&rb) {
            assert!(ping(&a, ip, 1).unwrap().all(), "{mode}: pod to pod {ip}");
            assert!(ping(&host.node, ip, 1).unwrap().all(), "{mode}: host to pod {ip}");
        }
        for to in ["10.88.0.1", "192.0.2.1", "192.0.2.2"] {
            assert!(ping(&b, to.parse().unwrap(), 1).unwrap().all(), "{mode}: pod to {to}");
        }
        let echo = tcp_echo(&b, (v4(&rb), 80).into()).unwrap();
        let source = tcp_connects(&outside, echo.address(), testkit::DEADLINE).unwrap().unwrap();
        assert_eq!(source.ip().to_string(), "192.0.2.2", "{mode}");
    }
}

#[test]
fn f7_changed_sysctls_are_recorded_with_their_old_value() {
    for mode in MODES {
        let host = Host::new("f7");
        set(&host.node, "ipv4/ip_forward", "0");
        set(&host.node, "ipv6/conf/all/forwarding", "0");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        host.attached("a", &config);
        assert_eq!(sysctl(&host.node, "ipv4/ip_forward"), "1", "{mode}");
        let changed = json!({"before": "0", "ours": "1"});
        let expected = json!({
            "/proc/sys/net/ipv4/ip_forward": changed, "/proc/sys/net/ipv6/conf/all/forwarding": changed,
        });
        assert_eq!(recorded(&host), expected, "{mode}");
        // If another process resets the sysctl and the next ADD sets it again, the recorded old value does not change.
        set(&host.node, "ipv4/ip_forward", "0");
        host.attached("b", &config);
        assert_eq!(sysctl(&host.node, "ipv4/ip_forward"), "1", "{mode}");
        assert_eq!(recorded(&host), expected, "{mode}");
    }
}

#[test]
fn f7_changed_sysctls_of_unmanaged_bridges_are_recorded() {
    for mode in MODES {
        for is_unmanaged in [true, false] {
            let host = Host::new("f7-bridge");
            if is_unmanaged {
                host.node.sh(&words("ip link add pw0 type bridge")).unwrap();
                set(&host.node, "ipv6/conf/pw0/accept_ra", "1");
            }
            let config = host.config(&json!({"subnet": DUAL, "mode": mode, "runtimeConfig":
                {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}));
            host.attached("a", &config);
            let change = |family: &str, key: &str| {
                recorded(&host)[format!("/proc/sys/net/{family}/conf/pw0/{key}")].clone()
            };
            let none = Value::Null;
            let (ra, localnet) = (json!({"before": "1", "ours": "0"}), json!({"before": "0", "ours": "1"}));
            let expected_ra = if is_unmanaged { &ra } else { &none };
            assert_eq!(change("ipv6", "accept_ra"), *expected_ra, "{mode} {is_unmanaged}");
            // In mode `routed` connections to 127.0.0.1 are forwarded through the pod's own link.
            let uses_bridge = mode == "bridge";
            let expected_localnet = if is_unmanaged && uses_bridge { &localnet } else { &none };
            assert_eq!(change("ipv4", "route_localnet"), *expected_localnet, "{mode} {is_unmanaged}");
            let route_localnet = if uses_bridge { "1" } else { "0" };
            assert_eq!(sysctl(&host.node, "ipv4/conf/pw0/route_localnet"), route_localnet);
        }
    }
}

#[test]
fn f7_sysctls_with_the_right_value_are_not_recorded() {
    let host = Host::new("f7-right");
    set(&host.node, "ipv4/ip_forward", "1");
    set(&host.node, "ipv6/conf/all/forwarding", "1");
    host.attached("a", &host.config(&json!({"subnet": DUAL})));
    assert_eq!(recorded(&host), json!({}));
    // A network without a gateway needs no forwarding.
    let host = Host::new("f7-l2");
    set(&host.node, "ipv4/ip_forward", "0");
    host.attached(
        "a",
        &host.config(&json!({"subnet": "10.88.0.0/24", "isGateway": false, "isDefaultGateway": false})),
    );
    assert_eq!(sysctl(&host.node, "ipv4/ip_forward"), "0");
    assert_eq!(recorded(&host), json!({}));
}

#[test]
fn f8_a_smaller_port_does_not_change_the_bridges_mtu() {
    for (requested, expected) in
        [(json!(null), 1500), (json!(1450), 1450), (json!(1500), 1500), (json!(1280), 1280)]
    {
        let host = Host::new("f8");
        let config = host.config(&json!({"subnet": DUAL, "mtu": requested}));
        host.attached("a", &config);
        for line in [
            "ip link add small0 mtu 1000 type veth peer name small1",
            "ip link set small0 master pw0",
            "ip link set small0 up",
            "ip link set small0 mtu 900",
        ] {
            host.node.sh(&words(line)).unwrap();
        }
        assert_eq!(inspect::link(&host.node, "pw0").unwrap().mtu, expected, "{requested}");
        let (pod, _) = host.attached("b", &config);
        assert_eq!(inspect::link(&pod, "eth0").unwrap().mtu, expected, "{requested}");
        host.node.sh(&words("ip link del small0")).unwrap();
        assert_eq!(inspect::link(&host.node, "pw0").unwrap().mtu, expected, "{requested}");
    }
}
