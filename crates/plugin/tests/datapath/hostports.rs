//! E18: ports of the host that lead to a pod.

use std::net::IpAddr;

use serde_json::{Value, json};
use testkit::{DEADLINE, Ns, Snapshot, wait_until};

use crate::common::{DUAL, Host, MODES, ips, v4, v6, with};
use crate::world::{BOTH, NEVER, NODE, OUT, Transport, ip, outside};

const GATEWAYS: [&str; 2] = ["10.88.0.1", "fd00:88::1"];

fn mapping(host_port: u16, pod_port: u16, transport: Transport) -> Value {
    let protocol = match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    };
    json!({"hostPort": host_port, "containerPort": pod_port, "protocol": protocol})
}

fn publishing(config: &Value, ports: &[Value]) -> Value {
    with(config, &json!({"runtimeConfig": {"portMappings": ports}}))
}

#[test]
fn e18_a_host_port_leads_to_the_pod_from_everywhere() {
    for mode in MODES {
        for masquerade in [true, false] {
            let host = Host::new("hostport");
            let out = outside(&host, &[]);
            let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": masquerade}));
            let ports = [mapping(8080, 80, Transport::Tcp), mapping(8053, 53, Transport::Udp)];
            let (pod, result) = host.attached("a", &publishing(&config, &ports));
            let (neighbour, _) = host.attached("b", &config);
            let red = json!({"name": "red", "bridge": "pw1", "subnet": "10.99.0.0/24,fd00:99::/64"});
            let (stranger, _) = host.attached("c", &with(&config, &red));
            for (transport, port, pod_port) in [(Transport::Tcp, 8080, 80), (Transport::Udp, 8053, 53)] {
                for (family, own) in ips(&result).into_iter().enumerate() {
                    let _echo = transport.serve(&pod, (own, pod_port).into());
                    let ask = |from: &Ns, to: &str| {
                        let seen = transport.ask(from, (ip(to), port).into(), DEADLINE);
                        seen.unwrap_or_else(|| {
                            panic!("{mode}, ipMasq {masquerade}: {transport:?} from {} to {to}", from.name())
                        })
                    };
                    let node = NODE[family];
                    assert_eq!(ask(&out, node), ip(OUT[family]), "{mode}: the pod sees who it is");
                    ask(&host.node, node);
                    for to in [node, GATEWAYS[family]] {
                        ask(&neighbour, to);
                        ask(&stranger, to);
                        ask(&pod, to);
                    }
                }
            }
        }
    }
}

#[test]
fn e18_a_host_port_is_on_the_hosts_loopback_too() {
    for mode in MODES {
        let host = Host::new("hostport-lo");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let ports = BOTH.map(|transport| mapping(8080, 80, transport));
        let (pod, result) = host.attached("a", &publishing(&config, &ports));
        for transport in BOTH {
            let _echo = transport.serve(&pod, (v4(&result), 80).into());
            let seen = transport.ask(&host.node, (ip("127.0.0.1"), 8080).into(), DEADLINE);
            assert!(seen.is_some_and(|ip| !ip.is_loopback()), "{mode} {transport:?}: {seen:?}");
        }
        // What makes that possible must not open the host's loopback to pods.
        let _private = Transport::Tcp.serve(&host.node, (ip("127.0.0.1"), 9999).into());
        pod.sh(&[
            "ip",
            "route",
            "add",
            "127.0.0.1/32",
            "via",
            GATEWAYS[0],
            "dev",
            "eth0",
            "onlink",
            "table",
            "9",
        ])
        .unwrap();
        pod.sh(&["ip", "rule", "add", "to", "127.0.0.1", "lookup", "9", "pref", "0"]).unwrap();
        pod.sh(&["ip", "rule", "del", "lookup", "local"]).unwrap();
        pod.sh(&["ip", "rule", "add", "pref", "10", "lookup", "local"]).unwrap();
        pod.sh(&["sysctl", "-q", "-w", "net.ipv4.conf.eth0.route_localnet=1"]).unwrap();
        assert_eq!(Transport::Tcp.ask(&pod, (ip("127.0.0.1"), 9999).into(), NEVER), None, "{mode}");
    }
}

#[test]
fn e18_a_host_port_on_one_address_is_not_on_the_others() {
    for mode in MODES {
        let host = Host::new("hostport-ip");
        let out = outside(&host, &[]);
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let on = |address: &str| with(&mapping(8080, 80, Transport::Tcp), &json!({"hostIP": address}));
        let (pod, result) = host.attached("a", &publishing(&config, &[on(NODE[0]), on(NODE[1])]));
        // Another pod may have the same port on another address.
        let (other, other_result) =
            host.attached("b", &publishing(&config, &[on(GATEWAYS[0]), on(GATEWAYS[1])]));
        out.sh(&["ip", "route", "add", "10.88.0.1", "via", NODE[0]]).unwrap();
        out.sh(&["ip", "route", "add", "fd00:88::1", "via", NODE[1]]).unwrap();
        for (family, (own, others)) in ips(&result).into_iter().zip(ips(&other_result)).enumerate() {
            let ask = |to: &str, within| Transport::Tcp.ask(&out, (ip(to), 8080).into(), within);
            let echo = Transport::Tcp.serve(&pod, (own, 80).into());
            assert!(ask(NODE[family], DEADLINE).is_some(), "{mode} {own}");
            assert_eq!(ask(GATEWAYS[family], NEVER), None, "{mode} {own}");
            drop(echo);
            let _echo = Transport::Tcp.serve(&other, (others, 80).into());
            assert!(ask(GATEWAYS[family], DEADLINE).is_some(), "{mode} {others}");
            assert_eq!(ask(NODE[family], NEVER), None, "{mode} {others}");
        }
    }
}

#[test]
fn e18_a_port_that_another_pod_has_is_refused_and_nothing_changes() {
    for mode in MODES {
        let host = Host::new("hostport-taken");
        let out = outside(&host, &[]);
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (pod, result) = host.attached("a", &publishing(&config, &[mapping(8080, 80, Transport::Tcp)]));
        let late = host.pod("late");
        let (node, inside) = (Snapshot::of(&host.node).unwrap(), Snapshot::of(&late).unwrap());
        for ports in [
            vec![mapping(8080, 81, Transport::Tcp)],
            vec![mapping(8081, 81, Transport::Udp), mapping(8080, 81, Transport::Tcp)],
        ] {
            let error = host.refused(&late, &publishing(&config, &ports));
            assert!(error.msg.contains("8080"), "{mode}: {error:?}");
            let holder = ips(&result).iter().any(|ip| error.msg.contains(&ip.to_string()));
            assert!(holder, "{mode}: who has it is not in {:?}", error.msg);
            node.expect_same(&host.node).unwrap_or_else(|e| panic!("{mode}: {e:#}"));
            inside.expect_same(&late).unwrap();
        }
        let _echo = Transport::Tcp.serve(&pod, (v4(&result), 80).into());
        assert!(Transport::Tcp.ask(&out, (ip(NODE[0]), 8080).into(), DEADLINE).is_some(), "{mode}");
        // The same number of another protocol is another port.
        host.add(&late, &publishing(&config, &[mapping(8080, 81, Transport::Udp)]));
    }
}

#[test]
fn e18_after_del_the_port_is_closed_and_can_be_had_again() {
    for mode in MODES {
        let host = Host::new("hostport-del");
        let out = outside(&host, &[]);
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let published = publishing(&config, &BOTH.map(|transport| mapping(8080, 80, transport)));
        for round in 0..3 {
            let (pod, result) = host.attached(&format!("a{round}"), &published);
            for (family, own) in [v4(&result), v6(&result)].into_iter().enumerate() {
                for transport in BOTH {
                    let _echo = transport.serve(&pod, (own, 80).into());
                    let to = (ip(NODE[family]), 8080).into();
                    assert!(transport.ask(&out, to, DEADLINE).is_some(), "{mode}, round {round}, {own}");
                }
            }
            host.del(&pod, &published);
            for node in NODE {
                for transport in BOTH {
                    let seen = transport.ask(&out, (ip(node), 8080).into(), NEVER);
                    assert_eq!(seen, None, "{mode}, round {round}: {transport:?} {node}");
                }
            }
        }
        // A server of the host itself gets its port back.
        let _own = Transport::Tcp.serve(&host.node, (ip(NODE[0]), 8080).into());
        let seen: Option<IpAddr> = Transport::Tcp.ask(&out, (ip(NODE[0]), 8080).into(), DEADLINE);
        assert_eq!(seen, Some(ip(OUT[0])), "{mode}");
    }
}

/// Addresses of the outside network that no node has at first.
const FLOATING: [&str; 2] = ["192.0.2.77", "2001:db8::77"];

#[test]
fn a2_host_port_on_a_foreign_address_captures_nothing() {
    for mode in MODES {
        let host = Host::new("hostport-foreign");
        let out = outside(&host, &["10.88.0.0/24", "fd00:88::/64"]);
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (victim, victims) = host.attached("v", &config);
        let (client, _) = host.attached("c", &config);
        let foreign = OUT.iter().map(|text| ip(text)).chain(ips(&victims));
        let ports: Vec<Value> = foreign
            .flat_map(|address| BOTH.map(|t| with(&mapping(8080, 80, t), &json!({"hostIP": address}))))
            .collect();
        // It has no server: whatever is captured is refused.
        host.attached("m", &publishing(&config, &ports));
        for transport in BOTH {
            for target in OUT.map(ip) {
                let _echo = transport.serve(&out, (target, 8080).into());
                for from in [&*client, &*victim, &*host.node] {
                    let seen = transport.ask(from, (target, 8080).into(), DEADLINE);
                    assert!(seen.is_some(), "{mode} {transport:?} {target} from {}", from.name());
                }
            }
            for target in ips(&victims) {
                let _echo = transport.serve(&victim, (target, 8080).into());
                for from in [&*client, &*host.node] {
                    let seen = transport.ask(from, (target, 8080).into(), DEADLINE);
                    assert!(seen.is_some(), "{mode} {transport:?} {target} from {}", from.name());
                }
            }
        }
    }
}

#[test]
fn a2_floating_host_address_works_once_the_node_has_it() {
    for mode in MODES {
        let host = Host::new("hostport-floating");
        let out = outside(&host, &[]);
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let on = |address: &str| with(&mapping(8080, 80, Transport::Tcp), &json!({"hostIP": address}));
        let (pod, result) = host.attached("a", &publishing(&config, &FLOATING.map(on)));
        for (family, own) in ips(&result).into_iter().enumerate() {
            let (floating, via) = (FLOATING[family], NODE[family]);
            let _echo = Transport::Tcp.serve(&pod, (own, 80).into());
            out.sh(&["ip", "route", "add", floating, "via", via]).unwrap();
            let ask = |within| Transport::Tcp.ask(&out, (ip(floating), 8080).into(), within);
            assert_eq!(ask(NEVER), None, "{mode} {floating}: the node does not have it");
            let mut add = vec!["ip", "addr", "add", floating, "dev", "up0"];
            add.extend(own.is_ipv6().then_some("nodad"));
            host.node.sh(&add).unwrap();
            // The kernel finishes an IPv6 address a little after it was added.
            let leads_there = || Ok(ask(NEVER) == Some(ip(OUT[family])));
            wait_until("the address to lead to the pod", DEADLINE, leads_there)
                .unwrap_or_else(|e| panic!("{mode} {floating}: {e:#}"));
            host.node.sh(&["ip", "addr", "del", floating, "dev", "up0"]).unwrap();
            assert_eq!(ask(NEVER), None, "{mode} {floating}: the node has lost it");
        }
    }
}

#[test]
fn a2_host_address_that_is_not_unicast_is_refused() {
    let host = Host::new("hostport-multicast");
    let config = host.config(&json!({"subnet": DUAL}));
    let pod = host.pod("a");
    let (before, inside) = (Snapshot::of(&host.node).unwrap(), Snapshot::of(&pod).unwrap());
    for address in ["224.0.0.251", "239.1.2.3", "255.255.255.255", "ff02::1", "ff0e::7", "::1"] {
        let port = with(&mapping(8080, 80, Transport::Udp), &json!({"hostIP": address}));
        let error = host.refused(&pod, &publishing(&config, &[port]));
        assert_eq!(error.code, 7, "{address}: {error:?}");
        for word in ["8080/udp", address] {
            assert!(error.msg.contains(word), "{word} is not in {error:?}");
        }
        before.expect_same(&host.node).unwrap();
        inside.expect_same(&pod).unwrap();
    }
}
