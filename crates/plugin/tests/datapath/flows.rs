//! F3: conntrack entries of an address or host port must not affect the next pod with the same address or port.

use std::net::UdpSocket;
use std::time::Duration;

use serde_json::json;
use testkit::{DEADLINE, Ns, udp_echo, uninterrupted, wait_until};

use crate::common::{DUAL, Host, MODES, ips, v4};
use crate::probes::{BOTH, NODE, OUT, Transport, ip, observed_source, outside};

/// The conntrack entries with an address.
fn entries(node: &Ns, address: std::net::IpAddr) -> Vec<String> {
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    let all = node.sh(&["conntrack", "-L", "-f", family]).unwrap();
    let has_address = |line: &&str| {
        line.split_whitespace()
            .any(|word| word.split_once('=').is_some_and(|(_, value)| value.parse() == Ok(address)))
    };
    all.lines().filter(has_address).map(str::to_owned).collect()
}

/// The kernel can filter IPv4 flows by address, so DEL removes them. IPv6 flows are removed when the address is assigned again.
#[test]
fn f3_flows_of_a_removed_pod_are_deleted_and_others_kept() {
    for mode in MODES {
        let host = Host::new("f3");
        let out = outside(&host, &["10.88.0.0/24", "fd00:88::/64"]);
        let ports = json!({"portMappings": [
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"hostPort": 8080, "containerPort": 80, "protocol": "udp"},
        ]});
        let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
        let (running, running_result) = host.attached("running", &config);
        let mut with_ports = config.clone();
        with_ports["runtimeConfig"] = ports;
        let (removed, result) = host.attached("removed", &with_ports);
        for (family, own) in ips(&result).into_iter().enumerate() {
            observed_source(&removed, &out, ip(OUT[family]));
            observed_source(&running, &out, ip(OUT[family]));
            for transport in BOTH {
                let _echo = transport.serve(&removed, (own, 80).into());
                assert!(transport.probe(&out, (ip(NODE[family]), 8080).into(), DEADLINE).is_some());
            }
            assert!(entries(&host.node, own).len() >= 4, "{mode}: {:?}", entries(&host.node, own));
        }
        host.del(&removed, &with_ports);
        assert_eq!(entries(&host.node, v4(&result)), Vec::<String>::new(), "{mode}");
        let mut same_address = config.clone();
        same_address["runtimeConfig"] = json!({"ips": ips(&result)});
        let (_next, _) = host.attached("next", &same_address);
        for (reused, unrelated) in ips(&result).into_iter().zip(ips(&running_result)) {
            assert_eq!(entries(&host.node, reused), Vec::<String>::new(), "{mode}");
            assert!(!entries(&host.node, unrelated).is_empty(), "{mode}: flows of {unrelated} were deleted");
        }
    }
}

/// A client that sends to a host port before it is published creates a flow without DNAT, and keeps it alive.
#[test]
fn f3_flows_from_before_a_host_port_was_published_reach_the_pod() {
    for mode in MODES {
        let host = Host::new("f3-before");
        let out = outside(&host, &[]);
        let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
        let (first, _) = host.attached("first", &config);
        // Conntrack is active after the first tracked connection.
        observed_source(&first, &out, ip(OUT[0]));
        let client = out.enter(|| UdpSocket::bind((OUT[0], 0)).unwrap()).unwrap();
        let to = (NODE[0], 8053);
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        client.send_to(b"before", to).unwrap();
        let port = client.local_addr().unwrap().port();
        let is_tracked =
            || Ok(host.node.sh(&["conntrack", "-L", "-p", "udp"])?.contains(&format!("sport={port} ")));
        wait_until("the flow to be tracked", DEADLINE, is_tracked).unwrap();
        let mut with_port = config.clone();
        with_port["runtimeConfig"] =
            json!({"portMappings": [{"hostPort": 8053, "containerPort": 53, "protocol": "udp"}]});
        let (pod, result) = host.attached("dns", &with_port);
        let _echo = udp_echo(&pod, (v4(&result), 53).into()).unwrap();
        let mut buffer = [0; 64];
        wait_until("an answer to the same client", DEADLINE, || {
            client.send_to(b"after", to)?;
            Ok(uninterrupted(|| client.recv(&mut buffer))? > 0)
        })
        .unwrap_or_else(|e| panic!("{mode}: {e:#}"));
    }
}

#[test]
fn f3_a_reused_address_has_no_old_flows() {
    for mode in MODES {
        let host = Host::new("f3-next");
        let out = outside(&host, &[]);
        let config = host.config(&json!({"mode": mode, "ipMasq": true, "ipam": {
            "ranges": [[{"subnet": "10.88.0.0/30"}], [{"subnet": "fd00:88::/126", "rangeEnd": "fd00:88::2"}]]}}));
        let (old, result) = host.attached("old", &config);
        for (family, own) in ips(&result).into_iter().enumerate() {
            let closed_port = (ip(OUT[family]), 9).into();
            assert!(Transport::Udp.probe(&old, closed_port, Duration::from_millis(150)).is_none());
            assert!(!entries(&host.node, own).is_empty(), "{mode}: the flow is not tracked");
        }
        host.del(&old, &config);
        let (_, new_result) = host.attached("new", &config);
        assert_eq!(ips(&new_result), ips(&result), "{mode}: the only addresses of the ranges");
        for own in ips(&new_result) {
            assert_eq!(entries(&host.node, own), Vec::<String>::new(), "{mode}");
        }
        drop(out);
    }
}
