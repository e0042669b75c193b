//! E18: ports of the host that lead to a pod.

use std::net::IpAddr;

use serde_json::{Value, json};
use testkit::{DEADLINE, Ns, Snapshot};

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
