//! F3: what conntrack remembers of an address or a port must not reach the next pod that gets it.

use std::net::UdpSocket;
use std::time::Duration;

use serde_json::json;
use testkit::{DEADLINE, Ns, udp_echo, uninterrupted, wait_until};

use crate::common::{DUAL, Host, MODES, ips, v4};
use crate::world::{BOTH, NODE, OUT, Transport, ip, outside, seen_as};

/// The entries that name an address.
fn entries(node: &Ns, address: std::net::IpAddr) -> Vec<String> {
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    let all = node.sh(&["conntrack", "-L", "-f", family]).unwrap();
    let is_named = |line: &&str| {
        line.split_whitespace()
            .any(|word| word.split_once('=').is_some_and(|(_, value)| value.parse() == Ok(address)))
    };
    all.lines().filter(is_named).map(str::to_owned).collect()
}

/// The kernel selects IPv4 flows by itself, so they go at once; IPv6 flows go when the address is wanted again.
#[test]
fn f3_flows_of_an_address_are_gone_after_del_and_others_stay() {
    for mode in MODES {
        let host = Host::new("f3");
        let out = outside(&host, &["10.88.0.0/24", "fd00:88::/64"]);
        let ports = json!({"portMappings": [
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"hostPort": 8080, "containerPort": 80, "protocol": "udp"},
        ]});
        let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
        let (stays, stays_result) = host.attached("stays", &config);
        let mut with_ports = config.clone();
        with_ports["runtimeConfig"] = ports;
        let (goes, result) = host.attached("goes", &with_ports);
        for (family, own) in ips(&result).into_iter().enumerate() {
            seen_as(&goes, &out, ip(OUT[family]));
            seen_as(&stays, &out, ip(OUT[family]));
            for transport in BOTH {
                let _echo = transport.serve(&goes, (own, 80).into());
                assert!(transport.ask(&out, (ip(NODE[family]), 8080).into(), DEADLINE).is_some());
            }
            assert!(entries(&host.node, own).len() >= 4, "{mode}: {:?}", entries(&host.node, own));
        }
        host.del(&goes, &with_ports);
        assert_eq!(entries(&host.node, v4(&result)), Vec::<String>::new(), "{mode}");
        let mut same_address = config.clone();
        same_address["runtimeConfig"] = json!({"ips": ips(&result)});
        let (_again, _) = host.attached("again", &same_address);
        for (gone, left) in ips(&result).into_iter().zip(ips(&stays_result)) {
            assert_eq!(entries(&host.node, gone), Vec::<String>::new(), "{mode}");
            assert!(!entries(&host.node, left).is_empty(), "{mode}: flows of {left} are somebody else's");
        }
    }
}

/// A client that keeps sending to a port that nobody has keeps a flow alive that leads nowhere.
#[test]
fn f3_datagrams_that_came_before_the_port_was_published_do_not_miss_the_pod() {
    for mode in MODES {
        let host = Host::new("f3-before");
        let out = outside(&host, &[]);
        let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
        let (first, _) = host.attached("first", &config);
        // Conntrack works once somebody was tracked.
        seen_as(&first, &out, ip(OUT[0]));
        let client = out.enter(|| UdpSocket::bind((OUT[0], 0)).unwrap()).unwrap();
        let to = (NODE[0], 8053);
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        client.send_to(b"anybody there?", to).unwrap();
        let port = client.local_addr().unwrap().port();
        let remembered =
            || Ok(host.node.sh(&["conntrack", "-L", "-p", "udp"])?.contains(&format!("sport={port} ")));
        wait_until("the node to remember the datagram", DEADLINE, remembered).unwrap();
        let mut with_port = config.clone();
        with_port["runtimeConfig"] =
            json!({"portMappings": [{"hostPort": 8053, "containerPort": 53, "protocol": "udp"}]});
        let (pod, result) = host.attached("dns", &with_port);
        let _echo = udp_echo(&pod, (v4(&result), 53).into()).unwrap();
        let mut buffer = [0; 64];
        wait_until("an answer to the same client", DEADLINE, || {
            client.send_to(b"and now?", to)?;
            Ok(uninterrupted(|| client.recv(&mut buffer))? > 0)
        })
        .unwrap_or_else(|e| panic!("{mode}: {e:#}"));
    }
}

/// A TCP connection of the pod before does not end up in the new pod that got its address.
#[test]
fn f3_the_next_pod_with_the_address_begins_afresh() {
    for mode in MODES {
        let host = Host::new("f3-next");
        let out = outside(&host, &[]);
        let config = host.config(&json!({"mode": mode, "ipMasq": true, "ipam": {
            "ranges": [[{"subnet": "10.88.0.0/30"}], [{"subnet": "fd00:88::/126", "rangeEnd": "fd00:88::2"}]]}}));
        let (old, result) = host.attached("old", &config);
        for (family, own) in ips(&result).into_iter().enumerate() {
            let nobody = (ip(OUT[family]), 9).into();
            assert!(Transport::Udp.ask(&old, nobody, Duration::from_millis(150)).is_none());
            assert!(!entries(&host.node, own).is_empty(), "{mode}: the question is remembered");
        }
        host.del(&old, &config);
        let (_, again) = host.attached("new", &config);
        assert_eq!(ips(&again), ips(&result), "{mode}: the only addresses there are");
        for own in ips(&again) {
            assert_eq!(entries(&host.node, own), Vec::<String>::new(), "{mode}");
        }
        drop(out);
    }
}
