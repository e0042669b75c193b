//! A7: the files that a node installs for the container runtime.

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

use super::{EnvAgent, records};
use crate::common::TIMEOUT;

/// Records the events in directories, in order.
struct FileEvents {
    fd: OwnedFd,
}

impl FileEvents {
    fn watch(directories: &[&Path]) -> Self {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        let all = WatchFlags::CREATE | WatchFlags::MODIFY | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        for directory in directories {
            fs::create_dir_all(directory).unwrap();
            inotify::add_watch(&fd, *directory, all).unwrap();
        }
        Self { fd }
    }

    /// The events of files with these names since the last call.
    fn read(&self, names: &[&str]) -> Vec<(String, ReadFlags)> {
        let mut buffer = [const { MaybeUninit::uninit() }; 4096];
        let mut reader = inotify::Reader::new(&self.fd, &mut buffer);
        let mut events = Vec::new();
        while let Ok(event) = reader.next() {
            let name = event.file_name().unwrap().to_str().unwrap().to_owned();
            if names.contains(&name.as_str()) {
                events.push((name, event.events()));
            }
        }
        events
    }
}

#[test]
fn a7_plugin_then_config_are_renamed_after_the_node_has_a_block() {
    let mut cluster = Cluster::hosts("order", &Plan { nodes: 1, ..Plan::default() }).unwrap();
    let mut host = EnvAgent::new(&cluster, "n1", &[]);
    let directories = [host.dir.join("net.d"), host.dir.join("bin")];
    let file_events = FileEvents::watch(&[&directories[0], &directories[1]]);
    let names = ["blue-cni", "10-blue.conflist"];

    // etcd is not started yet.
    host.agent.launch().unwrap();
    let config = json!({"name": "blue", "type": "blue-cni"});
    let status = |host: &EnvAgent| {
        let call = Call::network(Verb::Status, &host.agent.config(&config));
        Plugin::podwire().unwrap().call(&host.ns, &call).unwrap()
    };
    wait_until("the agent to report why it is not ready", TIMEOUT, || {
        let ready = host.agent.client().get(api::READY, TIMEOUT)?;
        let body = String::from_utf8_lossy(&ready.body);
        // The reason names etcd from the start.
        let names_etcd = body.contains("etcd at http://10.199.0.1:2379");
        assert!(!body.contains("no block yet") || names_etcd, "{body}");
        Ok(ready.status == 503 && body.contains("cannot be reached"))
    })
    .unwrap();
    let refused = status(&host).error().unwrap();
    let reasons = ["this node has no block yet", "etcd at http://10.199.0.1:2379 cannot be reached"];
    assert!(refused.code == 50 && reasons.iter().all(|part| refused.msg.contains(part)), "{refused:?}");
    for directory in &directories {
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0, "{}", directory.display());
    }

    cluster.start_etcd().unwrap();
    host.agent.wait_ready().unwrap();
    host.wait_installed();
    let events = file_events.read(&names);
    let renamed = names.map(|name| (name.to_owned(), ReadFlags::MOVED_TO));
    assert_eq!(events, renamed, "the plugin must be renamed first, then the config");
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
        "a temporary file remained"
    );
    // Runtimes also need the loopback plugin.
    let programs = ["blue-cni", "loopback"].map(str::to_owned);
    assert_eq!(present(&directories[1]), BTreeSet::from(programs), "a temporary file remained");

    // A saved block is sufficient without etcd.
    cluster.etcd.members[0].kill().unwrap();
    host.agent.restart().unwrap();
    host.wait_installed();
    assert!(status(&host).success());
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

/// The items of a comma-separated list, in any order.
fn listed<T: std::str::FromStr + Ord>(note: &Value, key: &str) -> BTreeSet<T> {
    note[key].as_str().unwrap().split(',').map(|item| item.parse().ok().unwrap()).collect()
}

#[test]
fn a7_a_template_is_rendered_again_when_another_block_is_claimed() {
    let mut cluster = Cluster::hosts("template", &Plan { nodes: 1, ..Plan::default() }).unwrap();
    cluster.start_etcd().unwrap();
    let template = cluster.node("n1").unwrap().dir().join("template.json");
    fs::write(&template, TEMPLATE).unwrap();
    let more = [
        ("PODWIRE_INSTALL_TEMPLATE", template.to_str().unwrap()),
        ("IP_SUBNET", "10.9.0.0/24,fd09::/120"),
        ("IP_SUBNET_MARGIN", "5"),
    ];
    let mut host = EnvAgent::new(&cluster, "n1", &more);
    host.start();
    host.wait_installed();
    let is_right = || {
        let blocks = records(&cluster, "/hosts")["n1"].blocks.clone();
        let (config, expected) = (host.config(), blocks.iter().copied().collect::<BTreeSet<IpNet>>());
        let first = |block: &IpNet| block.hosts().find(|ip| *ip != block.network()).unwrap();
        let gateways: BTreeSet<IpAddr> = expected.iter().map(first).collect();
        let note = &config["note"];
        listed::<IpNet>(note, "block") == expected && listed::<IpAddr>(note, "gateway") == gateways
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
    assert_eq!(
        (&note["mtu"], &note["masquerade"]),
        (&json!(1450), &json!(true)),
        "the MTU must leave space for the tunnel header"
    );
    assert_eq!(listed::<IpNet>(note, "block").len(), 2);

    let node = cluster.node("n1").unwrap();
    // One pod more than the first blocks have addresses, also of IPv6, which has no broadcast address.
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
