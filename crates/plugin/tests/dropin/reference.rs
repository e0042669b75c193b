//! Common configs for `bridge` and `host-local`, used with the reference plugins and with Podwire. Intended differences:
//! - Without `isGateway`, `isDefaultGateway` and `routes`, Podwire adds a gateway and a default route. Without `hairpinMode`,
//!   it enables hairpin mode, so that service addresses work. Explicit settings have the same effect in both.
//! - Routes in Podwire's result always have a gateway.
//! - Podwire's bridge keeps the configured MTU (F8). The MTU of the reference bridge follows its ports, and is 1500 without ports.
//! - Podwire refuses a second ADD of the same attachment.

use serde_json::{Value, json};
use testkit::{Call, Lab, Node, Outcome, Plugin, Pod, Verb, inspect};

use crate::common::{with, words};
use crate::summary::{of_node, of_pod, of_result};

/// A node with the reference plugin or Podwire.
struct Side {
    node: Node,
    plugin: Plugin,
    config: Value,
    _lab: Lab,
}

/// `ipam.type` in Podwire's config.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IpamType {
    Absent,
    Podwire,
}

impl Side {
    fn reference(config: &Value) -> Self {
        let lab = Lab::new("reference").unwrap();
        let node = lab.node("n1").unwrap();
        let mut config = with(config, &json!({"type": "bridge"}));
        config["ipam"]["type"] = json!("host-local");
        config["ipam"]["dataDir"] = json!(node.run_dir());
        Self { node, plugin: testkit::reference_plugin("bridge").unwrap(), config, _lab: lab }
    }

    fn podwire(config: &Value, ipam_type: IpamType) -> Self {
        let lab = Lab::new("podwire").unwrap();
        let node = lab.node("n1").unwrap();
        let mut config = with(config, &json!({"type": "podwire-cni", "logFile": node.log_file()}));
        if ipam_type == IpamType::Podwire {
            config["ipam"]["type"] = json!("podwire");
        }
        config["ipam"]["dataDir"] = json!(node.run_dir());
        Self { node, plugin: Plugin::podwire().unwrap(), config, _lab: lab }
    }

    fn call(&self, verb: Verb, pod: &Pod, args: Option<&str>) -> Outcome {
        let call = Call { args: args.map(str::to_owned), ..Call::pod(verb, pod, &self.config) };
        self.plugin.call(&self.node, &call).unwrap()
    }

    fn bridge(&self) -> &str {
        self.config["bridge"].as_str().unwrap()
    }
}

fn base(more: &Value) -> Value {
    let base = json!({"cniVersion": "1.0.0", "name": "mynet", "bridge": "mynet0", "hairpinMode": false});
    with(&base, more)
}

/// Configs of the reference plugins' documentation, containerd's install script and podman, with variations.
fn configs() -> Vec<Value> {
    let dual = json!([[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd00:4860:4860::/64"}]]);
    let defaults = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    vec![
        base(&json!({"isDefaultGateway": true, "forceAddress": false, "ipMasq": true, "hairpinMode": true,
            "ipam": {"subnet": "10.10.0.0/16"}})),
        base(&json!({"bridge": "cni0", "isGateway": true, "ipMasq": true, "promiscMode": true,
            "ipam": {"ranges": dual, "routes": defaults}})),
        base(&json!({"cniVersion": "0.4.0", "bridge": "cni-podman0", "isGateway": true, "ipMasq": true,
            "hairpinMode": true, "ipam": {"routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[{"subnet": "10.89.0.0/16", "gateway": "10.89.0.1"}]]}})),
        base(&json!({"isGateway": false, "isDefaultGateway": false,
            "ipam": {"subnet": "10.10.0.0/24", "rangeStart": "10.10.0.20", "rangeEnd": "10.10.0.21"}})),
        base(&json!({"isGateway": false, "ipam": {"subnet": "10.10.0.0/24"}})),
        base(&json!({"isGateway": true, "isDefaultGateway": true, "ipam": {"subnet": "10.10.0.0/24",
            "rangeStart": "10.10.0.100", "rangeEnd": "10.10.0.110", "gateway": "10.10.0.254"}})),
        base(&json!({"isGateway": true, "mtu": 1400, "ipam": {"ranges": dual, "routes": defaults}})),
        base(&json!({"isDefaultGateway": true, "mtu": 9000, "ipam": {"ranges": dual}})),
        // The second range is used when the first one is exhausted.
        base(
            &json!({"isDefaultGateway": true, "ipam": {"ranges": [[{"subnet": "10.10.0.0/24", "rangeStart": "10.10.0.10", "rangeEnd": "10.10.0.10"},
                {"subnet": "10.10.0.0/24", "rangeStart": "10.10.0.20"}]]}}),
        ),
        base(&json!({"isGateway": true, "ipam": {"subnet": "10.10.0.0/24", "routes": [{"dst": "0.0.0.0/0"},
            {"dst": "192.168.0.0/16", "gw": "10.10.0.7"}, {"dst": "172.16.5.0/24"}]}})),
        // A configured default route is not duplicated.
        base(&json!({"isDefaultGateway": true, "ipam": {"subnet": "10.10.0.0/24",
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.10.0.7"}]}})),
        base(
            &json!({"isDefaultGateway": true, "dns": {"nameservers": ["10.1.0.1"], "domain": "cluster.local",
            "search": ["svc.cluster.local"], "options": ["ndots:5"]}, "ipam": {"subnet": "10.10.0.0/24"}}),
        ),
        base(
            &json!({"isDefaultGateway": true, "ipam": {"ranges": [[{"subnet": "fd00:10::/64", "rangeStart": "fd00:10::10"}]]}}),
        ),
        base(&json!({"cniVersion": "0.3.1", "isDefaultGateway": true, "ipam": {"ranges": dual}})),
        base(&json!({"cniVersion": "0.2.0", "isDefaultGateway": true, "ipam": {"subnet": "10.10.0.0/24"}})),
        base(&json!({"isDefaultGateway": true, "ipam": {"routes": []},
            "runtimeConfig": {"ipRanges": [[{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.9"}]]}})),
    ]
}

fn compare(step: &str, sides: &[Side; 2], summary: impl Fn(&Side) -> Value) {
    let [reference, podwire] = sides.each_ref().map(summary);
    assert_eq!(reference, podwire, "{step} (left: reference, right: Podwire), config {}", sides[0].config);
}

/// Adds three pods and removes the first one. Results, pods and bridge must be the same after every step.
#[test]
fn reference_configs_create_the_same_network() {
    for (number, config) in configs().into_iter().enumerate() {
        let ipam_type = if number % 2 == 0 { IpamType::Absent } else { IpamType::Podwire };
        let sides = [Side::reference(&config), Side::podwire(&config, ipam_type)];
        let mut all_pods: [Vec<Pod>; 2] = [vec![], vec![]];
        for step in ["first", "second", "third"] {
            let pods = sides.each_ref().map(|side| side.node.pod(step).unwrap());
            let pod = |side: &Side| if side.config["type"] == "bridge" { &pods[0] } else { &pods[1] };
            compare(step, &sides, |side| of_result(&side.call(Verb::Add, pod(side), None).ok().unwrap()));
            compare(step, &sides, |side| of_pod(pod(side)));
            compare(step, &sides, |side| of_node(&side.node, side.bridge()));
            if step == "first" {
                for side in &sides {
                    assert_eq!(side.call(Verb::Del, pod(side), None).ok().unwrap(), Value::Null);
                    assert_eq!(inspect::links(pod(side)).unwrap().len(), 1);
                }
                compare("after a DEL", &sides, |side| {
                    with(&of_node(&side.node, side.bridge()), &json!({"mtu": null}))
                });
            }
            for (side_pods, pod) in all_pods.iter_mut().zip(pods) {
                side_pods.push(pod);
            }
        }
    }
}

#[test]
fn requested_addresses_are_assigned_as_by_the_reference_plugins() {
    let config = base(&json!({"isDefaultGateway": true, "ipam": {"subnet": "10.10.0.0/24"}}));
    for (args, more) in [
        (Some("IgnoreUnknown=1;IP=10.10.0.77"), json!({})),
        (None, json!({"args": {"cni": {"ips": ["10.10.0.77"]}}})),
        (None, json!({"runtimeConfig": {"ips": ["10.10.0.77/24"]}})),
    ] {
        let config = with(&config, &more);
        let sides = [Side::reference(&config), Side::podwire(&config, IpamType::Podwire)];
        compare("requested", &sides, |side| {
            let pod = side.node.pod("a").unwrap();
            let result = side.call(Verb::Add, &pod, args).ok().unwrap();
            assert_eq!(result["ips"][0]["address"], "10.10.0.77/24");
            json!([of_result(&result), of_pod(&pod)])
        });
        compare("taken", &sides, |side| {
            let pod = side.node.pod("b").unwrap();
            json!(side.call(Verb::Add, &pod, args).error().is_ok())
        });
    }
}

/// The bridge has an overlapping address. The reference plugin replaces all addresses of the family, Podwire only overlapping
/// ones.
#[test]
fn force_address_works_as_in_the_reference_plugin() {
    for force in [false, true] {
        let config =
            base(&json!({"isGateway": true, "forceAddress": force, "ipam": {"subnet": "10.10.0.0/24"}}));
        let sides = [Side::reference(&config), Side::podwire(&config, IpamType::Absent)];
        compare("forceAddress", &sides, |side| {
            for line in ["ip link add mynet0 type bridge", "ip addr add 10.10.0.9/24 dev mynet0"] {
                side.node.sh(&words(line)).unwrap();
            }
            let outcome = side.call(Verb::Add, &side.node.pod("a").unwrap(), None);
            assert_eq!(outcome.success(), force);
            of_node(&side.node, "mynet0")["addresses"].clone()
        });
    }
}

#[test]
fn hairpin_with_promiscuous_mode_is_refused_by_both() {
    let config = base(&json!({"hairpinMode": true, "promiscMode": true, "ipam": {"subnet": "10.10.0.0/24"}}));
    let sides = [Side::reference(&config), Side::podwire(&config, IpamType::Absent)];
    for side in &sides {
        side.call(Verb::Add, &side.node.pod("a").unwrap(), None).error().unwrap();
    }
}

#[test]
fn defaults_differ_from_the_reference_plugin_as_documented() {
    let config = json!({"cniVersion": "1.0.0", "name": "mynet", "bridge": "mynet0", "ipam": {"subnet": "10.10.0.0/24"}});
    let sides = [Side::reference(&config), Side::podwire(&config, IpamType::Absent)];
    let [reference, podwire] = sides.each_ref().map(|side| {
        let pod = side.node.pod("a").unwrap();
        side.call(Verb::Add, &pod, None).ok().unwrap();
        let (node, pod) = (of_node(&side.node, "mynet0"), of_pod(&pod));
        json!({"gateway": node["addresses"], "hairpin": node["ports"][0]["hairpin"], "routes": pod["routes"].as_array().unwrap().len()})
    });
    assert_eq!(reference, json!({"gateway": [], "hairpin": false, "routes": 1}));
    assert_eq!(podwire, json!({"gateway": ["10.10.0.1/24"], "hairpin": true, "routes": 2}));
    // With promiscMode, hairpin mode is off by default.
    let promisc = with(&config, &json!({"promiscMode": true}));
    let side = Side::podwire(&promisc, IpamType::Absent);
    side.call(Verb::Add, &side.node.pod("a").unwrap(), None).ok().unwrap();
    assert_eq!(of_node(&side.node, "mynet0")["ports"][0]["hairpin"], false);
}

/// `exclude` is a key of the whereabouts plugin that host-local does not have.
#[test]
fn excluded_addresses_are_not_assigned_and_data_dir_has_the_state() {
    let config = base(&json!({"isDefaultGateway": true, "ipam": {"ranges": [
        [{"subnet": "10.10.0.0/29", "exclude": ["10.10.0.2/31", "10.10.0.5"]}],
        [{"subnet": "fd00:10::/64", "exclude": ["fd00:10::2/127"]}]]}}));
    let side = Side::podwire(&config, IpamType::Absent);
    let mut assigned = Vec::new();
    for name in ["a", "b", "c"] {
        let outcome = side.call(Verb::Add, &side.node.pod(name).unwrap(), None);
        if !outcome.success() {
            assert_eq!(outcome.error().unwrap().code, 100);
            break;
        }
        let result = outcome.ok().unwrap();
        assigned.push(
            ["0", "1"]
                .map(|i| result["ips"][i.parse::<usize>().unwrap()]["address"].as_str().unwrap().to_owned()),
        );
    }
    assert_eq!(assigned, [["10.10.0.4/29", "fd00:10::4/64"], ["10.10.0.6/29", "fd00:10::5/64"]]);
    assert!(side.node.run_dir().join("podwire/networks/mynet/addresses/10.10.0.4").exists());
}
