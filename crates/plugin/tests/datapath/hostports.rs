//! E18: host ports.

use std::net::IpAddr;

use serde_json::{Value, json};
use testkit::{DEADLINE, Ns, Snapshot, wait_until};

use crate::common::{DUAL, Host, MODES, ips, v4, v6, with};
use crate::probes::{BOTH, NO_ANSWER, NODE, OUT, Transport, ip, outside};

const GATEWAYS: [&str; 2] = ["10.88.0.1", "fd00:88::1"];

fn mapping(host_port: u16, pod_port: u16, transport: Transport) -> Value {
    let protocol = match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    };
    json!({"hostPort": host_port, "containerPort": pod_port, "protocol": protocol})
}

fn with_ports(config: &Value, ports: &[Value]) -> Value {
    with(config, &json!({"runtimeConfig": {"portMappings": ports}}))
}

#[test]
fn e18_a_host_port_is_reachable_from_everywhere() {
    for mode in MODES {
        for masquerade in [true, false] {
            let host = Host::new("hostport");
            let out = outside(&host, &[]);
            let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": masquerade}));
            let ports = [mapping(8080, 80, Transport::Tcp), mapping(8053, 53, Transport::Udp)];
            let (pod, result) = host.attached("a", &with_ports(&config, &ports));
            let (neighbour, _) = host.attached("b", &config);
            let red = json!({"name": "red", "bridge": "pw1", "subnet": "10.99.0.0/24,fd00:99::/64"});
            let (other_network, _) = host.attached("c", &with(&config, &red));
            for (transport, port, pod_port) in [(Transport::Tcp, 8080, 80), (Transport::Udp, 8053, 53)] {
                for (family, own) in ips(&result).into_iter().enumerate() {
                    let _echo = transport.serve(&pod, (own, pod_port).into());
                    let probe = |from: &Ns, to: &str| {
                        let source = transport.probe(from, (ip(to), port).into(), DEADLINE);
                        source.unwrap_or_else(|| {
                            panic!("{mode}, ipMasq {masquerade}: {transport:?} from {} to {to}", from.name())
                        })
                    };
                    let node = NODE[family];
                    assert_eq!(probe(&out, node), ip(OUT[family]), "{mode}: the source was translated");
                    probe(&host.node, node);
                    for to in [node, GATEWAYS[family]] {
                        probe(&neighbour, to);
                        probe(&other_network, to);
                        probe(&pod, to);
                    }
                }
            }
        }
    }
}

#[test]
fn e18_a_host_port_is_reachable_on_the_hosts_loopback() {
    for mode in MODES {
        let host = Host::new("hostport-lo");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let ports = BOTH.map(|transport| mapping(8080, 80, transport));
        let (pod, result) = host.attached("a", &with_ports(&config, &ports));
        for transport in BOTH {
            let _echo = transport.serve(&pod, (v4(&result), 80).into());
            let source = transport.probe(&host.node, (ip("127.0.0.1"), 8080).into(), DEADLINE);
            assert!(source.is_some_and(|ip| !ip.is_loopback()), "{mode} {transport:?}: {source:?}");
        }
        // route_localnet must not make other ports on the host's loopback reachable for pods.
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
        assert_eq!(Transport::Tcp.probe(&pod, (ip("127.0.0.1"), 9999).into(), NO_ANSWER), None, "{mode}");
    }
}

#[test]
fn e18_a_host_port_with_host_ip_is_only_on_that_address() {
    for mode in MODES {
        let host = Host::new("hostport-ip");
        let out = outside(&host, &[]);
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let on = |address: &str| with(&mapping(8080, 80, Transport::Tcp), &json!({"hostIP": address}));
        let (pod, result) = host.attached("a", &with_ports(&config, &[on(NODE[0]), on(NODE[1])]));
        // Another pod can publish the same port on another address.
        let (other, other_result) =
            host.attached("b", &with_ports(&config, &[on(GATEWAYS[0]), on(GATEWAYS[1])]));
        out.sh(&["ip", "route", "add", "10.88.0.1", "via", NODE[0]]).unwrap();
        out.sh(&["ip", "route", "add", "fd00:88::1", "via", NODE[1]]).unwrap();
        for (family, (own, other_ip)) in ips(&result).into_iter().zip(ips(&other_result)).enumerate() {
            let probe = |to: &str, timeout| Transport::Tcp.probe(&out, (ip(to), 8080).into(), timeout);
            let echo = Transport::Tcp.serve(&pod, (own, 80).into());
            assert!(probe(NODE[family], DEADLINE).is_some(), "{mode} {own}");
            assert_eq!(probe(GATEWAYS[family], NO_ANSWER), None, "{mode} {own}");
            drop(echo);
            let _echo = Transport::Tcp.serve(&other, (other_ip, 80).into());
            assert!(probe(GATEWAYS[family], DEADLINE).is_some(), "{mode} {other_ip}");
            assert_eq!(probe(NODE[family], NO_ANSWER), None, "{mode} {other_ip}");
        }
    }
}

#[test]
fn e18_a_host_port_of_another_pod_is_refused() {
    for mode in MODES {
        let host = Host::new("hostport-taken");
        let out = outside(&host, &[]);
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (pod, result) = host.attached("a", &with_ports(&config, &[mapping(8080, 80, Transport::Tcp)]));
        let late = host.pod("late");
        let (node, inside) = (Snapshot::of(&host.node).unwrap(), Snapshot::of(&late).unwrap());
        for ports in [
            vec![mapping(8080, 81, Transport::Tcp)],
            vec![mapping(8081, 81, Transport::Udp), mapping(8080, 81, Transport::Tcp)],
        ] {
            let error = host.refused(&late, &with_ports(&config, &ports));
            assert!(error.msg.contains("8080"), "{mode}: {error:?}");
            let names_holder = ips(&result).iter().any(|ip| error.msg.contains(&ip.to_string()));
            assert!(names_holder, "{mode}: the holder's address is not in {:?}", error.msg);
            node.expect_same(&host.node).unwrap_or_else(|e| panic!("{mode}: {e:#}"));
            inside.expect_same(&late).unwrap();
        }
        let _echo = Transport::Tcp.serve(&pod, (v4(&result), 80).into());
        assert!(Transport::Tcp.probe(&out, (ip(NODE[0]), 8080).into(), DEADLINE).is_some(), "{mode}");
        // The same port number can be used for another protocol.
        host.add(&late, &with_ports(&config, &[mapping(8080, 81, Transport::Udp)]));
    }
}

#[test]
fn e18_a_host_port_is_closed_by_del_and_can_be_reused() {
    for mode in MODES {
        let host = Host::new("hostport-del");
        let out = outside(&host, &[]);
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let published = with_ports(&config, &BOTH.map(|transport| mapping(8080, 80, transport)));
        for round in 0..3 {
            let (pod, result) = host.attached(&format!("a{round}"), &published);
            for (family, own) in [v4(&result), v6(&result)].into_iter().enumerate() {
                for transport in BOTH {
                    let _echo = transport.serve(&pod, (own, 80).into());
                    let to = (ip(NODE[family]), 8080).into();
                    assert!(transport.probe(&out, to, DEADLINE).is_some(), "{mode}, round {round}, {own}");
                }
            }
            host.del(&pod, &published);
            for node in NODE {
                for transport in BOTH {
                    let source = transport.probe(&out, (ip(node), 8080).into(), NO_ANSWER);
                    assert_eq!(source, None, "{mode}, round {round}: {transport:?} {node}");
                }
            }
        }
        // A server of the host can use the port.
        let _echo = Transport::Tcp.serve(&host.node, (ip(NODE[0]), 8080).into());
        let source: Option<IpAddr> = Transport::Tcp.probe(&out, (ip(NODE[0]), 8080).into(), DEADLINE);
        assert_eq!(source, Some(ip(OUT[0])), "{mode}");
    }
}

/// Addresses of the outside network that are assigned to no node at first.
const FLOATING: [&str; 2] = ["192.0.2.77", "2001:db8::77"];

#[test]
fn a2_a_host_ip_that_is_not_the_nodes_captures_no_traffic() {
    for mode in MODES {
        let host = Host::new("hostport-hostip");
        let out = outside(&host, &["10.88.0.0/24", "fd00:88::/64"]);
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (victim, victim_result) = host.attached("v", &config);
        let (client, _) = host.attached("c", &config);
        let unassigned = OUT.iter().map(|text| ip(text)).chain(ips(&victim_result));
        let ports: Vec<Value> = unassigned
            .flat_map(|address| BOTH.map(|t| with(&mapping(8080, 80, t), &json!({"hostIP": address}))))
            .collect();
        // This pod has no server, so captured connections would be refused.
        host.attached("m", &with_ports(&config, &ports));
        for transport in BOTH {
            for target in OUT.map(ip) {
                let _echo = transport.serve(&out, (target, 8080).into());
                for from in [&*client, &*victim, &*host.node] {
                    let source = transport.probe(from, (target, 8080).into(), DEADLINE);
                    assert!(source.is_some(), "{mode} {transport:?} {target} from {}", from.name());
                }
            }
            for target in ips(&victim_result) {
                let _echo = transport.serve(&victim, (target, 8080).into());
                for from in [&*client, &*host.node] {
                    let source = transport.probe(from, (target, 8080).into(), DEADLINE);
                    assert!(source.is_some(), "{mode} {transport:?} {target} from {}", from.name());
                }
            }
        }
    }
}

#[test]
fn a2_a_floating_host_ip_works_while_the_node_has_it() {
    for mode in MODES {
        let host = Host::new("hostport-floating");
        let out = outside(&host, &[]);
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let on = |address: &str| with(&mapping(8080, 80, Transport::Tcp), &json!({"hostIP": address}));
        let (pod, result) = host.attached("a", &with_ports(&config, &FLOATING.map(on)));
        for (family, own) in ips(&result).into_iter().enumerate() {
            let (floating, via) = (FLOATING[family], NODE[family]);
            let _echo = Transport::Tcp.serve(&pod, (own, 80).into());
            out.sh(&["ip", "route", "add", floating, "via", via]).unwrap();
            let probe = |timeout| Transport::Tcp.probe(&out, (ip(floating), 8080).into(), timeout);
            assert_eq!(probe(NO_ANSWER), None, "{mode} {floating}: the node does not have the address");
            let mut add = vec!["ip", "addr", "add", floating, "dev", "up0"];
            add.extend(own.is_ipv6().then_some("nodad"));
            host.node.sh(&add).unwrap();
            // An IPv6 address is usable a little after it was added.
            let is_forwarded = || Ok(probe(NO_ANSWER) == Some(ip(OUT[family])));
            wait_until("the host port to be forwarded", DEADLINE, is_forwarded)
                .unwrap_or_else(|e| panic!("{mode} {floating}: {e:#}"));
            host.node.sh(&["ip", "addr", "del", floating, "dev", "up0"]).unwrap();
            assert_eq!(probe(NO_ANSWER), None, "{mode} {floating}: the address was removed");
        }
    }
}

#[test]
fn a2_a_host_ip_that_is_not_unicast_is_refused() {
    let host = Host::new("hostport-multicast");
    let config = host.config(&json!({"subnet": DUAL}));
    let pod = host.pod("a");
    let (before, inside) = (Snapshot::of(&host.node).unwrap(), Snapshot::of(&pod).unwrap());
    for address in ["224.0.0.251", "239.1.2.3", "255.255.255.255", "ff02::1", "ff0e::7", "::1"] {
        let port = with(&mapping(8080, 80, Transport::Udp), &json!({"hostIP": address}));
        let error = host.refused(&pod, &with_ports(&config, &[port]));
        assert_eq!(error.code, 7, "{address}: {error:?}");
        for word in ["8080/udp", address] {
            assert!(error.msg.contains(word), "{word} is not in {error:?}");
        }
        before.expect_same(&host.node).unwrap();
        inside.expect_same(&pod).unwrap();
    }
}
