//! CHECK: C6 and E15. One thing is taken away at a time, and the answer must name it.

use serde_json::{Value, json};
use testkit::{Call, Pod, Snapshot, Verb, inspect};
use types::AttachmentKey;

use crate::common::{DUAL, Host, MODES, host_link, v4, v6, verdict, with, with_previous, words};

#[derive(Clone, Copy)]
enum Where {
    Pod,
    Node,
}

/// What is broken, by which command, and a word that the answer must have. `{host}` is the host end, `{ifb}` the link that
/// shapes what the pod sends, `{state}` the network's state directory, `{net}` the network's chain,
/// `{4}` and `{6}` the pod's addresses with their prefix.
type Damage = (Where, &'static str, &'static str);

const ANY_MODE: &[Damage] = &[
    (Where::Pod, "ip link set eth0 down", "interface eth0 is down"),
    (Where::Pod, "ip addr del {4} dev eth0", "address {4}"),
    (Where::Pod, "ip addr del {6} dev eth0", "address {6}"),
    (Where::Pod, "ip -4 route del default", "route 0.0.0.0/0"),
    (Where::Pod, "ip -6 route del default", "route ::/0"),
    (Where::Pod, "ip link set eth0 address 02:00:00:00:00:99", "02:00:00:00:00:99"),
    (Where::Pod, "ip link set eth0 down name lost0", "interface eth0"),
    (Where::Node, "ip link del {host}", "host end {host}"),
    (Where::Node, "ip link set {host} down", "host end {host} is down"),
    (Where::Node, "ip link set {host} alias somebody", "our mark on {host}"),
    (Where::Node, "ip link set pw0 down", "bridge pw0 is down"),
    (Where::Node, "ip link del pw0", "bridge pw0"),
    (Where::Node, "ip addr del 10.88.0.1/24 dev pw0", "gateway 10.88.0.1"),
    (Where::Node, "ip addr del fd00:88::1/64 dev pw0", "gateway fd00:88::1"),
    (Where::Node, "tc qdisc del dev {host} root", "the pod receives"),
    (Where::Node, "tc qdisc del dev {host} ingress", "the pod sends"),
    (Where::Node, "tc qdisc del dev {ifb} root", "the pod sends"),
    (Where::Node, "ip link del {ifb}", "the pod sends"),
    (Where::Node, "rm {state}/addresses/10.88.0.2", "reservation of 10.88.0.2"),
    (Where::Node, "rm {state}/addresses/fd00:88::2", "reservation of fd00:88::2"),
    (Where::Node, "find {state}/attachments -name *.ready -delete", "no attachment"),
    (Where::Node, "nft delete element inet podwire pods4 { 10.88.0.2 }", "pods4 { 10.88.0.2 }"),
    (Where::Node, "nft flush set inet podwire {net}-6", "{net}-6 { fd00:88::2"),
    (Where::Node, "nft flush map inet podwire hostport4_any", "hostport4_any { tcp . 8080"),
    (Where::Node, "nft flush set inet podwire self6", "self6"),
    (
        Where::Node,
        "nft flush chain inet podwire nat-postrouting",
        "chain inet podwire nat-postrouting has 0 rules",
    ),
    (Where::Node, "nft flush table inet podwire", "chain inet podwire guard has 0 rules"),
    (Where::Node, "nft delete table inet podwire", "table inet podwire is missing"),
];

const ON_A_BRIDGE: &[Damage] = &[
    (Where::Node, "ip link set {host} nomaster", "{host} as a port of the bridge"),
    (Where::Node, "ip link set dev {host} type bridge_slave hairpin off", "hairpin mode of {host}"),
    (Where::Node, "nft flush set bridge podwire macs", "macs"),
    (Where::Node, "nft flush set bridge podwire addr4", "addr4"),
    (Where::Node, "nft flush set inet podwire via4", "via4"),
    (Where::Node, "nft flush set bridge podwire ports", "ports"),
    (Where::Node, "nft flush table bridge podwire", "chain bridge podwire guard has 0 rules"),
    (Where::Node, "nft delete table bridge podwire", "table bridge podwire is missing"),
];

const ROUTED: &[Damage] = &[
    (Where::Node, "ip route del 10.88.0.2/32", "host route to 10.88.0.2"),
    (Where::Node, "ip -6 route del fd00:88::2/128", "host route to fd00:88::2"),
    (Where::Node, "ip neigh del 10.88.0.2 dev {host}", "neighbour 10.88.0.2"),
    (Where::Node, "ip neigh del fd00:88::2 dev {host}", "neighbour fd00:88::2"),
    (Where::Node, "ip neigh replace 10.88.0.2 dev {host} lladdr 02:00:00:00:00:99", "neighbour 10.88.0.2"),
    (Where::Pod, "ip neigh del 10.88.0.1 dev eth0", "neighbour 10.88.0.1"),
    (Where::Pod, "ip neigh del fd00:88::1 dev eth0", "neighbour fd00:88::1"),
    (Where::Node, "nft flush set inet podwire source4", "source4"),
    (Where::Node, "nft flush set inet podwire bound6", "bound6"),
    (Where::Node, "nft flush set inet podwire ports", "ports"),
];

/// Everything that a pod can ask for, so that there is something to take away.
fn rich(host: &Host, mode: &str) -> Value {
    let limit = 80_000_000;
    host.config(&json!({
        "mode": mode, "subnet": DUAL, "ipMasq": true,
        "runtimeConfig": {
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
            "bandwidth": {"ingressRate": limit, "ingressBurst": limit, "egressRate": limit, "egressBurst": limit},
        },
    }))
}

fn fill(template: &str, host: &Host, (pod, result): (&Pod, &Value)) -> String {
    let key = AttachmentKey {
        network: "blue".try_into().unwrap(),
        container: pod.id().try_into().unwrap(),
        ifname: "eth0".try_into().unwrap(),
    };
    let net = |index: usize| result["ips"][index]["address"].as_str().unwrap();
    let objects = inspect::nft_json(&host.node).unwrap();
    let network = objects.iter().find_map(|o| o["chain"]["name"].as_str()?.strip_prefix("net-"));
    template
        .replace("{net}", &format!("net-{}", network.unwrap_or_default()))
        .replace("{host}", host_link(result))
        .replace("{ifb}", key.shaper_link().as_str())
        .replace("{state}", host.node.run_dir().join("networks/blue").to_str().unwrap())
        .replace("{4}", net(0))
        .replace("{6}", net(1))
}

fn c6_names_what_is_missing(mode: &str, damages: &[Damage]) {
    for (place, command, named) in damages {
        let host = Host::new("c6");
        let config = rich(&host, mode);
        let (pod, result) = host.attached("a", &config);
        host.check(&pod, &config, &result).unwrap();
        let [command, named] = [command, named].map(|text| fill(text, &host, (&pod, &result)));
        match place {
            Where::Pod => pod.sh(&words(&command)),
            Where::Node => host.node.sh(&words(&command)),
        }
        .unwrap();
        let error =
            host.check(&pod, &config, &result).expect_err(&format!("{mode}: nobody missed `{command}`"));
        assert_eq!(error.code, 105, "{mode} `{command}`: {error:?}");
        assert!(error.msg.contains(&named), "{mode} `{command}`: {:?} is not in {:?}", named, error.msg);
    }
}

#[test]
fn c6_check_names_what_is_missing_in_mode_bridge() {
    c6_names_what_is_missing("bridge", ANY_MODE);
}

#[test]
fn c6_check_names_what_is_missing_in_mode_routed() {
    c6_names_what_is_missing("routed", ANY_MODE);
}

#[test]
fn c6_check_names_what_is_missing_of_the_mode_itself() {
    c6_names_what_is_missing("bridge", ON_A_BRIDGE);
    c6_names_what_is_missing("routed", ROUTED);
}

#[test]
fn c6_check_lists_all_that_is_missing_and_changes_nothing() {
    for mode in MODES {
        let host = Host::new("c6-all");
        let config = rich(&host, mode);
        let (pod, result) = host.attached("a", &config);
        let (node, inside) = (Snapshot::of(&host.node).unwrap(), Snapshot::of(&pod).unwrap());
        for _ in 0..2 {
            host.check(&pod, &config, &result).unwrap();
        }
        node.expect_same(&host.node).unwrap();
        inside.expect_same(&pod).unwrap();
        pod.sh(&words("ip -4 route del default")).unwrap();
        host.node.sh(&words("nft flush set inet podwire pods6")).unwrap();
        let (node, inside) = (Snapshot::of(&host.node).unwrap(), Snapshot::of(&pod).unwrap());
        let msg = host.check(&pod, &config, &result).unwrap_err().msg;
        assert!(msg.contains("route 0.0.0.0/0") && msg.contains("pods6"), "{mode}: {msg}");
        node.expect_same(&host.node).unwrap();
        inside.expect_same(&pod).unwrap();
    }
}

/// Another pod's namespace under the same path is not the one that was attached.
#[test]
fn c6_check_knows_the_namespace_it_attached() {
    let host = Host::new("c6-netns");
    let config = host.config(&json!({"subnet": DUAL}));
    let ((a, result), (b, _)) = (host.attached("a", &config), host.attached("b", &config));
    let call = Call {
        netns: Some(b.netns_path().display().to_string()),
        ..Call::pod(Verb::Check, &a, &with_previous(&config, &result))
    };
    let error = verdict(&host.plugin.call(&host.node, &call).unwrap()).unwrap_err();
    assert!(error.code == 105 && error.msg.contains("namespace"), "{error:?}");
    a.destroy().unwrap();
    let error = host.check(&a, &config, &result).unwrap_err();
    assert_eq!(error.code, 3, "the namespace is gone: {error:?}");
}

#[test]
fn e15_check_works_in_every_version_that_has_it() {
    for mode in MODES {
        for version in ["0.4.0", "1.0.0", "1.1.0"] {
            let host = Host::new("e15-versions");
            let config = with(&rich(&host, mode), &json!({"cniVersion": version}));
            let (pod, result) = host.attached("a", &config);
            host.check(&pod, &config, &result).unwrap();
            pod.sh(&words("ip -4 route del default")).unwrap();
            assert_eq!(host.check(&pod, &config, &result).unwrap_err().code, 105, "{mode} {version}");
        }
    }
}

#[test]
fn e15_check_without_prev_result_is_refused() {
    let host = Host::new("e15-none");
    let config = host.config(&json!({"subnet": DUAL}));
    let (pod, _) = host.attached("a", &config);
    let error = host.call_on(Verb::Check, (&pod, "eth0"), &config).error().unwrap();
    assert!(error.code == 7 && error.msg.contains("prevResult"), "{error:?}");
}

/// What `tuning`, `portmap` and the like do after us is in the previous result, and is no fault. But in mode `routed` the
/// host knows the pod's MAC for good, so that another one cuts the pod off: there CHECK has to say so.
#[test]
fn e15_check_tolerates_what_later_plugins_changed_and_said() {
    for mode in MODES {
        let host = Host::new("e15-later");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
        let (pod, result) = host.attached("a", &config);
        let mac = if mode == "bridge" {
            "02:00:00:00:00:99"
        } else {
            result["interfaces"][2]["mac"].as_str().unwrap()
        };
        if mode == "bridge" {
            pod.sh(&["ip", "link", "set", "eth0", "address", mac]).unwrap();
        }
        for line in [
            "ip link add extra0 type veth peer name extra1",
            "ip link set eth0 mtu 1400",
            "ip addr add 192.0.2.7/24 dev eth0",
            "ip route add 198.51.100.0/24 dev eth0",
        ] {
            pod.sh(&words(line)).unwrap();
        }
        // MACs are told in either case.
        let mut later = result.clone();
        later["interfaces"][2]["mac"] = json!(mac.to_uppercase());
        later["interfaces"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "extra0", "sandbox": pod.netns_path()}));
        later["ips"].as_array_mut().unwrap().push(json!({"address": "192.0.2.7/24", "interface": 2}));
        later["routes"].as_array_mut().unwrap().push(json!({"dst": "198.51.100.0/24"}));
        later["dns"] = json!({"nameservers": ["192.0.2.53"]});
        host.check(&pod, &config, &later).unwrap();
        // What they said and is not so (any more) is one.
        pod.sh(&words("ip route del 198.51.100.0/24")).unwrap();
        let error = host.check(&pod, &config, &later).unwrap_err();
        assert!(error.msg.contains("198.51.100.0/24"), "{mode}: {}", error.msg);
    }
}

#[test]
fn e15_a_prev_result_that_lost_our_addresses_is_a_fault() {
    let host = Host::new("e15-lost");
    let config = host.config(&json!({"subnet": DUAL}));
    let (pod, result) = host.attached("a", &config);
    for (index, ip) in [(0, v4(&result)), (1, v6(&result))] {
        let mut lost = result.clone();
        lost["ips"].as_array_mut().unwrap().remove(index);
        let error = host.check(&pod, &config, &lost).unwrap_err();
        assert!(error.msg.contains(&ip.to_string()), "{}", error.msg);
    }
    let error = host.check(&host.pod("b"), &config, &result).unwrap_err();
    assert!(error.code == 105 && error.msg.contains("no attachment"), "{error:?}");
    assert!(inspect::link(&pod, "eth0").unwrap().is_up());
}
