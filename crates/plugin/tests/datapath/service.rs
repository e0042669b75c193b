//! Service addresses: DNAT of another program such as kube-proxy to pods.

use serde_json::json;
use testkit::{DEADLINE, Ns};

use crate::common::{DUAL, Host, MODES, v4, v6};
use crate::probes::{OUT, Transport, is_address_of, outside};

const SERVICES: [&str; 2] = ["10.96.0.1", "fd00:96::1"];

/// Adds DNAT rules from both service addresses to port 8080 of these addresses.
fn publish(node: &Ns, to: [std::net::IpAddr; 2]) {
    let rules = format!(
        "ip daddr {} tcp dport 80 dnat ip to {}:8080\nip6 daddr {} tcp dport 80 dnat ip6 to [{}]:8080\n",
        SERVICES[0], to[0], SERVICES[1], to[1]
    );
    let text = format!(
        "table inet services {{\nchain pre {{ type nat hook prerouting priority dstnat;\n{rules}}}\n\
         chain out {{ type nat hook output priority -100;\n{rules}}}\n}}\n"
    );
    assert!(node.run(&["nft", "-f", "-"], text.as_bytes()).unwrap().success());
}

/// Enables or disables br_netfilter. Returns false if the kernel has no such setting per namespace.
fn set_bridge_netfilter(node: &Ns, enabled: bool) -> bool {
    let value = if enabled { "1" } else { "0" };
    ["iptables", "ip6tables"].iter().all(|family| {
        let file = format!("/proc/sys/net/bridge/bridge-nf-call-{family}");
        node.run(&["tee", &file], value.as_bytes()).unwrap().success()
    })
}

#[test]
fn c8_pods_behind_a_service_address_are_reachable() {
    for mode in MODES {
        for netfilter in [false, true] {
            let host = Host::new("service");
            let _out = outside(&host, &[]);
            // Packets of the host need a route before DNAT changes their destination.
            for out in OUT {
                host.node.sh(&["ip", "route", "add", "default", "via", out]).unwrap();
            }
            let is_set = set_bridge_netfilter(&host.node, netfilter);
            if netfilter && !is_set {
                continue;
            }
            let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
            let ((a, ra), (b, _)) = (host.attached("a", &config), host.attached("b", &config));
            publish(&host.node, [v4(&ra), v6(&ra)]);
            // Without br_netfilter, a pod on the same bridge answers directly, and the answer is not translated back.
            let is_neighbour_served = mode == "routed" || netfilter;
            for (service, own) in SERVICES.into_iter().zip([v4(&ra), v6(&ra)]) {
                let _echo = Transport::Tcp.serve(&a, (own, 8080).into());
                let to = (service.parse::<std::net::IpAddr>().unwrap(), 80).into();
                let case = format!("{mode}, bridge-nf {netfilter}, {service}");
                let source =
                    Transport::Tcp.probe(&a, to, DEADLINE).unwrap_or_else(|| panic!("{case}: pod to itself"));
                assert!(is_address_of(&host.node, source), "{case}: pod to itself has source {source}");
                assert!(Transport::Tcp.probe(&host.node, to, DEADLINE).is_some(), "{case}: from the host");
                if is_neighbour_served {
                    assert!(Transport::Tcp.probe(&b, to, DEADLINE).is_some(), "{case}: from a neighbour");
                }
            }
        }
    }
}
