//! Somebody else's forward chain that drops what pods send: told with a command, which helps.

use std::time::Duration;

use serde_json::Value;
use testkit::{DEADLINE, Ns, tcp_connects, tcp_echo, wait_until};

use crate::scene::{OUT, SOON, Scene, in_both_modes};

const FORWARD: &str = "type filter hook forward priority filter + 10";
const NEVER: Duration = Duration::from_millis(200);

fn problems(scene: &Scene) -> Vec<Value> {
    scene.host.agent.get("/v1/status").unwrap()["conditions"].as_array().unwrap().clone()
}

fn sh(ns: &Ns, line: &str) {
    ns.sh(&["sh", "-c", line]).unwrap();
}

/// What stops pods, and what ends it.
fn obstacles() -> [(&'static str, String, &'static str); 3] {
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
fn pain15_a_foreign_chain_that_drops_is_told_with_a_command_that_helps() {
    in_both_modes(|mode| {
        let scene = Scene::new("foreign", mode);
        let servers = OUT
            .map(|out| tcp_echo(&scene.out, (out.parse::<std::net::IpAddr>().unwrap(), 0).into()).unwrap());
        let passes =
            |within| servers.iter().all(|s| tcp_connects(&scene.a.0, s.address(), within).unwrap().is_some());
        for (name, stop, remove) in obstacles() {
            let case = format!("{mode}, {name}");
            assert!(passes(DEADLINE), "{case}: before");
            assert_eq!(problems(&scene), Vec::<Value>::new(), "{case}: before");
            for cure in [Cure::Command, Cure::Removal] {
                sh(scene.node(), &stop);
                assert!(!passes(NEVER), "{case}: in spite of it");
                wait_until("the problem to be told", SOON, || Ok(!problems(&scene).is_empty())).unwrap();
                let told = problems(&scene);
                match cure {
                    Cure::Command => {
                        told.iter().for_each(|problem| sh(scene.node(), problem["fix"].as_str().unwrap()));
                    }
                    Cure::Removal => sh(scene.node(), remove),
                }
                let gone = wait_until("the problem to be gone", SOON, || Ok(problems(&scene).is_empty()));
                assert!(gone.is_ok(), "{case}: {:?}", problems(&scene));
                assert!(passes(DEADLINE), "{case}: after {told:?}");
                if cure == Cure::Command {
                    clear(scene.node());
                }
            }
            clear(scene.node());
        }
        let log = scene.host.agent.log().unwrap();
        let told =
            log.lines().filter(|line| line.contains("WARN") && line.contains("drops the traffic of pods"));
        assert!(told.clone().count() >= 3, "{log}");
        assert!(
            told.clone().all(|line| line.contains("code=PodTrafficDropped") && line.contains("fix=nft")),
            "{log}"
        );
    });
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cure {
    Command,
    Removal,
}

/// All tables of others.
fn clear(node: &Ns) {
    let tables = "'inet strict' 'inet firewalld' 'ip filter' 'ip6 filter'";
    sh(node, &format!("for t in {tables}; do nft delete table $t 2>/dev/null || true; done"));
}

/// With `network.accept_forward` nobody has to do anything: pods pass, also after a reload, and when the setting is taken
/// back, what was put in goes.
#[test]
fn a9_where_it_is_asked_for_pods_are_accepted_in_others_chains_and_stay_so() {
    in_both_modes(|mode| {
        let mut scene = Scene::new("accept", mode);
        let setting = |value: &str| [("PODWIRE_NETWORK_ACCEPT_FORWARD".to_owned(), value.to_owned())];
        scene.host.agent.set_env(&setting("true"));
        scene.host.agent.restart().unwrap();
        let servers = OUT
            .map(|out| tcp_echo(&scene.out, (out.parse::<std::net::IpAddr>().unwrap(), 0).into()).unwrap());
        let ours = |scene: &Scene| {
            let rules = scene.node().sh(&["nft", "-s", "list", "ruleset"]).unwrap();
            rules.lines().filter(|line| line.contains("podwire podwire")).count()
        };
        for (name, stop, remove) in obstacles() {
            let case = format!("{mode}, {name}");
            // Twice: somebody reloads their firewall.
            for _ in 0..2 {
                sh(scene.node(), &stop);
                let put = wait_until("our rules", SOON, || Ok(ours(&scene) == 4));
                assert!(put.is_ok(), "{case}: {}", ours(&scene));
                for server in &servers {
                    let to = server.address();
                    assert!(tcp_connects(&scene.a.0, to, DEADLINE).unwrap().is_some(), "{case}: {to}");
                }
                wait_until("no problem", SOON, || Ok(problems(&scene).is_empty())).unwrap();
                sh(scene.node(), remove);
                clear(scene.node());
            }
        }
        sh(scene.node(), &obstacles()[0].1);
        wait_until("our rules", SOON, || Ok(ours(&scene) == 4)).unwrap();
        scene.host.agent.set_env(&setting("false"));
        scene.host.agent.restart().unwrap();
        wait_until("our rules to be gone", SOON, || Ok(ours(&scene) == 0)).unwrap();
        wait_until("the problem to be told", SOON, || Ok(!problems(&scene).is_empty())).unwrap();
    });
}
