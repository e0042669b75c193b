//! Two run directories on one node: cleanup of one leaves the other's pods as they are.

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

/// A run directory with a network of its own and two pods.
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

/// A host outside, wired to the node, without any route to pods.
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
    // Its link-local address and routes come a little later, and belong to the picture before.
    for to in OUT {
        wait_until("the outside", DEADLINE, || Ok(ping(&host.node, to.parse()?, 1)?.all())).unwrap();
    }
    wait_until("the link-local address", DEADLINE, || {
        let shown = host.node.sh(&["ip", "-6", "addr", "show", "dev", "up0", "scope", "link"])?;
        Ok(shown.contains("fe80") && !shown.contains("tentative"))
    })
    .unwrap();
    out
}

/// What the second pod hears of a word that the first says under an address that is not its own, and of an honest one.
fn heard(directory: &Directory, family: usize) -> Vec<String> {
    let [(from, own), (to, target)] = &directory.pods[..] else { panic!("two pods") };
    let (own, target) = (ips(own)[family], ips(target)[family]);
    let foreign = match own {
        IpAddr::V4(ip) => IpAddr::from([ip.octets()[0], ip.octets()[1], ip.octets()[2], 200]),
        IpAddr::V6(ip) => {
            let mut parts = ip.segments();
            parts[7] = 0x200;
            IpAddr::from(parts)
        }
    };
    let given = format!("{foreign}/{}", if foreign.is_ipv4() { 32 } else { 128 });
    from.sh(&["ip", "addr", "replace", &given, "dev", "eth0", "nodad"]).unwrap();
    let listener = to.enter(|| UdpSocket::bind((target, 0)).unwrap()).unwrap();
    listener.set_read_timeout(Some(DEADLINE)).unwrap();
    for (source, word) in [(foreign, "foreign"), (own, "own")] {
        let socket = from.enter(|| UdpSocket::bind((source, 0)).unwrap()).unwrap();
        socket.send_to(word.as_bytes(), listener.local_addr().unwrap()).unwrap();
    }
    let (mut words, mut buffer) = (Vec::new(), [0; 16]);
    while words.last().is_none_or(|word| word != "own") {
        let count = uninterrupted(|| listener.recv(&mut buffer)).unwrap();
        words.push(String::from_utf8_lossy(&buffer[..count]).into_owned());
    }
    from.sh(&["ip", "addr", "del", &given, "dev", "eth0"]).unwrap();
    words
}

/// Its pods reach each other, the outside under the node's address, and are guarded.
fn expect_alive(host: &Host, directory: &Directory, out: &Ns, case: &str) {
    let [(a, _), (_, b)] = &directory.pods[..] else { panic!("two pods") };
    for (family, to) in ips(b).into_iter().enumerate() {
        assert!(ping(a, to, 2).unwrap().all(), "{case}: pod to pod {to}");
        let echo = tcp_echo(out, (OUT[family].parse::<IpAddr>().unwrap(), 0).into()).unwrap();
        let seen = tcp_connects(a, echo.address(), DEADLINE).unwrap().map(|peer| peer.ip().to_string());
        assert_eq!(seen.as_deref(), Some(NODE[family]), "{case}: masquerade");
        assert_eq!(heard(directory, family), ["own"], "{case}: guard");
    }
    for (pod, result) in &directory.pods {
        let checked = host.plugin.check(pod, &directory.config, result).unwrap();
        assert!(checked.success(), "{case}: {}", checked.stdout);
    }
}

#[test]
fn f7_cleanup_of_one_run_directory_leaves_the_pods_of_another() {
    for (blue_mode, red_mode) in
        [("bridge", "bridge"), ("routed", "routed"), ("bridge", "routed"), ("routed", "bridge")]
    {
        let case = format!("{blue_mode} beside {red_mode}");
        let host = Host::new("two");
        let out = outside(&host);
        let before = Snapshot::of(&host.node).unwrap();
        // The first one switches forwarding on, and the second relies on it.
        let (blue, red) = (blue(&host, blue_mode), red(&host, red_mode));
        expect_alive(&host, &red, &out, &case);
        let outcome = blue.cleanup(&host);
        assert_eq!(outcome.status.code(), Some(1), "{case}: {}{}", outcome.stdout, outcome.stderr);
        has(
            &outcome.stdout,
            &[
                "2 attachments of blue removed",
                "bridge pw-blue removed",
                "left: nftables tables podwire stay: network red of another run directory uses them",
                "left: network red stays, with 2 links: it is of another run directory, and `podwire cleanup --run-dir`",
                "ip_forward stays 1: network red",
            ],
        );
        assert!(!outcome.stdout.contains("bridge pw-red removed"), "{case}: {}", outcome.stdout);
        assert!(!blue.run_dir.exists() && red.run_dir.exists(), "{case}");
        let now: Vec<String> = Snapshot::of(&host.node).unwrap().lines().map(ToOwned::to_owned).collect();
        for word in ["blue", "10.60.0.", "fd00:60:"] {
            assert!(!now.iter().any(|line| line.contains(word)), "{case}: {word} in {now:#?}");
        }
        expect_alive(&host, &red, &out, &case);
        // The last one goes with everything but forwarding, which the first had switched on.
        let outcome = red.cleanup(&host);
        assert!(outcome.success(), "{case}: {}{}", outcome.stdout, outcome.stderr);
        for sysctl in ["net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0"] {
            host.node.sh(&["sysctl", "-qw", sysctl]).unwrap();
        }
        before.wait_for_same(&host.node, DEADLINE).unwrap();
    }
}

/// The probe of the guard can fail: without our tables the foreign word is heard.
#[test]
fn without_our_tables_a_foreign_address_is_heard() {
    for mode in MODES {
        let host = Host::new("noguard");
        let red = red(&host, mode);
        let to = ips(&red.pods[1].1);
        host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
        for (family, to) in to.into_iter().enumerate() {
            assert!(ping(&red.pods[0].0, to, 1).unwrap().all(), "{mode}");
            assert_eq!(heard(&red, family), ["foreign", "own"], "{mode}");
        }
    }
}

#[test]
fn f7_a_bridge_that_both_directories_use_stays_with_the_others_gateways() {
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
        expect_alive(&host, &red, &out, mode);
    }
}

/// The network of the directory is then known from the agent's configuration.
#[test]
fn f7_pods_of_a_directory_that_was_lost_go_too() {
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
        // Forwarding alone shows nothing of Podwire.
        assert_eq!(host.ask(&["cleanup"]).stdout, "nothing of Podwire is here\n");
    }
}

#[test]
fn f7_cleanup_of_all_takes_the_pods_of_other_directories_too() {
    for mode in MODES {
        let host = Host::new("all");
        let before = Snapshot::of(&host.node).unwrap();
        let (blue, _red) = (blue(&host, mode), red(&host, mode));
        let outcome = host.run(&["cleanup", "--all", "--run-dir", blue.run_dir.to_str().unwrap()]);
        assert!(outcome.success(), "{mode}: {}{}", outcome.stdout, outcome.stderr);
        has(&outcome.stdout, &["bridge pw-red removed", "bridge pw-blue removed", "ip_forward back to 0"]);
        before.wait_for_same(&host.node, DEADLINE).unwrap();
    }
}
