//! Tests the README: every network config in it attaches a pod.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testkit::{Lab, Plugin, ping};

const README: &str = include_str!("../../../README.md");

/// The JSON blocks of the README.
fn configs() -> Vec<Value> {
    let blocks = README.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.map(|block| serde_json::from_str(block).unwrap()).collect()
}

/// Runs the install commands of the README with a directory of the lab.
fn install(dir: &Path) -> Plugin {
    let start = "install -D -m 0755 target/release/podwire-cni ";
    let block = README.split("```\n").find(|block| block.starts_with(start)).unwrap();
    let built = Plugin::podwire().unwrap().path.display().to_string();
    let bin = dir.join("opt/cni/bin");
    let script =
        block.replace("target/release/podwire-cni", &built).replace("/opt/cni/bin", bin.to_str().unwrap());
    assert!(!script.contains(" /opt/"), "the script writes outside the lab's directory: {script}");
    for _ in 0..2 {
        assert!(Command::new("sh").args(["-ec", &script]).status().unwrap().success(), "{script}");
    }
    assert!(bin.join("loopback").exists());
    Plugin { path: bin.join("podwire-cni") }
}

#[test]
fn every_config_in_the_readme_attaches_a_pod() {
    let configs = configs();
    assert!(configs.len() >= 3, "the README has too few configs");
    let lab = Lab::new("readme").unwrap();
    let plugin = install(lab.dir());
    for (n, config) in configs.into_iter().enumerate() {
        let mut config = first_plugin(&config);
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

/// The config that a runtime sends to the first plugin of a list.
fn first_plugin(config: &Value) -> Value {
    let mut plugin = config["plugins"][0].clone();
    for key in ["cniVersion", "name"] {
        plugin[key] = config[key].clone();
    }
    plugin
}

/// podman 4 and containerd 1 refuse newer versions, and ignore host ports without the capability.
#[test]
fn b17_configs_in_the_readme_work_with_all_runtimes() {
    let versions: Vec<&str> =
        README.split("\"cniVersion\": \"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(versions.len() >= 4 && versions.iter().all(|version| *version == "1.0.0"), "{versions:?}");
    for list in configs() {
        // podman only reads lists, from files with this extension.
        let file = format!("/etc/cni/net.d/10-{}.conflist", list["name"].as_str().unwrap());
        assert!(README.contains(&file), "{file} is not in the README");
        for capability in ["portMappings", "bandwidth", "ips", "mac"] {
            assert_eq!(list["plugins"][0]["capabilities"][capability], true, "{capability}: {list}");
        }
    }
}

#[test]
fn every_key_in_the_readme_is_used_in_the_code() {
    let table = README.split("## Config reference").nth(1).unwrap().split("\n## ").next().unwrap();
    let code = [
        include_str!("../../netconf/src/conf.rs"),
        include_str!("../../netconf/src/addresses.rs"),
        include_str!("../../netconf/src/network_key.rs"),
        include_str!("../../netconf/src/routes.rs"),
        include_str!("../../netconf/src/local_paths.rs"),
        include_str!("../../cni/src/config.rs"),
    ]
    .concat();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let mut keys = 0;
    for name in rows.flat_map(|row| row.split('|').nth(1).unwrap().split(',')) {
        let name = name.trim().trim_matches('`').rsplit('.').next().unwrap();
        assert!(code.contains(&format!("\"{name}\"")), "{name} is in the README but not in the code");
        keys += 1;
    }
    assert!(keys > 20, "the table has too few rows");
}
