//! Configs that are JSON and still cannot be.

use serde_json::{Value, json};
use testkit::{Call, Verb};

use crate::common::{Host, with};
use crate::watch::{BRIDGE, Watch, dual, refused_with};

/// A config to refuse: what is changed in a good one, the code, and words of the answer.
type Case = (Value, u32, &'static [&'static str]);

/// ADD is refused and changes nothing; DEL with the same config succeeds all the same, or a pod could never go.
fn refuse_all(label: &str, cases: &[Case]) {
    let host = Host::new(label);
    let good = dual(&host, &json!({}));
    let (running, _) = host.attached("a", &good);
    let pod = host.pod("b");
    let watch = Watch::on(&host, &[&running, &pod]);
    for (more, code, words) in cases {
        let outcome = host.plugin.add(&pod, &with(&good, more)).unwrap();
        refused_with(&more.to_string(), &outcome, (*code, words));
    }
    watch.expect_same("ADD");
    for (more, ..) in cases {
        host.del(&pod, &with(&good, more));
    }
    watch.expect_same("DEL");
}

#[test]
fn e5_values_of_the_wrong_type_are_code_6_and_named() {
    let string: &[&str] = &["a string"];
    refuse_all(
        "types",
        &[
            (json!({"bridge": 5}), 6, &["bridge", "a string", "5"]),
            (json!({"subnet": ["10.88.0.0/24"]}), 6, &["subnet", "a string", "a list"]),
            (json!({"mtu": "1500"}), 6, &["mtu", "a whole number", "\"1500\""]),
            (json!({"isGateway": "yes"}), 6, &["isGateway", "true or false"]),
            (json!({"ipMasq": 1}), 6, &["ipMasq", "true or false"]),
            (json!({"mode": false}), 6, string),
            (json!({"dns": []}), 6, &["dns", "an object"]),
            (json!({"dns": {"nameservers": "10.0.0.1"}}), 6, &["dns.nameservers", "a list"]),
            (json!({"dns": {"search": [1]}}), 6, &["dns.search[0]", "a string"]),
            (json!({"ipam": "host-local"}), 6, &["ipam", "an object"]),
            (json!({"ipam": {"type": 3}}), 6, &["ipam.type"]),
            (json!({"ipam": {"ranges": [{"subnet": "10.88.0.0/24"}]}}), 6, &["ipam.ranges[0]", "a list"]),
            (json!({"ipam": {"ranges": [["10.88.0.0/24"]]}}), 6, &["ipam.ranges[0][0]", "an object"]),
            (json!({"ipam": {"subnet": "10.88.0.0/24", "routes": {}}}), 6, &["ipam.routes", "a list"]),
            (json!({"runtimeConfig": [1]}), 6, &["runtimeConfig", "an object"]),
            (json!({"runtimeConfig": {"ips": "10.88.0.5"}}), 6, &["runtimeConfig.ips", "a list"]),
            (
                json!({"runtimeConfig": {"portMappings": [{"hostPort": "80"}]}}),
                6,
                &["runtimeConfig.portMappings[0].hostPort", "a whole number"],
            ),
            (json!({"args": {"cni": {"ips": 7}}}), 6, &["args.cni.ips"]),
            (json!({"prevResult": "x"}), 6, &["prevResult"]),
        ],
    );
}

#[test]
fn e7_values_that_cannot_be_are_code_7_and_named() {
    refuse_all(
        "values",
        &[
            (json!({"subnet": null, "ipam": {"routes": []}}), 7, &["subnet", "ipam.ranges"]),
            (json!({"subnet": null, "mode": "routed"}), 7, &["subnet", "ipam.ranges", "layer 2"]),
            (json!({"subnet": "10.88.0.0"}), 7, &["subnet", "\"10.88.0.0\"", "CIDR"]),
            (json!({"subnet": "10.88.0.7/24"}), 7, &["10.88.0.0/24"]),
            (json!({"subnet": "10.88.0.0/24", "rangeStart": "10.99.0.1"}), 7, &["rangeStart", "10.99.0.1"]),
            (json!({"subnet": "10.88.0.0/24", "gateway": "fd00::1"}), 7, &["gateway", "family"]),
            (json!({"subnet": "10.88.0.0/24,10.88.0.128/25"}), 7, &["10.88.0.0/24", "10.88.0.128/25"]),
            (json!({"bridge": "sixteen-bytes-xx"}), 7, &["bridge", "15 bytes"]),
            (json!({"bridge": "a/b"}), 7, &["bridge"]),
            (json!({"mode": "ipvlan"}), 7, &["mode", "\"ipvlan\"", "bridge", "routed"]),
            (json!({"mode": "routed", "isGateway": false}), 7, &["isGateway", "routed", "remove"]),
            (json!({"mtu": -1}), 7, &["mtu"]),
            (json!({"mtu": 1.5}), 7, &["mtu"]),
            (json!({"mtu": 70000}), 7, &["mtu", "70000", "65535"]),
            (json!({"mtu": 67, "subnet": "10.88.0.0/24"}), 7, &["mtu", "67", "68"]),
            (json!({"mtu": 1279}), 7, &["mtu", "1279", "1280", "IPv6"]),
            (json!({"runtimeConfig": {"mac": "01:00:5e:00:00:01"}}), 7, &["runtimeConfig.mac", "unicast"]),
            (json!({"runtimeConfig": {"ips": ["10.88.0.999"]}}), 7, &["runtimeConfig.ips[0]"]),
            (
                json!({"runtimeConfig": {"portMappings": [{"hostPort": 80}]}}),
                7,
                &["runtimeConfig.portMappings[0].containerPort"],
            ),
            (
                json!({"runtimeConfig": {"portMappings": [{"hostPort": 70000, "containerPort": 80}]}}),
                7,
                &["runtimeConfig.portMappings[0].hostPort", "65535"],
            ),
            (
                json!({"runtimeConfig": {"bandwidth": {"ingressRate": 8000}}}),
                7,
                &["ingressRate", "ingressBurst"],
            ),
            (json!({"ipam": {"subnet": "10.88.0.0/24", "routes": [{"gw": "10.88.0.1"}]}}), 7, &["dst"]),
            (
                json!({"ipam": {"subnet": "10.88.0.0/24", "routes": [{"dst": "0.0.0.0/0", "gw": "fd00::1"}]}}),
                7,
                &["ipam.routes[0]", "family"],
            ),
            (json!({"ipam": {"type": "../../bin/sh"}}), 7, &["ipam.type"]),
        ],
    );
}

#[test]
fn e7_fields_that_we_do_not_serve_are_code_2_with_key_and_value() {
    refuse_all(
        "unsupported",
        &[
            (json!({"vlan": 100}), 2, &["vlan", "100", "remove it"]),
            (json!({"vlanTrunk": [{"minID": 1, "maxID": 9}]}), 2, &["vlanTrunk", "minID"]),
            (json!({"disableContainerInterface": true}), 2, &["disableContainerInterface", "true"]),
            (json!({"portIsolation": true}), 2, &["portIsolation", "true"]),
            (json!({"enabledad": true}), 2, &["enabledad", "true"]),
            (json!({"preserveDefaultVlan": "x"}), 2, &["preserveDefaultVlan"]),
            (json!({"ipMasqBackend": "iptables"}), 2, &["ipMasqBackend", "iptables"]),
            (
                json!({"ipam": {"subnet": "10.88.0.0/24", "resolvConf": "/etc/resolv.conf"}}),
                2,
                &["ipam.resolvConf", "/etc/resolv.conf"],
            ),
            (
                json!({"runtimeConfig": {"bandwidth": {"unshapedSubnets": ["10.0.0.0/8"]}}}),
                2,
                &["unshapedSubnets", "10.0.0.0/8"],
            ),
        ],
    );
    let host = Host::new("off");
    let off = json!({
        "vlan": 0, "vlanTrunk": [], "portIsolation": false, "enabledad": false, "preserveDefaultVlan": true,
        "ipMasqBackend": "nftables", "disableContainerInterface": false,
    });
    host.attached("a", &dual(&host, &off));
}

/// Where the state is must be known before anything can be looked up: this is the one thing that DEL needs, too.
#[test]
fn e7_a_state_directory_that_has_no_path_is_refused_by_every_verb() {
    let host = Host::new("statedir");
    let config = dual(&host, &json!({}));
    let (pod, _) = host.attached("a", &config);
    let watch = Watch::on(&host, &[&pod]);
    for (state, code) in [(json!(5), 6), (json!("state"), 7), (json!("../state"), 7), (json!("/a\u{0}b"), 7)]
    {
        let more = json!({"runDir": state, "prevResult": {}, "cni.dev/valid-attachments": []});
        let config = with(&config, &more);
        for verb in [Verb::Add, Verb::Del, Verb::Check, Verb::Gc, Verb::Status] {
            let outcome = host.plugin.call(&host.node, &Call::pod(verb, &pod, &config)).unwrap();
            refused_with(&format!("{} {state}", verb.as_str()), &outcome, (code, &["runDir"]));
        }
    }
    watch.expect_same("state directories without a path");
}

/// A bridge that is too small already, by somebody else's hand.
#[test]
fn c2_a_bridge_too_small_for_ipv6_is_refused_and_left_alone() {
    let host = Host::new("smallbridge");
    host.node.sh(&["ip", "link", "add", BRIDGE, "mtu", "1000", "up", "type", "bridge"]).unwrap();
    let pod = host.pod("a");
    let watch = Watch::on(&host, &[&pod]);
    let config = dual(&host, &json!({}));
    refused_with("v6", &host.plugin.add(&pod, &config).unwrap(), (7, &["mtu 1000", "IPv6", "1280"]));
    watch.expect_same("a small bridge");
    host.del(&pod, &config);
    host.add(&pod, &with(&config, &json!({"subnet": "10.88.0.0/24"})));
}
