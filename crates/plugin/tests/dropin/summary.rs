//! Summaries of results, pods and nodes without properties that may differ: MACs, names of host ends and protocols of routes.

use serde_json::{Value, json};
use testkit::inspect::{self, Family};
use testkit::{Node, Ns, Pod};

/// The result with placeholders for generated names.
pub(crate) fn of_result(result: &Value) -> Value {
    let mut result = result.clone();
    let gateways: Vec<Value> =
        result["ips"].as_array().into_iter().flatten().map(|ip| ip["gateway"].clone()).collect();
    for (index, interface) in result["interfaces"].as_array_mut().into_iter().flatten().enumerate() {
        let interface = interface.as_object_mut().unwrap();
        assert!(interface.remove("mac").is_some(), "an interface has no MAC");
        if index == 1 {
            interface.insert("name".to_owned(), json!("HOST-END"));
        }
        if interface.get("sandbox").is_some_and(|sandbox| sandbox != "") {
            interface.insert("sandbox".to_owned(), json!("POD"));
        }
    }
    // For a configured route without a gateway, both use the network's gateway. The reference plugin omits it in the result,
    // Podwire does not.
    for route in result["routes"].as_array_mut().into_iter().flatten() {
        if gateways.contains(&route["gw"]) {
            route.as_object_mut().unwrap().remove("gw");
        }
    }
    for family in ["ip4", "ip6"] {
        let gateway = result[family]["gateway"].clone();
        for route in result[family]["routes"].as_array_mut().into_iter().flatten() {
            if route["gw"] == gateway {
                route.as_object_mut().unwrap().remove("gw");
            }
        }
    }
    let object = result.as_object_mut().unwrap();
    object.retain(|_, value| !value.is_null());
    result
}

fn global_addresses(ns: &Ns, dev: &str) -> Vec<String> {
    let mut all: Vec<String> = inspect::addresses(ns, dev)
        .unwrap()
        .iter()
        .filter(|address| address.scope == "global")
        .map(|address| address.net.to_string())
        .collect();
    all.sort();
    all
}

fn routes(pod: &Pod) -> Vec<String> {
    let both = [Family::V4, Family::V6].map(|family| inspect::routes(pod, family).unwrap());
    let mut all: Vec<String> = both
        .iter()
        .flatten()
        .filter(|route| !route.dst.starts_with("fe80:") && !route.dst.starts_with("ff00:"))
        .map(|route| format!("{} via {:?} dev {:?}", route.dst, route.gateway, route.dev))
        .collect();
    all.sort();
    all
}

/// Addresses, routes and link of a pod.
pub(crate) fn of_pod(pod: &Pod) -> Value {
    let link = inspect::link(pod, "eth0").unwrap();
    json!({
        "addresses": global_addresses(pod, "eth0"), "routes": routes(pod), "mtu": link.mtu, "up": link.is_up(),
        "kind": link.kind(), "links": inspect::links(pod).unwrap().len(),
    })
}

/// The bridge and its ports.
pub(crate) fn of_node(node: &Node, bridge: &str) -> Value {
    let link = inspect::link(node, bridge).unwrap();
    let ports = node.json(&["ip", "-d", "-j", "link", "show", "master", bridge]).unwrap();
    let ports: Vec<Value> = ports
        .as_array()
        .into_iter()
        .flatten()
        .map(|port| {
            let data = &port["linkinfo"]["info_slave_data"];
            let up = port["flags"].as_array().unwrap().contains(&json!("UP"));
            json!({"mtu": port["mtu"], "up": up, "hairpin": data["hairpin"], "isolated": data["isolated"]})
        })
        .collect();
    json!({
        "addresses": global_addresses(node, bridge), "mtu": link.mtu, "up": link.is_up(),
        "promisc": link.flags.iter().any(|flag| flag == "PROMISC"), "ports": ports,
    })
}
