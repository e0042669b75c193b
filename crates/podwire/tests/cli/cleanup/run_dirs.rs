//! Two run directories on one node: cleanup of one does not affect pods of the other.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::{
    DEADLINE, Ns, Outcome, Pod, Snapshot, ping, tcp_connects, tcp_echo, uninterrupted, wait_until,
};

use crate::common::{Host, has};

const MODES: [&str; 2] = ["bridge", "routed"];
const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
pub(super) const OUT: [&str; 2] = ["192.0.2.2", "2001:db8::2"];

/// A run directory with its own network and two pods.
struct Directory {
    run_dir: PathBuf,
    config: Value,
    pods: Vec<(Pod, Value)>,
}

impl Directory {
    fn new(host: &Host, name: &str, more: &Value) -> Self {
        let run_dir = host.node.dir().join(format!("run-{name}"));
        let mut config = host.standalone();
        config["name"] = json!(name);
        config["runDir"] = json!(run_dir);
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        let pods = (0..2).map(|n| {
            let pod = host.node.pod(&format!("{name}{n}")).unwrap();
            let result = host.plugin.add(&pod, &config).unwrap().ok().unwrap();
            (pod, result)
        });
        let pods = pods.collect();
        Self { run_dir, config, pods }
    }

    fn cleanup(&self, host: &Host) -> Outcome {
        host.run(&["cleanup", "--run-dir", self.run_dir.to_str().unwrap()])
    }
}

fn blue(host: &Host, mode: &str) -> Directory {
    Directory::new(
        host,
        "blue",
        &json!({"mode": mode, "bridge": "pw-blue", "subnet": "10.60.0.0/24,fd00:60::/64"}),
    )
}

fn red(host: &Host, mode: &str) -> Directory {
    Directory::new(
        host,
        "red",
        &json!({"mode": mode, "bridge": "pw-red", "subnet": "10.61.0.0/24,fd00:61::/64"}),
    )
}

fn ips(result: &Value) -> Vec<IpAddr> {
    let all = result["ips"].as_array().unwrap().iter();
    all.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap()).collect()
}

/// An external host, connected to the node, without routes to pods.
pub(super) fn outside(host: &Host) -> Pod {
    let out = host.node.pod("out").unwrap();
    let pair = ["ip", "link", "add", "up0", "type", "veth", "peer", "name", "up0", "netns", out.name()];
    host.node.sh(&pair).unwrap();
    let ends: [(&Ns, _); 2] = [(&host.node, NODE), (&out, OUT)];
    for (end, [v4, v6]) in ends {
        end.sh(&["ip", "addr", "add", &format!("{v4}/24"), "dev", "up0"]).unwrap();
        end.sh(&["ip", "addr", "add", &format!("{v6}/64"), "dev", "up0", "nodad"]).unwrap();
        end.sh(&["ip", "link", "set", "up0", "up"]).unwrap();
    }
    // Wait for link-local addresses and routes, because they are part of the first snapshot.
    for to in OUT {
        wait_until("the external host", DEADLINE, || Ok(ping(&host.node, to.parse()?, 1)?.all())).unwrap();
    }
    wait_until("the link-local address", DEADLINE, || {
        let shown = host.node.sh(&["ip", "-6", "addr", "show", "dev", "up0", "scope", "link"])?;
        Ok(shown.contains("fe80") && !shown.contains("tentative"))
    })
    .unwrap();
    out
}

/// Messages that the second pod receives from a spoofed and from the real address of the first pod.
fn received_messages(directory: &Directory, family: usize) -> Vec<String> {
    let [(from, own), (to, target)] = &directory.pods[..] else { panic!("two pods") };
    let (own, target) = (ips(own)[family], ips(target)[family]);
    let spoofed = match own {
        IpAddr::V4(ip) => IpAddr::from([ip.octets()[0], ip.octets()[1], ip.octets()[2], 200]),
        IpAddr::V6(ip) => {
            let mut parts = ip.segments();
            parts[7] = 0x200;
            IpAddr::from(parts)
        }
    };
    let address = format!("{spoofed}/{}", if spoofed.is_ipv4() { 32 } else { 128 });
    from.sh(&["ip", "addr", "replace", &address, "dev", "eth0", "nodad"]).unwrap();
    let listener = to.enter(|| UdpSocket::bind((target, 0)).unwrap()).unwrap();
    listener.set_read_timeout(Some(DEADLINE)).unwrap();
    for (source, message) in [(spoofed, "spoofed"), (own, "own")] {
        let socket = from.enter(|| UdpSocket::bind((source, 0)).unwrap()).unwrap();
        socket.send_to(message.as_bytes(), listener.local_addr().unwrap()).unwrap();
    }
    let (mut messages, mut buffer) = (Vec::new(), [0; 16]);
    while messages.last().is_none_or(|message| message != "own") {
        let count = uninterrupted(|| listener.recv(&mut buffer)).unwrap();
        messages.push(String::from_utf8_lossy(&buffer[..count]).into_owned());
    }
    from.sh(&["ip", "addr", "del", &address, "dev", "eth0"]).unwrap();
    messages
}

/// The pods reach each other and the external host (masqueraded), and cannot spoof addresses.
fn expect_working(host: &Host, directory: &Directory, out: &Ns, case: &str) {
    let [(a, _), (_, b)] = &directory.pods[..] else { panic!("two pods") };
    for (family, to) in ips(b).into_iter().enumerate() {
        assert!(ping(a, to, 2).unwrap().all(), "{case}: pod to pod {to}");
        let echo = tcp_echo(out, (OUT[family].parse::<IpAddr>().unwrap(), 0).into()).unwrap();
        let source = tcp_connects(a, echo.address(), DEADLINE).unwrap().map(|peer| peer.ip().to_string());
        assert_eq!(source.as_deref(), Some(NODE[family]), "{case}: masquerade");
        assert_eq!(received_messages(directory, family), ["own"], "{case}: spoof check");
    }
    for (pod, result) in &directory.pods {
        let checked = host.plugin.check(pod, &directory.config, result).unwrap();
        assert!(checked.success(), "{case}: {}", checked.stdout);
    }
}

#[test]
fn f7_cleanup_of_a_run_directory_keeps_pods_of_another() {
    for (blue_mode, red_mode) in
        [("bridge", "bridge"), ("routed", "routed"), ("bridge", "routed"), ("routed", "bridge")]
    {
        let case = format!("{blue_mode} beside {red_mode}");
        let host = Host::new("two");
        let out = outside(&host);
        let before = Snapshot::of(&host.node).unwrap();
        // The first network enables forwarding, and the second needs it.
        let (blue, red) = (blue(&host, blue_mode), red(&host, red_mode));
        expect_working(&host, &red, &out, &case);
        let outcome = blue.cleanup(&host);
        assert_eq!(outcome.status.code(), Some(1), "{case}: {}{}", outcome.stdout, outcome.stderr);
        has(
            &outcome.stdout,
            &[
                "2 attachments of blue removed",
                "bridge pw-blue removed",
                "left: nftables tables podwire stay: network red of another run directory uses them",
                "left: network red stays, with 2 links: it belongs to another run directory, and `podwire cleanup --run-dir`",
                "ip_forward stays 1: network red",
            ],
        );
        assert!(!outcome.stdout.contains("bridge pw-red removed"), "{case}: {}", outcome.stdout);
        assert!(!blue.run_dir.exists() && red.run_dir.exists(), "{case}");
        let now: Vec<String> = Snapshot::of(&host.node).unwrap().lines().map(ToOwned::to_owned).collect();
        for word in ["blue", "10.60.0.", "fd00:60:"] {
            assert!(!now.iter().any(|line| line.contains(word)), "{case}: {word} in {now:#?}");
        }
        expect_working(&host, &red, &out, &case);
        // The record that forwarding was off was in the first run directory, so forwarding stays on.
        let outcome = red.cleanup(&host);
        assert!(outcome.success(), "{case}: {}{}", outcome.stdout, outcome.stderr);
        for sysctl in ["net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0"] {
            host.node.sh(&["sysctl", "-qw", sysctl]).unwrap();
        }
        before.wait_for_same(&host.node, DEADLINE).unwrap();
    }
}

/// Shows that the test of the spoof check can fail.
#[test]
fn without_podwires_tables_a_spoofed_packet_arrives() {
    for mode in MODES {
        let host = Host::new("nocheck");
        let red = red(&host, mode);
        let to = ips(&red.pods[1].1);
        host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
        for (family, to) in to.into_iter().enumerate() {
            assert!(ping(&red.pods[0].0, to, 1).unwrap().all(), "{mode}");
            assert_eq!(received_messages(&red, family), ["spoofed", "own"], "{mode}");
        }
    }
}

#[test]
fn f7_a_shared_bridge_keeps_gateways_of_the_other_network() {
    for mode in MODES {
        let host = Host::new("shared");
        let out = outside(&host);
        let of = |name: &str, subnet: &str| {
            Directory::new(&host, name, &json!({"mode": mode, "bridge": "pw-both", "subnet": subnet}))
        };
        let blue = of("blue", "10.60.0.0/24,fd00:60::/64");
        let red = of("red", "10.61.0.0/24,fd00:61::/64");
        let outcome = blue.cleanup(&host);
        has(
            &outcome.stdout,
            &[
                "left: bridge pw-both stays",
                "address 10.60.0.1/24 of bridge pw-both removed",
                "address fd00:60::1/64 of bridge pw-both removed",
            ],
        );
        expect_working(&host, &red, &out, mode);
    }
}

/// The agent's configuration has the network of the lost run directory.
#[test]
fn f7_pods_of_a_lost_run_directory_are_removed() {
    for mode in MODES {
        let host = Host::new("lost");
        let mut agent = host.agent(&["--no-install", "--network-mode", mode]);
        let pod = host.node.pod("a").unwrap();
        host.plugin.add(&pod, &agent.config(&json!({}))).unwrap().ok().unwrap();
        agent.kill().unwrap();
        fs::remove_dir_all(host.node.run_dir()).unwrap();
        let outcome = host.ask(&["cleanup"]);
        assert!(outcome.success(), "{mode}: {}{}", outcome.stdout, outcome.stderr);
        has(&outcome.stdout, &["link pw", "bridge podwire0 removed", "nftables tables podwire removed"]);
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            has(&outcome.stdout, &[&format!("kept: {key} is 1; its value before Podwire is not known\n")]);
        }
        // Forwarding alone is no trace of Podwire.
        assert_eq!(host.ask(&["cleanup"]).stdout, "nothing to remove\n");
    }
}

#[test]
fn f7_cleanup_all_removes_pods_of_other_run_directories() {
    for mode in MODES {
        let host = Host::new("all");
        let before = Snapshot::of(&host.node).unwrap();
        let (blue, _red) = (blue(&host, mode), red(&host, mode));
        let outcome = host.run(&["cleanup", "--all", "--run-dir", blue.run_dir.to_str().unwrap()]);
        assert!(outcome.success(), "{mode}: {}{}", outcome.stdout, outcome.stderr);
        has(
            &outcome.stdout,
            &["bridge pw-red removed", "bridge pw-blue removed", "ip_forward restored to 0"],
        );
        before.wait_for_same(&host.node, DEADLINE).unwrap();
    }
}
