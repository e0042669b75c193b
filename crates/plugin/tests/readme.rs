//! The README is true: every network config in it wires a pod.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::IpAddr;

use serde_json::{Value, json};
use testkit::{Lab, Plugin, ping};

/// The JSON blocks of the README.
fn configs() -> Vec<Value> {
    let readme = include_str!("../../../README.md");
    let blocks = readme.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.map(|block| serde_json::from_str(block).unwrap()).collect()
}

#[test]
fn every_config_in_the_readme_wires_a_pod() {
    let configs = configs();
    assert!(configs.len() >= 3, "the README has lost its configs");
    let lab = Lab::new("readme").unwrap();
    let plugin = Plugin::podwire().unwrap();
    for (n, mut config) in configs.into_iter().enumerate() {
        let node = lab.node(&format!("n{n}")).unwrap();
        let pod = node.pod("a").unwrap();
        config["runDir"] = json!(node.run_dir());
        config["logFile"] = json!(node.log_file());
        let result = plugin.add(&pod, &config).unwrap().ok().unwrap();
        let ips = result["ips"].as_array().unwrap();
        assert_eq!(ips.len(), 2, "{config}");
        for ip in ips {
            let gateway: IpAddr = ip["gateway"].as_str().unwrap().parse().unwrap();
            assert!(ping(&pod, gateway, 1).unwrap().all(), "{gateway} of {config}");
        }
        assert!(plugin.check(&pod, &config, &result).unwrap().success(), "{config}");
        assert!(plugin.del(&pod, &config).unwrap().success());
    }
}

/// Every key of the reference table is one that the code reads.
#[test]
fn every_key_in_the_readmes_reference_is_read_by_the_code() {
    let readme = include_str!("../../../README.md");
    let table = readme.split("## Config reference").nth(1).unwrap().split("\n## ").next().unwrap();
    let code = [
        include_str!("../../netconf/src/wiring.rs"),
        include_str!("../../netconf/src/addresses.rs"),
        include_str!("../../netconf/src/routes.rs"),
        include_str!("../../netconf/src/place.rs"),
        include_str!("../../cni/src/config.rs"),
    ]
    .concat();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let mut keys = 0;
    for name in rows.flat_map(|row| row.split('|').nth(1).unwrap().split(',')) {
        let name = name.trim().trim_matches('`').rsplit('.').next().unwrap();
        assert!(code.contains(&format!("\"{name}\"")), "{name} is in the README and nowhere in the code");
        keys += 1;
    }
    assert!(keys > 20, "the table has lost its rows");
}
