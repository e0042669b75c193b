//! The pages for users are true: every network config in them attaches a pod.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testkit::docs::{self, Page};
use testkit::{Lab, Plugin, ping};

/// The network configs of all pages: JSON blocks with a list of plugins.
fn configs() -> Vec<(Page, Value)> {
    let mut configs = Vec::new();
    for page in docs::user_pages().unwrap() {
        for fence in page.fences().into_iter().filter(|fence| fence.language() == "json") {
            let value: Value = serde_json::from_str(&fence.text()).unwrap();
            if value.get("plugins").is_some() {
                configs.push((page.clone(), value));
            }
        }
    }
    configs
}

/// Copies the plugin as docs/install.md says, into a directory of the lab.
fn install(dir: &Path) -> Plugin {
    let start = "install -D -m 0755 target/release/podwire-cni ";
    let fences = Page::read("docs/install.md").unwrap().fences();
    let block = fences.iter().map(docs::Fence::text).find(|text| text.starts_with(start)).unwrap();
    let built = Plugin::podwire().unwrap().path.display().to_string();
    let bin = dir.join("opt/cni/bin");
    let script =
        block.replace("target/release/podwire-cni", &built).replace("/opt/cni/bin", bin.to_str().unwrap());
    assert!(!script.contains(" /opt/"), "only the lab's directory is written: {script}");
    for _ in 0..2 {
        assert!(Command::new("sh").args(["-ec", &script]).status().unwrap().success(), "{script}");
    }
    assert!(bin.join("loopback").exists());
    Plugin { path: bin.join("podwire-cni") }
}

#[test]
fn every_config_in_the_pages_attaches_a_pod() {
    let configs = configs();
    assert!(configs.len() >= 3, "the pages have lost their configs");
    let lab = Lab::new("pages").unwrap();
    let plugin = install(lab.dir());
    for (n, (_, config)) in configs.into_iter().enumerate() {
        let mut config = as_called(&config);
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
fn as_called(config: &Value) -> Value {
    let mut plugin = config["plugins"][0].clone();
    for key in ["cniVersion", "name"] {
        plugin[key] = config[key].clone();
    }
    plugin
}

/// podman 4 and containerd 1 refuse a newer version, and ignore host ports without the capability.
#[test]
fn b17_configs_in_the_pages_suit_all_runtimes() {
    let texts: String = docs::user_pages().unwrap().into_iter().map(|page| page.text).collect();
    let versions: Vec<&str> =
        texts.split("\"cniVersion\": \"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(versions.len() >= 4 && versions.iter().all(|version| *version == "1.0.0"), "{versions:?}");
    for (page, list) in configs() {
        // podman reads lists only, and only from files with this extension.
        let file = format!("/etc/cni/net.d/10-{}.conflist", list["name"].as_str().unwrap());
        assert!(page.text.contains(&file), "{file} is not in {}", page.path.display());
        for capability in ["portMappings", "bandwidth", "ips", "mac"] {
            assert_eq!(list["plugins"][0]["capabilities"][capability], true, "{capability}: {list}");
        }
    }
}
