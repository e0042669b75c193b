//! A7: what a node writes for the container runtime, and when.

use std::collections::BTreeSet;
use std::fs;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use ipnet::IpNet;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use serde_json::{Value, json};
use testkit::{Call, Cluster, Plan, Plugin, Verb, wait_until};

use super::{Eleven, records};
use crate::common::TIMEOUT;

/// Tells what happens in directories, all of it in its order.
struct Witness {
    fd: OwnedFd,
}

impl Witness {
    fn of(directories: &[&Path]) -> Self {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        let all = WatchFlags::CREATE | WatchFlags::MODIFY | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        for directory in directories {
            fs::create_dir_all(directory).unwrap();
            inotify::add_watch(&fd, *directory, all).unwrap();
        }
        Self { fd }
    }

    /// What happened to files of these names since the last time.
    fn told(&self, names: &[&str]) -> Vec<(String, ReadFlags)> {
        let mut buffer = [const { MaybeUninit::uninit() }; 4096];
        let mut reader = inotify::Reader::new(&self.fd, &mut buffer);
        let mut told = Vec::new();
        while let Ok(event) = reader.next() {
            let name = event.file_name().unwrap().to_str().unwrap().to_owned();
            if names.contains(&name.as_str()) {
                told.push((name, event.events()));
            }
        }
        told
    }
}

#[test]
fn a7_plugin_and_config_come_by_rename_in_this_order_and_not_before_the_node_has_a_block() {
    let mut cluster = Cluster::hosts("order", &Plan { nodes: 1, ..Plan::default() }).unwrap();
    let mut host = Eleven::new(&cluster, "n1", &[]);
    let directories = [host.dir.join("net.d"), host.dir.join("bin")];
    let witness = Witness::of(&[&directories[0], &directories[1]]);
    let names = ["blue-cni", "10-blue.conflist"];

    // Nobody answers at etcd's address.
    host.agent.launch().unwrap();
    let config = json!({"name": "blue", "type": "blue-cni"});
    let ask = |host: &Eleven| {
        let call = Call::network(Verb::Status, &host.agent.config(&config));
        Plugin::podwire().unwrap().call(&host.ns, &call).unwrap()
    };
    wait_until("the agent to know why it is not ready", TIMEOUT, || {
        let ready = host.agent.client().get(api::READY, TIMEOUT)?;
        let told = String::from_utf8_lossy(&ready.body);
        // From the first moment on it says whom it asks.
        let names_etcd = told.contains("etcd at http://10.199.0.1:2379");
        assert!(!told.contains("no block yet") || names_etcd, "{told}");
        Ok(ready.status == 503 && told.contains("cannot be reached"))
    })
    .unwrap();
    let refused = ask(&host).error().unwrap();
    let why = ["this node has no block yet", "etcd at http://10.199.0.1:2379 cannot be reached"];
    assert!(refused.code == 50 && why.iter().all(|part| refused.msg.contains(part)), "{refused:?}");
    for directory in &directories {
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0, "{}", directory.display());
    }

    cluster.start_etcd().unwrap();
    host.agent.wait_ready().unwrap();
    host.wait_installed();
    let told = witness.told(&names);
    let renamed = names.map(|name| (name.to_owned(), ReadFlags::MOVED_TO));
    assert_eq!(told, renamed, "the plugin first, both whole at once");
    let modes = [host.plugin_file(), host.config_file()]
        .map(|path| fs::metadata(path).unwrap().permissions().mode() & 0o7777);
    assert_eq!(modes, [0o700, 0o600]);
    let present = |directory: &Path| -> BTreeSet<String> {
        fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    };
    assert_eq!(
        present(&directories[0]),
        BTreeSet::from(["10-blue.conflist".to_owned()]),
        "nothing half-made"
    );
    // Runtimes want one for loopback as well.
    let programs = ["blue-cni", "loopback"].map(str::to_owned);
    assert_eq!(present(&directories[1]), BTreeSet::from(programs), "nothing half-made");

    // A block that is remembered is enough.
    cluster.etcd.members[0].kill().unwrap();
    host.agent.restart().unwrap();
    host.wait_installed();
    assert!(ask(&host).success());
    let pod = cluster.node("n1").unwrap().pod("a").unwrap();
    assert_eq!(host.add(&pod).len(), 2);
}

const TEMPLATE: &str = r#"{
  "cniVersion": "{{ CNI_VERSION }}", "name": "{{ NAME }}",
  "plugins": [{
    "type": "{{ TYPE }}", "agent": "{{ SOCKET }}", "runDir": "{{ RUN_DIR }}",
    "note": {
      "bridge": "{{ BRIDGE }}", "block": "{{ BLOCK }}", "network": "{{NETWORK}}", "gateway": "{{ GATEWAY }}",
      "mtu": {{ MTU }}, "mode": "{{ MODE }}", "masquerade": {{ MASQUERADE }}
    }
  }]
}"#;

/// A list in a text, whatever its order.
fn listed<T: std::str::FromStr + Ord>(note: &Value, key: &str) -> BTreeSet<T> {
    note[key].as_str().unwrap().split(',').map(|item| item.parse().ok().unwrap()).collect()
}

#[test]
fn a7_a_template_gets_this_nodes_values_and_is_rendered_again_when_another_block_is_claimed() {
    let mut cluster = Cluster::hosts("template", &Plan { nodes: 1, ..Plan::default() }).unwrap();
    cluster.start_etcd().unwrap();
    let template = cluster.node("n1").unwrap().dir().join("template.json");
    fs::write(&template, TEMPLATE).unwrap();
    let more = [
        ("PODWIRE_INSTALL_TEMPLATE", template.to_str().unwrap()),
        ("IP_SUBNET", "10.9.0.0/24,fd09::/120"),
        ("IP_SUBNET_MARGIN", "5"),
    ];
    let mut host = Eleven::new(&cluster, "n1", &more);
    host.start();
    host.wait_installed();
    let is_right = || {
        let blocks = records(&cluster, "/hosts")["n1"].blocks.clone();
        let (config, wanted) = (host.config(), blocks.iter().copied().collect::<BTreeSet<IpNet>>());
        let first = |block: &IpNet| block.hosts().find(|ip| *ip != block.network()).unwrap();
        let gateways: BTreeSet<IpAddr> = wanted.iter().map(first).collect();
        let note = &config["note"];
        listed::<IpNet>(note, "block") == wanted && listed::<IpAddr>(note, "gateway") == gateways
    };
    wait_until("a config with this node's block", TIMEOUT, || Ok(is_right())).unwrap();
    let config = host.config();
    let text = |value: &Value, key: &str| value[key].as_str().unwrap().to_owned();
    assert_eq!(["cniVersion", "name", "type"].map(|key| text(&config, key)), ["0.4.0", "blue", "blue-cni"]);
    assert_eq!(text(&config, "agent"), host.agent.socket().to_str().unwrap());
    assert_eq!(text(&config, "runDir"), host.agent.run_dir().to_str().unwrap());
    let note = &config["note"];
    assert_eq!(
        ["bridge", "network", "mode"].map(|key| text(note, key)),
        ["br-blue", "10.9.0.0/24,fd09::/120", "routed"]
    );
    assert_eq!((&note["mtu"], &note["masquerade"]), (&json!(1450), &json!(true)), "with room for a tunnel");
    assert_eq!(listed::<IpNet>(note, "block").len(), 2);

    let node = cluster.node("n1").unwrap();
    // One more than the first blocks hold, also of IPv6, which has no broadcast address.
    for number in 0..7 {
        host.add(&node.pod(&format!("p{number}")).unwrap());
    }
    wait_until("a config with all blocks", TIMEOUT, || {
        Ok(listed::<IpNet>(&host.config()["note"], "block").len() >= 4 && is_right())
    })
    .unwrap();
    let mode = fs::metadata(host.config_file()).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode, 0o600);
}
