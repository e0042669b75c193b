//! B13: forwarding that other programs need, and agents with another run directory.

use serde_json::json;
use testkit::{Call, Node, Ns, Pod, REFERENCE_DIR, Snapshot, Verb, ping};

use super::run_dirs::{OUT, outside};
use crate::common::{Host, has};

fn reaches(from: &Ns, to: [&str; 2]) -> [bool; 2] {
    to.map(|to| ping(from, to.parse().unwrap(), 1).unwrap().all())
}

fn forwarding(node: &Node) -> [String; 2] {
    ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"]
        .map(|key| node.sh(&["sysctl", "-n", key]).unwrap().trim().to_owned())
}

/// A container on a bridge of the reference plugin, created after Podwire enabled forwarding.
fn reference(host: &Host) -> Pod {
    let leases = host.node.dir().join("leases");
    let ranges = json!([[{"subnet": "10.62.0.0/24"}], [{"subnet": "fd00:62::/64"}]]);
    let config = json!({"cniVersion": "1.0.0", "name": "ref", "type": "bridge", "bridge": "ref0", "ipMasq": true,
        "isDefaultGateway": true, "ipam": {"type": "host-local", "dataDir": leases, "ranges": ranges}});
    let pod = host.node.pod("ref").unwrap();
    let call = Call {
        env: vec![("CNI_PATH".to_owned(), REFERENCE_DIR.to_owned())],
        ..Call::pod(Verb::Add, &pod, &config)
    };
    testkit::reference_plugin("bridge").unwrap().call(&host.node, &call).unwrap().ok().unwrap();
    pod
}

#[test]
fn b13_forwarding_is_kept_for_containers_of_other_programs() {
    let host = Host::new("b13-needed");
    let _out = outside(&host);
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    let container = reference(&host);
    assert_eq!(reaches(&container, OUT), [true, true]);
    let outcome = host.ask(&["cleanup"]);
    assert!(outcome.success(), "{}{}", outcome.stdout, outcome.stderr);
    has(
        &outcome.stdout,
        &[
            "1 attachment of pods removed",
            "kept: /proc/sys/net/ipv4/ip_forward stays 1: ",
            "all/forwarding stays 1: ",
        ],
    );
    assert_eq!(reaches(&container, OUT), [true, true], "{}", outcome.stdout);
    // The output has the commands that disable forwarding.
    let commands: Vec<&str> = outcome.stdout.split('(').filter_map(|text| text.split(')').next()).collect();
    for command in commands.iter().filter(|text| text.starts_with("sysctl -w")) {
        host.node.sh(&command.split(' ').collect::<Vec<_>>()).unwrap();
    }
    assert_eq!(forwarding(&host.node), ["0", "0"]);
}

/// The kernel changes the forwarding of all links together with the global setting.
#[test]
fn b13_forwarding_of_single_links_is_restored() {
    let host = Host::new("b13-link");
    let node = &host.node;
    let keys = ["net.ipv4.conf.lan0.forwarding", "net.ipv6.conf.lan0.forwarding"];
    node.sh(&["ip", "link", "add", "lan0", "type", "veth", "peer", "name", "lan1"]).unwrap();
    for key in keys {
        node.sh(&["sysctl", "-qw", &format!("{key}=1")]).unwrap();
    }
    let before = Snapshot::of(node).unwrap();
    let pod = node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    assert_eq!(forwarding(node), ["1", "1"]);
    let outcome = host.ask(&["cleanup"]);
    assert!(outcome.success(), "{}{}", outcome.stdout, outcome.stderr);
    assert_eq!(forwarding(node), ["0", "0"]);
    for key in keys {
        assert_eq!(node.sh(&["sysctl", "-n", key]).unwrap().trim(), "1", "{}", outcome.stdout);
    }
    before.wait_for_same(node, testkit::DEADLINE).unwrap();
}

#[test]
fn b13_cleanup_with_another_run_directory_is_refused_while_an_agent_runs() {
    for mode in ["routed", "bridge"] {
        let host = Host::new("b13-other");
        let mut agent = host.agent(&["--no-install", "--network-mode", mode]);
        let before = Snapshot::of(&host.node).unwrap();
        let other = host.node.dir().join("other");
        let cleanup =
            |more: &[&str]| host.run(&[&["cleanup", "--run-dir", other.to_str().unwrap()], more].concat());
        for more in [&[][..], &["--all"]] {
            let outcome = cleanup(more);
            assert!(!outcome.success() && outcome.stdout.is_empty(), "{mode}: {}", outcome.stdout);
            let process = format!("process {} in {}", agent.pid().unwrap(), host.node.run_dir().display());
            has(&outcome.stderr, &[&process, "systemctl disable --now podwire"]);
            before.expect_same(&host.node).unwrap();
        }
        agent.stop().unwrap();
        let outcome = cleanup(&[]);
        assert!(outcome.success(), "{mode}: {}{}", outcome.stdout, outcome.stderr);
    }
}
