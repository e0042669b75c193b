//! Forward chains of other programs that drop pod traffic are reported with a fix.

use std::time::Duration;

use serde_json::Value;
use testkit::{DEADLINE, Ns, tcp_connects, tcp_echo, wait_until};

use crate::scene::{OUT, Scene, TIMEOUT, in_both_modes};

const FORWARD: &str = "type filter hook forward priority filter + 10";
/// How long a connection attempt may take that must fail.
const REFUSED_TIMEOUT: Duration = Duration::from_millis(200);

fn conditions(scene: &Scene) -> Vec<Value> {
    scene.host.agent.get("/v1/status").unwrap()["conditions"].as_array().unwrap().clone()
}

fn sh(ns: &Ns, line: &str) {
    ns.sh(&["sh", "-c", line]).unwrap();
}

/// Firewalls that drop pod traffic, with the commands that create and remove them.
fn dropping_firewalls() -> [(&'static str, String, &'static str); 3] {
    let firewalld = format!(
        "table inet firewalld {{
            chain filter_FORWARD {{ {FORWARD}; policy accept;
                ct state {{ established, related }} accept
                iifname lo accept
                jump filter_FORWARD_POLICIES
                reject with icmpx admin-prohibited
            }}
            chain filter_FORWARD_POLICIES {{ iifname eth7 oifname eth8 accept; }}
        }}"
    );
    [
        (
            "policy drop",
            format!("nft 'table inet strict {{ chain c {{ {FORWARD}; policy drop; }}; }}'"),
            "nft delete table inet strict",
        ),
        ("firewalld", format!("nft '{firewalld}'"), "nft delete table inet firewalld"),
        (
            "docker, ufw",
            "iptables -P FORWARD DROP && ip6tables -P FORWARD DROP".to_owned(),
            "iptables -P FORWARD ACCEPT && ip6tables -P FORWARD ACCEPT",
        ),
    ]
}

#[test]
fn pain15_a_dropping_unmanaged_chain_is_reported_with_a_working_fix() {
    in_both_modes(|mode| {
        let scene = Scene::new("unmanaged", mode);
        let servers = OUT
            .map(|out| tcp_echo(&scene.out, (out.parse::<std::net::IpAddr>().unwrap(), 0).into()).unwrap());
        let passes =
            |within| servers.iter().all(|s| tcp_connects(&scene.a.0, s.address(), within).unwrap().is_some());
        for (name, stop, remove) in dropping_firewalls() {
            let case = format!("{mode}, {name}");
            assert!(passes(DEADLINE), "{case}: before");
            assert_eq!(conditions(&scene), Vec::<Value>::new(), "{case}: before");
            for remedy in [Remedy::Fix, Remedy::Removal] {
                sh(scene.node(), &stop);
                assert!(!passes(REFUSED_TIMEOUT), "{case}: traffic must be dropped");
                wait_until("the condition", TIMEOUT, || Ok(!conditions(&scene).is_empty())).unwrap();
                let reported = conditions(&scene);
                match remedy {
                    Remedy::Fix => {
                        reported
                            .iter()
                            .for_each(|condition| sh(scene.node(), condition["fix"].as_str().unwrap()));
                    }
                    Remedy::Removal => sh(scene.node(), remove),
                }
                let ended =
                    wait_until("the end of the condition", TIMEOUT, || Ok(conditions(&scene).is_empty()));
                assert!(ended.is_ok(), "{case}: {:?}", conditions(&scene));
                assert!(passes(DEADLINE), "{case}: after {reported:?}");
                if remedy == Remedy::Fix {
                    clear(scene.node());
                }
            }
            clear(scene.node());
        }
        let log = scene.host.agent.log().unwrap();
        let lines =
            log.lines().filter(|line| line.contains("WARN") && line.contains("drops the traffic of pods"));
        assert!(lines.clone().count() >= 3, "{log}");
        assert!(
            lines.clone().all(|line| line.contains("code=PodTrafficDropped") && line.contains("fix=nft")),
            "{log}"
        );
    });
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Remedy {
    Fix,
    Removal,
}

/// Removes all unmanaged tables.
fn clear(node: &Ns) {
    let tables = "'inet strict' 'inet firewalld' 'ip filter' 'ip6 filter'";
    sh(node, &format!("for t in {tables}; do nft delete table $t 2>/dev/null || true; done"));
}

/// With `network.accept_forward`, the agent adds accept rules to these chains, also after a reload. It removes them when the
/// setting is disabled.
#[test]
fn a9_accept_forward_adds_rules_to_unmanaged_chains() {
    in_both_modes(|mode| {
        let mut scene = Scene::new("accept", mode);
        let setting = |value: &str| [("PODWIRE_NETWORK_ACCEPT_FORWARD".to_owned(), value.to_owned())];
        scene.host.agent.set_env(&setting("true"));
        scene.host.agent.restart().unwrap();
        let servers = OUT
            .map(|out| tcp_echo(&scene.out, (out.parse::<std::net::IpAddr>().unwrap(), 0).into()).unwrap());
        let accept_rules = |scene: &Scene| {
            let rules = scene.node().sh(&["nft", "-s", "list", "ruleset"]).unwrap();
            rules.lines().filter(|line| line.contains("podwire podwire")).count()
        };
        for (name, stop, remove) in dropping_firewalls() {
            let case = format!("{mode}, {name}");
            // Twice, because the operator may reload the firewall.
            for _ in 0..2 {
                sh(scene.node(), &stop);
                let added = wait_until("the accept rules", TIMEOUT, || Ok(accept_rules(&scene) == 4));
                assert!(added.is_ok(), "{case}: {}", accept_rules(&scene));
                for server in &servers {
                    let to = server.address();
                    assert!(tcp_connects(&scene.a.0, to, DEADLINE).unwrap().is_some(), "{case}: {to}");
                }
                wait_until("no condition", TIMEOUT, || Ok(conditions(&scene).is_empty())).unwrap();
                sh(scene.node(), remove);
                clear(scene.node());
            }
        }
        sh(scene.node(), &dropping_firewalls()[0].1);
        wait_until("the accept rules", TIMEOUT, || Ok(accept_rules(&scene) == 4)).unwrap();
        scene.host.agent.set_env(&setting("false"));
        scene.host.agent.restart().unwrap();
        wait_until("the removal of the accept rules", TIMEOUT, || Ok(accept_rules(&scene) == 0)).unwrap();
        wait_until("the condition", TIMEOUT, || Ok(!conditions(&scene).is_empty())).unwrap();
    });
}
