//! STATUS and VERSION.

use std::fs;

use serde_json::{Value, json};
use testkit::{Call, Verb};

use crate::common::{Host, with};
use crate::watch::{BRIDGE, Watch, dual, refused_with};

const OURS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

#[test]
fn e17_status_is_well_on_a_fresh_node_and_on_one_at_work() {
    let host = Host::new("e17");
    let config = dual(&host, &json!({}));
    host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
    let (pod, _) = host.attached("a", &config);
    let watch = Watch::on(&host, &[&pod]);
    host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
    watch.expect_same("STATUS");
}

#[test]
fn e17_status_is_50_when_a_family_has_no_address_left() {
    let host = Host::new("e17full");
    for (network, subnet) in [("v4", "10.30.0.0/30,fd00:30::/64"), ("v6", "10.31.0.0/24,fd00:31::/126")] {
        let config = host.config(&json!({"name": network, "subnet": subnet, "bridge": network}));
        host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
        let mut pods = Vec::new();
        let error = loop {
            let pod = host.pod(&format!("{network}{}", pods.len()));
            let outcome = host.plugin.add(&pod, &config).unwrap();
            pods.push(pod);
            if !outcome.success() {
                break outcome;
            }
        };
        refused_with(network, &error, (100, &["in use"]));
        let status = host.plugin.status(&host.node, &config).unwrap();
        refused_with(network, &status, (50, &["no free address", "in use"]));
        host.del(&pods[0], &config);
        host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
    }
}

#[test]
fn e17_status_is_50_when_an_add_could_not_be_served() {
    let host = Host::new("e17no");
    let file = host.node.dir().join("file");
    fs::write(&file, "").unwrap();
    let cases = [
        ("state directory under a file", json!({"runDir": file.join("state")}), "runDir"),
        ("state directory is a file", json!({"runDir": file}), "runDir"),
        ("bridge is no bridge", json!({"bridge": "lo"}), "not a bridge"),
        ("no such ipam plugin", json!({"ipam": {"type": "no-such-ipam"}}), "no-such-ipam"),
    ];
    for (case, more, word) in cases {
        let status = host.plugin.status(&host.node, &dual(&host, &more)).unwrap();
        refused_with(case, &status, (50, &[word]));
    }
}

#[test]
fn e17_status_is_51_when_running_pods_lost_their_bridge() {
    let host = Host::new("e17down");
    let config = dual(&host, &json!({}));
    host.attached("a", &config);
    host.node.sh(&["ip", "link", "set", BRIDGE, "down"]).unwrap();
    let status = host.plugin.status(&host.node, &config).unwrap();
    refused_with(
        "bridge down",
        &status,
        (51, &["BridgeDown", BRIDGE, "down", "1 pod has no network until it is up", "repaired just now"]),
    );
    host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
    host.node.sh(&["ip", "link", "del", BRIDGE]).unwrap();
    refused_with(
        "bridge gone",
        &host.plugin.status(&host.node, &config).unwrap(),
        (51, &["BridgeMissing", BRIDGE, "gone", "1 pod has no network until it is restarted"]),
    );
    let nobody = with(&config, &json!({"name": "other"}));
    host.plugin.status(&host.node, &nobody).unwrap().ok().unwrap();
}

#[test]
fn e17_version_echoes_what_it_was_asked_in_and_lists_all() {
    let host = Host::new("e17version");
    let ask = |stdin: &[u8]| {
        let call = Call { stdin: stdin.to_vec(), ..Call::network(Verb::Version, &json!({})) };
        host.plugin.call(&host.node, &call).unwrap().ok().unwrap()
    };
    for version in OURS {
        let answer = ask(json!({"cniVersion": version}).to_string().as_bytes());
        assert_eq!(answer, json!({"cniVersion": version, "supportedVersions": OURS}));
    }
    // This is how a runtime finds out what we speak, so nothing on stdin may make it fail.
    let newest = json!({"cniVersion": "1.1.0", "supportedVersions": OURS});
    for stdin in
        ["", " \n", "{", "[]", "null", "{}", r#"{"cniVersion": 5}"#, r#"{"cniVersion": "9.9.9"}"#, "\u{0}"]
    {
        assert_eq!(ask(stdin.as_bytes()), newest, "{stdin:?}");
    }
    assert_eq!(ask(Value::String("x".repeat(2 << 20)).to_string().as_bytes()), newest);
}
