//! Configs as people write them for `bridge` and `host-local`, given to both, side by side. The intended differences:
//! - without `isGateway`, `isDefaultGateway` and `routes` our pods get a gateway and a default route (the reference leaves
//!   them with neither), and without `hairpinMode` the port is one that reflects, so that service addresses work. Where
//!   the config says what it wants, it gets that;
//! - routes in the result always tell their gateway;
//! - our bridge keeps the MTU that was asked for (F8), the reference's follows its ports and is back at 1500 without any;
//! - a second pod of the same name is refused, not attached twice.

use serde_json::{Value, json};
use testkit::{Call, Lab, Node, Outcome, Plugin, Pod, Verb, inspect};

use crate::common::{with, words};
use crate::picture::{of_node, of_pod, of_result};

/// A node with one of the two plugins on it.
struct Side {
    node: Node,
    plugin: Plugin,
    config: Value,
    _lab: Lab,
}

/// Which name our own addresses have in `ipam.type`: none at all, or ours.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    Not,
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

    fn ours(config: &Value, named: Named) -> Self {
        let lab = Lab::new("ours").unwrap();
        let node = lab.node("n1").unwrap();
        let mut config = with(config, &json!({"type": "podwire-cni", "logFile": node.log_file()}));
        if named == Named::Podwire {
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

/// Real ones: from the plugins' own documentation, containerd's install script, podman, and variations of them.
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
        // The second range is for when the first is full.
        base(
            &json!({"isDefaultGateway": true, "ipam": {"ranges": [[{"subnet": "10.10.0.0/24", "rangeStart": "10.10.0.10", "rangeEnd": "10.10.0.10"},
                {"subnet": "10.10.0.0/24", "rangeStart": "10.10.0.20"}]]}}),
        ),
        base(&json!({"isGateway": true, "ipam": {"subnet": "10.10.0.0/24", "routes": [{"dst": "0.0.0.0/0"},
            {"dst": "192.168.0.0/16", "gw": "10.10.0.7"}, {"dst": "172.16.5.0/24"}]}})),
        // A default route of one's own is not doubled.
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

fn compare(step: &str, sides: &[Side; 2], picture: impl Fn(&Side) -> Value) {
    let [reference, ours] = sides.each_ref().map(picture);
    assert_eq!(reference, ours, "{step} (left: reference, right: ours), config {}", sides[0].config);
}

/// Two pods come, the first goes, a third comes: results, pods and bridge are the same at every step.
#[test]
fn a_config_of_the_reference_plugins_gives_the_same_network() {
    for (number, config) in configs().into_iter().enumerate() {
        let named = if number % 2 == 0 { Named::Not } else { Named::Podwire };
        let sides = [Side::reference(&config), Side::ours(&config, named)];
        let mut gone: [Vec<Pod>; 2] = [vec![], vec![]];
        for step in ["first", "second", "third"] {
            let pods = sides.each_ref().map(|side| side.node.pod(step).unwrap());
            let of = |side: &Side| if side.config["type"] == "bridge" { &pods[0] } else { &pods[1] };
            compare(step, &sides, |side| of_result(&side.call(Verb::Add, of(side), None).ok().unwrap()));
            compare(step, &sides, |side| of_pod(of(side)));
            compare(step, &sides, |side| of_node(&side.node, side.bridge()));
            if step == "first" {
                for side in &sides {
                    assert_eq!(side.call(Verb::Del, of(side), None).ok().unwrap(), Value::Null);
                    assert_eq!(inspect::links(of(side)).unwrap().len(), 1);
                }
                compare("after a DEL", &sides, |side| {
                    with(&of_node(&side.node, side.bridge()), &json!({"mtu": null}))
                });
            }
            for (kept, pod) in gone.iter_mut().zip(pods) {
                kept.push(pod);
            }
        }
    }
}

#[test]
fn a_requested_address_is_given_the_same_way() {
    let config = base(&json!({"isDefaultGateway": true, "ipam": {"subnet": "10.10.0.0/24"}}));
    for (args, more) in [
        (Some("IgnoreUnknown=1;IP=10.10.0.77"), json!({})),
        (None, json!({"args": {"cni": {"ips": ["10.10.0.77"]}}})),
        (None, json!({"runtimeConfig": {"ips": ["10.10.0.77/24"]}})),
    ] {
        let config = with(&config, &more);
        let sides = [Side::reference(&config), Side::ours(&config, Named::Podwire)];
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

/// An address in the way: both refuse, and both replace it if told to. The reference removes every address of the family;
/// ours only those that overlap, so the one that does is all there is here.
#[test]
fn force_address_does_the_same() {
    for force in [false, true] {
        let config =
            base(&json!({"isGateway": true, "forceAddress": force, "ipam": {"subnet": "10.10.0.0/24"}}));
        let sides = [Side::reference(&config), Side::ours(&config, Named::Not)];
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
fn hairpin_and_promiscuous_mode_together_are_refused_by_both() {
    let config = base(&json!({"hairpinMode": true, "promiscMode": true, "ipam": {"subnet": "10.10.0.0/24"}}));
    let sides = [Side::reference(&config), Side::ours(&config, Named::Not)];
    for side in &sides {
        side.call(Verb::Add, &side.node.pod("a").unwrap(), None).error().unwrap();
    }
}

/// What is not said: each default that differs on purpose.
#[test]
fn defaults_that_differ_on_purpose() {
    let config = json!({"cniVersion": "1.0.0", "name": "mynet", "bridge": "mynet0", "ipam": {"subnet": "10.10.0.0/24"}});
    let sides = [Side::reference(&config), Side::ours(&config, Named::Not)];
    let [reference, ours] = sides.each_ref().map(|side| {
        let pod = side.node.pod("a").unwrap();
        side.call(Verb::Add, &pod, None).ok().unwrap();
        let (node, pod) = (of_node(&side.node, "mynet0"), of_pod(&pod));
        json!({"gateway": node["addresses"], "hairpin": node["ports"][0]["hairpin"], "routes": pod["routes"].as_array().unwrap().len()})
    });
    assert_eq!(reference, json!({"gateway": [], "hairpin": false, "routes": 1}));
    assert_eq!(ours, json!({"gateway": ["10.10.0.1/24"], "hairpin": true, "routes": 2}));
    // Promiscuous ports are no reflecting ones.
    let promisc = with(&config, &json!({"promiscMode": true}));
    let side = Side::ours(&promisc, Named::Not);
    side.call(Verb::Add, &side.node.pod("a").unwrap(), None).ok().unwrap();
    assert_eq!(of_node(&side.node, "mynet0")["ports"][0]["hairpin"], false);
}

/// `exclude` is whereabouts' word for what host-local cannot say.
#[test]
fn excluded_addresses_are_not_given_and_data_dir_holds_the_state() {
    let config = base(&json!({"isDefaultGateway": true, "ipam": {"ranges": [
        [{"subnet": "10.10.0.0/29", "exclude": ["10.10.0.2/31", "10.10.0.5"]}],
        [{"subnet": "fd00:10::/64", "exclude": ["fd00:10::2/127"]}]]}}));
    let side = Side::ours(&config, Named::Not);
    let mut given = Vec::new();
    for name in ["a", "b", "c"] {
        let outcome = side.call(Verb::Add, &side.node.pod(name).unwrap(), None);
        if !outcome.success() {
            assert_eq!(outcome.error().unwrap().code, 100);
            break;
        }
        let result = outcome.ok().unwrap();
        given.push(
            ["0", "1"]
                .map(|i| result["ips"][i.parse::<usize>().unwrap()]["address"].as_str().unwrap().to_owned()),
        );
    }
    assert_eq!(given, [["10.10.0.4/29", "fd00:10::4/64"], ["10.10.0.6/29", "fd00:10::5/64"]]);
    assert!(side.node.run_dir().join("podwire/networks/mynet/addresses/10.10.0.4").exists());
}
