use serde_json::{Value, json};
use types::Protocol;

use crate::FieldError;
use crate::kubernetes::{KubeNamespace, KubeNode, KubePod, RawNamespace, RawNode, RawPod, decode};
use crate::objects::NamedPort;
use crate::placement::PlacementRequest;

fn pod(metadata: &Value, spec: &Value, status: &Value) -> Result<KubePod, FieldError> {
    let mut object = json!({ "metadata": { "name": "web-1", "namespace": "shop", "uid": "a-b" }, "spec": spec, "status": status });
    for (name, value) in metadata.as_object().unwrap() {
        object["metadata"][name] = value.clone();
    }
    decode::<RawPod, _>(object)
}

#[test]
fn a_pod_has_name_node_labels_and_addresses() {
    let labels = json!({ "app": "web", "io.contiv.tenant": "blue", "io.contiv.network": "front", "io.contiv.net-group": "web" });
    let status = json!({ "phase": "Running", "podIP": "10.1.0.5", "podIPs": [{ "ip": "10.1.0.5" }, { "ip": "fd00::5" }] });
    let found = pod(&json!({ "labels": labels }), &json!({ "nodeName": "n1" }), &status).unwrap();
    assert_eq!((found.uid.as_str(), found.name.to_string().as_str()), ("a-b", "shop/web-1"));
    assert_eq!(found.node.unwrap().as_str(), "n1");
    assert_eq!(found.labels["app"], "web");
    assert_eq!(found.addresses, Some(vec!["10.1.0.5".parse().unwrap(), "fd00::5".parse().unwrap()]));
    assert!(!found.is_completed && found.ports.is_empty());
    let text = |word: &str| Some(word.to_owned());
    assert_eq!(
        found.placement,
        PlacementRequest { tenant: text("blue"), network: text("front"), group: text("web") }
    );
}

#[test]
fn b10_labels_of_podwire_have_precedence_over_those_of_contiv() {
    let labels =
        json!({ "io.contiv.tenant": "blue", "podwire.io/tenant": "green", "podwire.io/group": "db" });
    let found = pod(&json!({ "labels": labels }), &json!({}), &json!({})).unwrap().placement;
    assert_eq!(
        (found.tenant.as_deref(), found.network, found.group.as_deref()),
        (Some("green"), None, Some("db"))
    );
}

#[test]
fn a_pending_pod_has_no_node_and_no_addresses() {
    for (spec, status) in
        [(json!({}), json!({})), (json!({ "nodeName": "" }), json!({ "phase": "Pending", "podIP": "" }))]
    {
        let found = pod(&json!({}), &spec, &status).unwrap();
        assert_eq!((found.node, found.addresses), (None, Some(Vec::new())));
    }
    let single = pod(&json!({}), &json!({}), &json!({ "podIP": "10.1.0.5" })).unwrap();
    assert_eq!(single.addresses, Some(vec!["10.1.0.5".parse().unwrap()]));
}

#[test]
fn a_pod_of_the_host_network_has_no_addresses_of_its_own() {
    let status = json!({ "podIPs": [{ "ip": "192.0.2.1" }] });
    assert_eq!(pod(&json!({}), &json!({ "hostNetwork": true }), &status).unwrap().addresses, None);
    assert!(pod(&json!({}), &json!({ "hostNetwork": false }), &status).unwrap().addresses.is_some());
}

#[test]
fn succeeded_and_failed_pods_are_completed() {
    for (phase, expected) in
        [("Pending", false), ("Running", false), ("Unknown", false), ("Succeeded", true), ("Failed", true)]
    {
        assert_eq!(pod(&json!({}), &json!({}), &json!({ "phase": phase })).unwrap().is_completed, expected);
    }
}

#[test]
fn a_terminating_pod_is_not_completed() {
    let deleted = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30 });
    let running = json!({ "phase": "Running", "podIPs": [{ "ip": "10.1.0.5" }] });
    let found = pod(&deleted, &json!({}), &running).unwrap();
    assert!(!found.is_completed);
    assert_eq!(found.addresses, Some(vec!["10.1.0.5".parse().unwrap()]));
}

#[test]
fn a_static_pod_has_the_uid_of_its_config_hash() {
    let hash = "0123456789abcdef0123456789abcdef";
    let annotated =
        |annotations: Value| pod(&json!({ "annotations": annotations }), &json!({}), &json!({})).unwrap().uid;
    assert_eq!(
        annotated(json!({ "kubernetes.io/config.hash": hash, "kubernetes.io/config.mirror": hash })),
        hash
    );
    assert_eq!(annotated(json!({ "kubernetes.io/config.hash": hash })), "a-b", "not a mirror pod");
    assert_eq!(
        annotated(json!({ "kubernetes.io/config.hash": "abc", "kubernetes.io/config.mirror": "abc" })),
        "a-b"
    );
    let other = "11111111-2222-3333-4444-555555555555";
    let forged = json!({ "kubernetes.io/config.hash": other, "kubernetes.io/config.mirror": other });
    assert_eq!(annotated(forged), "a-b", "the uid of another pod");
    let error = pod(&json!({ "uid": null }), &json!({}), &json!({})).unwrap_err();
    assert_eq!(error.to_string(), "metadata.uid: is missing");
}

#[test]
fn named_ports_are_those_of_containers_and_sidecars() {
    let port = |name: &str, port: u16| json!({ "name": name, "containerPort": port });
    let spec = json!({
        "containers": [
            { "ports": [port("http", 8080), { "containerPort": 9 }, { "name": "dns", "containerPort": 53, "protocol": "UDP" }] },
            { "ports": [port("http", 8081), { "name": "dns", "containerPort": 54, "protocol": "TCP" }] },
        ],
        "initContainers": [
            { "restartPolicy": "Always", "ports": [port("metrics", 9090), port("http", 8082)] },
            { "ports": [port("setup", 1)] },
        ],
    });
    let named = |name: &str, protocol, port| NamedPort { name: name.to_owned(), protocol, port };
    assert_eq!(
        pod(&json!({}), &spec, &json!({})).unwrap().ports,
        [
            named("dns", Protocol::Tcp, 54),
            named("dns", Protocol::Udp, 53),
            named("http", Protocol::Tcp, 8080),
            named("metrics", Protocol::Tcp, 9090),
        ]
    );
}

#[test]
fn invalid_pods_name_the_field() {
    let ports = |port: Value| json!({ "containers": [{}, { "ports": [port] }] });
    for (spec, status, expected) in [
        (json!({ "nodeName": "a b" }), json!({}), "spec.nodeName: node name \"a b\" is invalid"),
        (
            json!({}),
            json!({ "podIPs": [{ "ip": "10.1.0.5" }, { "ip": "x" }] }),
            "status.podIPs[1].ip: \"x\" is not allowed",
        ),
        (json!({}), json!({ "podIP": "x" }), "status.podIP: \"x\""),
        (
            ports(json!({ "name": "a", "containerPort": 5, "protocol": "?" })),
            json!({}),
            "spec.containers[1].ports[0].protocol: \"?\"",
        ),
        (ports(json!({ "name": "a" })), json!({}), "spec.containers[1].ports[0].containerPort: 0"),
        (
            ports(json!({ "name": "a", "containerPort": 70_000 })),
            json!({}),
            "spec.containers[1].ports[0].containerPort: invalid value",
        ),
        (json!({ "hostNetwork": "yes" }), json!({}), "spec.hostNetwork: invalid type"),
    ] {
        let error = pod(&json!({}), &spec, &status).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_namespace_always_has_the_label_of_its_name() {
    let object = json!({ "metadata": { "name": "shop", "labels": { "team": "a", "kubernetes.io/metadata.name": "x" } } });
    let namespace: KubeNamespace = decode::<RawNamespace, _>(object).unwrap();
    assert_eq!((namespace.name.as_str(), namespace.labels["team"].as_str()), ("shop", "a"));
    assert_eq!(namespace.labels["kubernetes.io/metadata.name"], "shop");
    let error = decode::<RawNamespace, KubeNamespace>(json!({ "metadata": {} })).unwrap_err();
    assert_eq!(error.to_string(), "metadata.name: is missing");
}

#[test]
fn a_node_has_its_status_addresses_and_labels() {
    let addresses = json!([
        { "type": "Hostname", "address": "n1" },
        { "type": "InternalIP", "address": "192.0.2.1" },
        { "type": "ExternalIP", "address": "2001:db8::1" },
        { "type": "ExternalDNS", "address": "n1.example.org" },
    ]);
    let object = |addresses: &Value| json!({ "metadata": { "name": "n1", "labels": { "zone": "a" } }, "status": { "addresses": addresses } });
    let node: KubeNode = decode::<RawNode, _>(object(&addresses)).unwrap();
    assert_eq!((node.name.as_str(), node.labels["zone"].as_str()), ("n1", "a"));
    assert_eq!(
        node.addresses,
        ["192.0.2.1".parse::<std::net::IpAddr>().unwrap(), "2001:db8::1".parse().unwrap()]
    );
    let bad = object(&json!([{ "type": "InternalIP", "address": "n1" }]));
    let error = decode::<RawNode, KubeNode>(bad).unwrap_err().to_string();
    assert!(error.starts_with("status.addresses[0].address: \"n1\""), "{error}");
}
