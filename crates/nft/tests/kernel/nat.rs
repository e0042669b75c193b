//! The source address that a server observes: masquerade, host ports, hairpin (a pod that connects to itself).

use std::io::ErrorKind;
use std::net::IpAddr;

use nft::{AttachMode, Protocol};

use crate::common::{Sample, run};
use crate::lab::{At, Lab};

const BOTH: [AttachMode; 2] = [AttachMode::Bridge, AttachMode::Routed];
const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A lab with both pods in the firewall. Port 80 of pod 2 is host port 8080.
fn lab(mode: AttachMode) -> (Lab, Sample) {
    let lab = Lab::new(mode);
    let two = Sample::new(mode, 2).publish(Protocol::Tcp, 8080, 80).publish(Protocol::Udp, 8080, 80);
    lab.add_pod(&two);
    lab.add_pod(&Sample::new(mode, 3));
    (lab, two)
}

#[test]
fn c8_only_traffic_that_leaves_the_network_is_masqueraded() {
    for mode in BOTH {
        let (lab, _) = lab(mode);
        // A pod of another node of the same network, reached through the outside host.
        for (address, pods, via, host) in [
            ("10.77.9.9", "10.77.0.0/24", "192.0.2.2", "192.0.2.1"),
            ("fd77:0:0:9::9", "fd77::/64", "2001:db8::2", "2001:db8::1"),
        ] {
            lab.ip(At::Outside, &format!("addr add {address} dev lo"));
            lab.ip(At::Outside, &format!("route add {pods} via {host}"));
            lab.ip(At::Host, &format!("route add {address} via {via}"));
        }
        for protocol in PROTOCOLS {
            for (target, source) in [("192.0.2.2:80", "192.0.2.1"), ("[2001:db8::2]:80", "2001:db8::1")] {
                let server = lab.serve(At::Outside, protocol, target);
                assert_eq!(lab.ask(At::Pod(2), target, &server).unwrap(), ip(source));
            }
            for (target, source) in [("10.77.9.9:80", "10.77.0.2"), ("[fd77:0:0:9::9]:80", "fd77::2")] {
                let server = lab.serve(At::Outside, protocol, target);
                assert_eq!(lab.ask(At::Pod(2), target, &server).unwrap(), ip(source));
            }
            for (target, pod, host) in
                [("10.77.0.3:80", "10.77.0.2", "10.77.0.1"), ("[fd77::3]:80", "fd77::2", "fd77::1")]
            {
                let server = lab.serve(At::Pod(3), protocol, target);
                assert_eq!(lab.ask(At::Pod(2), target, &server).unwrap(), ip(pod));
                assert_eq!(lab.ask(At::Host, target, &server).unwrap(), ip(host));
            }
            for (target, source) in [("10.77.0.1:80", "10.77.0.2"), ("[fd77::1]:80", "fd77::2")] {
                let server = lab.serve(At::Host, protocol, target);
                assert_eq!(lab.ask(At::Pod(2), target, &server).unwrap(), ip(source));
            }
        }
    }
}

#[test]
fn a_pod_reaches_itself_through_an_unmanaged_service() {
    for mode in BOTH {
        let (lab, _) = lab(mode);
        let service = "add table inet service; \
            add chain inet service pre { type nat hook prerouting priority dstnat; }; \
            add rule inet service pre ip daddr 10.96.0.1 dnat ip to 10.77.0.2; \
            add rule inet service pre ip6 daddr fd96::1 dnat ip6 to fd77::2";
        lab.inside(At::Host, || run("nft", &[service]));
        for protocol in PROTOCOLS {
            for (target, at, neighbour, host) in [
                ("10.96.0.1:81", "10.77.0.2:81", "10.77.0.3", "10.77.0.1"),
                ("[fd96::1]:81", "[fd77::2]:81", "fd77::3", "fd77::1"),
            ] {
                let server = lab.serve(At::Pod(2), protocol, at);
                let source = lab.ask(At::Pod(2), target, &server).unwrap();
                if mode == AttachMode::Bridge {
                    assert_eq!(source, ip(host));
                }
                // Its neighbour keeps its own address.
                assert_eq!(lab.ask(At::Pod(3), target, &server).unwrap(), ip(neighbour));
            }
        }
    }
}

#[test]
fn e18_a_host_port_is_reachable_from_outside_host_and_pods() {
    for mode in BOTH {
        // 1 is the default of new namespaces and usual on Kubernetes nodes. Other hosts have 0.
        for br_netfilter in ["0", "1"] {
            let (lab, two) = lab(mode);
            for family in ["iptables", "ip6tables"] {
                lab.sysctl(At::Host, &format!("bridge/bridge-nf-call-{family}"), br_netfilter);
            }
            for protocol in PROTOCOLS {
                let server = lab.serve(At::Pod(2), protocol, "10.77.0.2:80");
                assert_eq!(lab.ask(At::Outside, "192.0.2.1:8080", &server).unwrap(), ip("192.0.2.2"));
                assert_eq!(lab.ask(At::Host, "192.0.2.1:8080", &server).unwrap(), ip("192.0.2.1"));
                assert!(!lab.ask(At::Host, "127.0.0.1:8080", &server).unwrap().is_loopback());
                let neighbour = lab.ask(At::Pod(3), "192.0.2.1:8080", &server).unwrap();
                assert_eq!(neighbour, ip(if mode == AttachMode::Bridge { "10.77.0.1" } else { "10.77.0.3" }));
                assert_ne!(lab.ask(At::Pod(2), "192.0.2.1:8080", &server).unwrap(), ip("10.77.0.2"));

                let server = lab.serve(At::Pod(2), protocol, "[fd77::2]:80");
                assert_eq!(lab.ask(At::Outside, "[2001:db8::1]:8080", &server).unwrap(), ip("2001:db8::2"));
                assert_eq!(lab.ask(At::Host, "[2001:db8::1]:8080", &server).unwrap(), ip("2001:db8::1"));
                let neighbour = lab.ask(At::Pod(3), "[2001:db8::1]:8080", &server).unwrap();
                assert_eq!(neighbour, ip(if mode == AttachMode::Bridge { "fd77::1" } else { "fd77::3" }));
                assert_ne!(lab.ask(At::Pod(2), "[2001:db8::1]:8080", &server).unwrap(), ip("fd77::2"));
            }
            lab.remove_pod(&two);
            for target in ["192.0.2.1:8080", "[2001:db8::1]:8080"] {
                let connect = || std::net::TcpStream::connect(target).unwrap_err().kind();
                assert_eq!(lab.inside(At::Outside, connect), ErrorKind::ConnectionRefused);
            }
        }
    }
}

#[test]
fn e18_a_host_port_with_host_ip_is_only_on_that_address() {
    let lab = Lab::new(AttachMode::Routed);
    let mut pod = Sample::new(AttachMode::Routed, 2).publish(Protocol::Tcp, 8080, 80);
    pod.ports[0].host_ip = Some(ip("192.0.2.1"));
    pod.ports[1].host_ip = Some(ip("2001:db8::1"));
    lab.add_pod(&pod);
    for (server, target, other) in [
        ("10.77.0.2:80", "192.0.2.1:8080", "10.77.0.1:8080"),
        ("[fd77::2]:80", "[2001:db8::1]:8080", "[fd77::1]:8080"),
    ] {
        let server = lab.serve(At::Pod(2), Protocol::Tcp, server);
        lab.ask(At::Outside, target, &server).unwrap();
        lab.ask(At::Host, target, &server).unwrap();
        let connect = || std::net::TcpStream::connect(other).unwrap_err().kind();
        assert_eq!(lab.inside(At::Host, connect), ErrorKind::ConnectionRefused);
    }
}
