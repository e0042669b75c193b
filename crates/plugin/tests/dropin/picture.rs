//! What a plugin made, without what may differ: MACs, the names of host ends, who set a route.

use serde_json::{Value, json};
use testkit::inspect::{self, Family};
use testkit::{Node, Ns, Pod};

/// The result, with names for what is named by chance.
pub(crate) fn of_result(result: &Value) -> Value {
    let mut result = result.clone();
    let gateways: Vec<Value> =
        result["ips"].as_array().into_iter().flatten().map(|ip| ip["gateway"].clone()).collect();
    for (index, interface) in result["interfaces"].as_array_mut().into_iter().flatten().enumerate() {
        let interface = interface.as_object_mut().unwrap();
        assert!(interface.remove("mac").is_some(), "every interface tells its MAC");
        if index == 1 {
            interface.insert("name".to_owned(), json!("HOST-END"));
        }
        if interface.get("sandbox").is_some_and(|sandbox| sandbox != "") {
            interface.insert("sandbox".to_owned(), json!("POD"));
        }
    }
    // The reference leaves the gateway of a route out where the config did, and sets the route through the network's
    // gateway. Ours tells what it set.
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

/// The pod's end: addresses, routes, link.
pub(crate) fn of_pod(pod: &Pod) -> Value {
    let link = inspect::link(pod, "eth0").unwrap();
    json!({
        "addresses": global_addresses(pod, "eth0"), "routes": routes(pod), "mtu": link.mtu, "up": link.is_up(),
        "kind": link.kind(), "links": inspect::links(pod).unwrap().len(),
    })
}

/// The bridge and the host ends on it.
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
