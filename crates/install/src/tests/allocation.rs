//! Values that are known only when the node owns blocks, and names that the operator chooses.

use super::*;
use config::{ClusterConfig, Etcd, PluginConfig, StoreChoice};

const BLOCKS: &str = r#"{"cniVersion":"{{ CNI_VERSION }}","name":"{{ NAME }}","plugins":[{"type":"{{ TYPE }}",
    "subnet":"{{ BLOCK }}","network":"{{ NETWORK }}","x-gateway":"{{ GATEWAY }}","mtu":{{ MTU }},
    "agent":"{{ SOCKET }}","runDir":"{{ RUN_DIR }}"}]}"#;

/// A node of a cluster.
fn cluster_node() -> Site {
    let mut site = Site::new();
    site.config.store = StoreChoice::Etcd(Etcd {
        endpoints: vec!["http://etcd:2379".to_owned()],
        prefix: "/podwire".to_owned(),
        counter: None,
        ca: None,
        cert: None,
        key: None,
        user: None,
        password: None,
        insecure: false,
    });
    site.config.cluster = ClusterConfig { margin: 8, ..site.config.cluster.clone() };
    site.config.network.subnets = vec!["10.2.0.0/16".parse().unwrap(), "fd00:2::/64".parse().unwrap()];
    site
}

fn network(site: &Site, blocks: &[&str], mtu: u32) -> Arc<Network> {
    let blocks = blocks.iter().map(|block| block.parse().unwrap()).collect();
    Arc::new(Network::new(&site.config.network, blocks, Some(mtu)).unwrap())
}

fn plugin_of(text: &str) -> Value {
    serde_json::from_str::<Value>(text).unwrap()["plugins"][0].clone()
}

#[test]
fn a7_the_config_contains_the_nodes_blocks() {
    let mut site = cluster_node();
    site.template(BLOCKS);
    let installer = site.installer();
    let error = installer.install().unwrap_err().to_string();
    assert!(error.contains("{{ BLOCK }} is unknown before this node has a block"), "{error}");
    assert_eq!(site.everything(), ["./template.json"], "nothing is installed yet");
    assert!(!installer.has_changes());

    assert!(installer.set_network(network(&site, &["10.2.3.0/24", "fd00:2:0:0:300::/72"], 1450)));
    assert!(installer.has_changes());
    assert_eq!(installer.install().unwrap().len(), 3);
    assert!(!installer.has_changes());
    let plugin = plugin_of(&text(&site.conflist()));
    assert_eq!(plugin["subnet"], "10.2.3.0/24,fd00:2:0:0:300::/72");
    assert_eq!(plugin["network"], "10.2.0.0/16,fd00:2::/64");
    assert_eq!(plugin["x-gateway"], "10.2.3.1,fd00:2::300:0:0:1");
    assert_eq!(plugin["mtu"], 1450);

    // The same network is no change. Another block is.
    assert!(!installer.set_network(network(&site, &["10.2.3.0/24", "fd00:2:0:0:300::/72"], 1450)));
    assert!(!installer.has_changes());
    assert!(installer.set_network(network(
        &site,
        &["10.2.3.0/24", "10.2.9.0/24", "fd00:2:0:0:300::/72"],
        1450
    )));
    let done = installer.install().unwrap();
    assert!(done.len() == 1 && done[0].starts_with("config "), "{done:?}");
    assert_eq!(plugin_of(&text(&site.conflist()))["subnet"], "10.2.3.0/24,10.2.9.0/24,fd00:2:0:0:300::/72");
    assert!(all_ok(&installer));
}

#[test]
fn a_change_that_could_not_be_written_is_retried() {
    let mut site = cluster_node();
    site.template(BLOCKS);
    let installer = site.installer();
    installer.set_network(network(&site, &["10.2.3.0/24", "fd00:2:0:0:300::/72"], 1450));
    fs::remove_file(site.at("template.json")).unwrap();
    assert!(installer.install().is_err());
    assert!(installer.has_changes());
    site.template(BLOCKS);
    installer.install().unwrap();
    assert!(!installer.has_changes());
}

#[test]
fn the_built_in_template_of_an_agent_needs_no_block() {
    let site = cluster_node();
    let installer = site.installer();
    installer.install().unwrap();
    assert!(installer.set_network(network(&site, &["10.2.3.0/24", "fd00:2:0:0:300::/72"], 1450)));
    assert_eq!(installer.install().unwrap(), Vec::<String>::new());
}

#[test]
fn a_template_of_a_cluster_node_is_checked_at_the_start() {
    let mut site = cluster_node();
    site.template(&BLOCKS.replace("MTU", "MUT"));
    let error = Installer::new(&site.config).unwrap_err().to_string();
    assert!(error.contains("unknown variable \"MUT\""), "{error}");
}

#[test]
fn a_single_node_has_the_whole_network_from_the_start() {
    let mut site = Site::new();
    site.template(BLOCKS);
    let plugin = plugin_of(&site.installer().render().unwrap());
    assert_eq!(plugin["subnet"], "10.83.0.0/16,fd00:88::/64");
    assert_eq!((&plugin["subnet"], &plugin["mtu"]), (&plugin["network"], &json!(0)));
}

#[test]
fn a1_type_and_version_are_configurable() {
    let mut site = Site::new();
    site.config.plugin = PluginConfig { name: "blue-cni".to_owned(), version: cni::Version::V0_4_0 };
    let installer = site.installer();
    installer.install().unwrap();
    let list: Value = serde_json::from_str(&text(&site.conflist())).unwrap();
    assert_eq!((&list["cniVersion"], &list["plugins"][0]["type"]), (&json!("0.4.0"), &json!("blue-cni")));
    let plugin = site.at("opt/cni/bin/blue-cni");
    assert_eq!((mode(&plugin), site.plugin().exists()), (0o700, false));
    assert!(all_ok(&installer));
    // The file with this name is watched and restored.
    let mut watch = FileWatch::new(&installer).unwrap();
    fs::remove_file(&plugin).unwrap();
    assert!(watch.changed().unwrap());
    assert_eq!(installer.install().unwrap().len(), 1);
    // An edited config is removed with it.
    fs::write(site.conflist(), r#"{"name":"x","plugins":[{"type":"blue-cni"}]}"#).unwrap();
    let removal = installer.remove().unwrap();
    assert!(removal.left.is_empty() && site.everything().is_empty(), "{removal:?} {:?}", site.everything());
}

#[test]
fn a1_a_changed_type_removes_the_earlier_plugin() {
    let mut site = Site::new();
    site.installer().install().unwrap();
    site.config.plugin.name = "blue-cni".to_owned();
    site.installer().install().unwrap();
    assert!(site.at("opt/cni/bin/blue-cni").exists() && !site.plugin().exists());
}

#[test]
fn c1_a_conf_file_holds_a_single_plugin() {
    let mut site = Site::new();
    site.install().config_name = "10-podwire.conf".to_owned();
    let installer = site.installer();
    installer.install().unwrap();
    let path = site.at("etc/cni/net.d/10-podwire.conf");
    let raw = text(&path);
    let conf: Value = serde_json::from_str(&raw).unwrap();
    assert_eq!((&conf["name"], &conf["type"]), (&json!("podwire"), &json!("podwire-cni")), "{raw}");
    assert_eq!((&conf["cniVersion"], conf.get("plugins")), (&json!("1.0.0"), None));
    assert_eq!(conf["capabilities"]["portMappings"], true);
    // The plugin can parse the file as a runtime passes it.
    netconf::LocalPaths::parse(&cni::NetworkConfig::from_slice(raw.as_bytes()).unwrap()).unwrap();
    fs::write(&path, r#"{"name":"x","type":"podwire-cni"}"#).unwrap();
    let removal = installer.remove().unwrap();
    assert!(removal.left.is_empty() && !path.exists(), "{removal:?}");
    site.template(
        r#"{"cniVersion":"1.1.0","name":"podwire","plugins":[{"type":"podwire-cni"},{"type":"tuning"}]}"#,
    );
    let error = Installer::new(&site.config).unwrap_err().to_string();
    assert!(error.contains("one plugin") && error.contains(".conflist"), "{error}");
}
