//! Service addresses: somebody else's DNAT in the node (kube-proxy does it like this), and pods behind it.

use serde_json::json;
use testkit::{DEADLINE, Ns};

use crate::common::{DUAL, Host, MODES, v4, v6};
use crate::world::{OUT, Transport, is_address_of, outside};

const SERVICES: [&str; 2] = ["10.96.0.1", "fd00:96::1"];

/// Both service addresses lead to port 8080 of these pods.
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

/// Sets what bridged packets pass through, where the kernel lets a namespace decide that. What can be set, is tested.
fn bridge_netfilter(node: &Ns, on: bool) -> bool {
    let value = if on { "1" } else { "0" };
    ["iptables", "ip6tables"].iter().all(|which| {
        let file = format!("/proc/sys/net/bridge/bridge-nf-call-{which}");
        node.run(&["tee", &file], value.as_bytes()).unwrap().success()
    })
}

#[test]
fn c8_a_pod_reaches_itself_and_others_through_a_service_address() {
    for mode in MODES {
        for netfilter in [false, true] {
            let host = Host::new("service");
            let _out = outside(&host, &[]);
            // Before its destination is changed, what the host sends needs a way to go.
            for out in OUT {
                host.node.sh(&["ip", "route", "add", "default", "via", out]).unwrap();
            }
            let is_set = bridge_netfilter(&host.node, netfilter);
            if netfilter && !is_set {
                continue;
            }
            let config = host.config(&json!({"subnet": DUAL, "mode": mode, "ipMasq": true}));
            let ((a, ra), (b, _)) = (host.attached("a", &config), host.attached("b", &config));
            publish(&host.node, [v4(&ra), v6(&ra)]);
            // Without it, a pod on the same bridge answers its neighbour directly, and nobody translates back.
            let neighbours = mode == "routed" || netfilter;
            for (service, own) in SERVICES.into_iter().zip([v4(&ra), v6(&ra)]) {
                let _echo = Transport::Tcp.serve(&a, (own, 8080).into());
                let to = (service.parse::<std::net::IpAddr>().unwrap(), 80).into();
                let what = format!("{mode}, bridge-nf {netfilter}, {service}");
                let seen = Transport::Tcp.ask(&a, to, DEADLINE).unwrap_or_else(|| panic!("{what}: itself"));
                assert!(is_address_of(&host.node, seen), "{what}: the pod saw itself as {seen}");
                assert!(Transport::Tcp.ask(&host.node, to, DEADLINE).is_some(), "{what}: from the host");
                if neighbours {
                    assert!(Transport::Tcp.ask(&b, to, DEADLINE).is_some(), "{what}: from a neighbour");
                }
            }
        }
    }
}
