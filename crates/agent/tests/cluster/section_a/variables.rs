//! A1, A2: the eleven variables, and the meaning of the margin.

use std::os::unix::fs::PermissionsExt as _;

use testkit::{Agent, Cluster, Lab, LabStore, Plan, ping};

use super::{EnvAgent, etcdctl, expect_consistent, node_blocks, records};

#[test]
fn a1_the_eleven_variables_suffice_to_join_and_install() {
    let mut cluster = Cluster::hosts("eleven", &Plan { nodes: 2, ..Plan::default() }).unwrap();
    cluster.start_etcd().unwrap();
    let mut hosts = ["n1", "n2"].map(|host| EnvAgent::new(&cluster, host, &[]));
    hosts.iter_mut().for_each(EnvAgent::start);
    hosts.iter().for_each(EnvAgent::wait_installed);

    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let mut pods = Vec::new();
    for (host, name) in hosts.iter().zip(["n1", "n2"]) {
        assert_eq!((mode(host.config_file()), mode(host.plugin_file())), (0o600, 0o700));
        let config = host.config();
        let values = ["cniVersion", "name", "type"].map(|key| config[key].as_str().unwrap().to_owned());
        assert_eq!(values, ["0.4.0", "blue", "blue-cni"]);
        assert!(testkit::inspect::link(&host.ns, "br-blue").unwrap().is_up());
        let pod = cluster.node(name).unwrap().pod("a").unwrap();
        let addresses = host.add(&pod);
        pods.push((pod, addresses));
    }
    for (from, to) in [(0, 1), (1, 0)] {
        assert_eq!(pods[to].1.len(), 2);
        for address in &pods[to].1 {
            assert!(ping(&pods[from].0, *address, 1).unwrap().all(), "{address}");
        }
    }
    let listed = records(&cluster, "/hosts");
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["n1", "n2"], "the node names must be the host names");
    for record in listed.values() {
        let lengths: Vec<u8> = record.blocks.iter().map(ipnet::IpNet::prefix_len).collect();
        assert_eq!(lengths, [24, 72], "{record:?}");
    }
    expect_consistent(&cluster, "/hosts");
    let counter = etcdctl(&cluster, &["get", "/counters/hosts", "-w", "json"]);
    assert!(counter.contains(r#""version":2"#), "one PUT for each host: {counter}");
}

/// An invalid value of each variable, and a part of the allowed values in the error.
const INVALID: [(&str, &str, &str); 11] = [
    ("ETCD_HOST", "http://a b", "https://etcd-1.example:2379"),
    ("CNI_VERSION", "0.9", "1.1.0"),
    ("CNI_NAME", "a/b", "letters, digits"),
    ("CNI_TYPE", "../x", "letters, digits"),
    ("BRIDGE_NAME", "a-name-that-is-too-long", "1 to 15 bytes"),
    ("IP_SUBNET", "10.2.0.1/16", "10.2.0.0/16"),
    ("IP_SUBNET_MARGIN", "14", "0 to 13"),
    ("ETCD_PREFIX", "a//b", "such as /podwire"),
    ("ETCD_COUNTER_KEY", "a b", "without white space"),
    ("CNI_CONFIG_LOCATION", "net.d/10-blue.conflist", "absolute path of a file"),
    ("CNI_PLUGIN_LOCATION", "bin/blue-cni", "absolute path of a file"),
];

#[test]
fn a1_an_invalid_value_prevents_the_start_with_a_clear_error() {
    let lab = Lab::new("bad").unwrap();
    let node = lab.node("n1").unwrap();
    for (name, invalid, allowed) in INVALID {
        let dir = node.dir().join(name);
        let file = |name: &str| dir.join(name).display().to_string();
        let (config, plugin) = (file("10-blue.conflist"), file("blue-cni"));
        let valid = [
            ("ETCD_HOST", "192.0.2.1"),
            ("CNI_TYPE", "blue-cni"),
            ("IP_SUBNET", "10.2.0.0/16"),
            ("CNI_CONFIG_LOCATION", config.as_str()),
            ("CNI_PLUGIN_LOCATION", plugin.as_str()),
        ];
        let env: Vec<(String, String)> = valid
            .into_iter()
            .filter(|(other, _)| *other != name)
            .chain([(name, invalid)])
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let mut agent = Agent::in_dir(&node, &dir, &[]).unwrap();
        agent.set_env(&env);
        agent.launch().unwrap();
        let error = agent.wait_ready().unwrap_err().to_string();
        for part in ["the agent exited with exit status: ", name, &format!("{invalid:?}"), allowed] {
            assert!(error.contains(part), "{name}={invalid}: {error:?} lacks {part:?}");
        }
        assert!(!dir.join("blue-cni").exists() && !dir.join("lib").exists(), "{name}: files were created");
    }
}

#[test]
fn a1_flags_take_precedence_over_variables_and_variables_over_the_file() {
    let lab = Lab::new("layers").unwrap();
    let node = lab.node("n1").unwrap();
    let program = Agent::new(&node, &[]).unwrap().program().display().to_string();
    let file = node.dir().join("layers.toml").display().to_string();
    let text = "[network]\nsubnets = [\"10.4.0.0/16\"]\nmargin = 4\nbridge = \"of-file\"\n";
    std::fs::write(&file, text).unwrap();
    let argv = ["env", "-i", "IP_SUBNET=10.1.0.0/16", "IP_SUBNET_MARGIN=8", "ETCD_HOST=192.0.2.1", &program];
    let flags = ["agent", "--config", &file, "--network-subnet", "10.3.0.0/16", "--print-config"];
    let output = node.sh(&[&argv[..], &flags[..]].concat()).unwrap();
    for line in ["subnets = [\"10.3.0.0/16\"]", "margin = 8", "bridge = \"of-file\"", "prefix = \"/podwire\""]
    {
        assert!(output.lines().any(|present| present == line), "{line}: {output}");
    }
}

#[test]
fn a2_the_margin_is_extra_prefix_bits() {
    let etcd = Plan { nodes: 2, margin: 8, ..Plan::default() };
    let embedded = Plan { nodes: 1, margin: 5, store: LabStore::Embedded, ..etcd.clone() };
    for (plan, lengths) in [(etcd, [24, 72]), (embedded, [21, 69])] {
        let cluster = Cluster::up("margin", &plan).unwrap();
        let all_blocks = node_blocks(cluster.agent("n1").unwrap());
        assert_eq!(all_blocks.len(), plan.nodes, "{all_blocks:?}");
        for blocks in all_blocks.values() {
            for ((block, subnet), length) in blocks.iter().zip(&plan.pods).zip(lengths) {
                assert_eq!((block.prefix_len(), block.trunc()), (length, *block));
                assert!(subnet.contains(block), "{block} is not of {subnet}");
            }
            assert_eq!(blocks.len(), 2);
        }
        // Addresses of pods are from their node's block.
        let name = cluster.node_names().pop().unwrap();
        let pod = cluster.pod(&name, "a").unwrap();
        assert!(all_blocks[&name].iter().zip(&pod.addresses).all(|(block, address)| block.contains(address)));
    }
}
