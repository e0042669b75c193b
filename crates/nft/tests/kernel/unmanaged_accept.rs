//! The accept rules that Podwire adds to unmanaged chains if that is configured. Packets of pods pass, no other rule is changed,
//! and the rules can be withdrawn.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use ipnet::IpNet;
use nft::{AttachMode, Protocol, accept_in_unmanaged, unmanaged_drops, withdraw_from_unmanaged};
use types::NetworkName;

use crate::common::{Sample, in_netns, run};
use crate::lab::{At, Lab, Server};

const FORWARD: &str = "type filter hook forward priority filter + 10";
/// A connection that takes longer counts as dropped.
const UNREACHABLE_AFTER: Duration = Duration::from_millis(150);
const TIMEOUT: Duration = Duration::from_secs(10);

fn sh(command: &str) -> String {
    run("sh", &["-c", command])
}

fn accept(network: &str, subnets: &[&str]) -> Vec<String> {
    let subnets: Vec<IpNet> = subnets.iter().map(|cidr| cidr.parse().unwrap()).collect();
    accept_in_unmanaged(&NetworkName::try_from(network).unwrap(), &subnets).unwrap()
}

fn accept_blue() -> Vec<String> {
    accept("blue", &["10.77.0.0/16", "fd77::/48"])
}

fn withdraw_blue() -> Vec<String> {
    withdraw_from_unmanaged(&|network| network == "blue").unwrap()
}

/// All tables, without counters and handles.
fn ruleset() -> String {
    run("nft", &["-s", "list", "ruleset"])
}

/// Name and command of firewalls that drop forwarded packets, as they are usual on nodes.
fn dropping_firewalls() -> [(&'static str, String); 4] {
    let nft = |text: String| format!("nft '{text}'");
    [
        ("a policy", nft(format!("table inet strict {{ chain c {{ {FORWARD}; policy drop; ip ttl 1 accept; }}; }}"))),
        (
            "firewalld",
            nft(format!(
                "table inet firewalld {{
                    chain policies {{ iifname eth7 oifname eth8 accept; }}
                    chain filter_FORWARD {{ {FORWARD}; ct state {{ established, related }} accept; jump policies; reject with icmpx admin-prohibited; }}
                }}"
            )),
        ),
        ("docker", "for t in iptables ip6tables; do $t -P FORWARD DROP; $t -N DOCKER-USER; $t -A DOCKER-USER -j RETURN; $t -A FORWARD -j DOCKER-USER; done".to_owned()),
        ("ufw reject", "for t in iptables ip6tables; do $t -N ufw-reject-forward; $t -A ufw-reject-forward -j REJECT; $t -A FORWARD -j ufw-reject-forward; done".to_owned()),
    ]
}

#[test]
fn a9_two_accept_rules_per_subnet_are_added_once_and_withdrawn() {
    for (name, install) in dropping_firewalls() {
        in_netns(|| {
            assert_eq!(accept_blue(), [""; 0], "{name}: no chain drops");
            sh(&install);
            let before = ruleset();
            assert!(!accept_blue().is_empty(), "{name}");
            let after = ruleset();
            assert_eq!(unmanaged_drops(&[]).unwrap(), [], "{name}");
            let added: Vec<&str> = after.lines().filter(|line| line.contains("podwire blue")).collect();
            assert_eq!(added.len(), 4, "{name}: {after}");
            let rest: Vec<&str> = after.lines().filter(|line| !line.contains("podwire blue")).collect();
            assert_eq!(rest.join("\n") + "\n", before, "{name}: only Podwire's rules are new");
            for words in ["saddr 10.77.0.0/16", "daddr 10.77.0.0/16", "saddr fd77::/48", "daddr fd77::/48"] {
                assert!(added.iter().any(|line| line.contains(words)), "{name}: {words} in {added:?}");
            }
            assert_eq!(accept_blue(), [""; 0], "{name}: the rules exist");
            assert_eq!(ruleset(), after, "{name}");
            // Another network is added, then a subnet of the first one changes.
            assert!(!accept("red", &["10.78.0.0/24"]).is_empty(), "{name}");
            assert_eq!(accept_blue(), [""; 0], "{name}: another network changes nothing");
            assert!(!accept("blue", &["10.77.0.0/17", "fd77::/48"]).is_empty(), "{name}");
            assert!(!ruleset().contains("10.77.0.0/16"), "{name}");
            withdraw_blue();
            assert!(ruleset().contains("podwire red") && !ruleset().contains("podwire blue"), "{name}");
            withdraw_from_unmanaged(&|_| true).unwrap();
            assert_eq!(ruleset(), before, "{name}: as before");
            assert_eq!(withdraw_blue(), [""; 0], "{name}");
        });
    }
}

#[test]
fn a9_accept_rules_follow_changes_of_a_dropping_chain() {
    in_netns(|| {
        run("nft", &[&format!("table inet strict {{ chain c {{ {FORWARD}; policy drop; }}; }}")]);
        // A rule of the operator whose comment is not one of Podwire's.
        run("nft", &["add rule inet strict c iifname eth9 accept comment \"podwire\""]);
        assert_eq!(accept_blue().len(), 1);
        run("nft", &["insert rule inet strict c drop"]);
        assert_eq!(accept_blue().len(), 1, "Podwire's rules precede it");
        let listed = ruleset();
        let line_of = |words: &str| listed.lines().position(|line| line.trim().contains(words)).unwrap();
        assert!(
            line_of("podwire blue to fd77::/48") < listed.lines().position(|l| l.trim() == "drop").unwrap(),
            "{listed}"
        );
        run(
            "nft",
            &[
                "flush chain inet strict c; chain inet strict c { policy accept; }; add rule inet strict c ip saddr 10.77.0.0/16 accept comment \"podwire blue from 10.77.0.0/16\"",
            ],
        );
        assert_eq!(accept_blue(), ["removed Podwire's rules from chain inet strict c"]);
        // The chains of a dormant table drop nothing.
        run(
            "nft",
            &[
                "delete table inet strict; table ip t { flags dormant; chain c { type filter hook forward priority 0; policy drop; }; }",
            ],
        );
        assert_eq!(accept_blue(), [""; 0]);
    });
}

#[test]
fn a9_iptables_can_list_its_tables_with_accept_rules() {
    in_netns(|| {
        sh("iptables -P FORWARD DROP; ip6tables -A FORWARD -j DROP");
        assert_eq!(accept("blue", &["10.77.0.0/16", "10.78.12.0/22", "fd77::/48", "fd78::/61"]).len(), 2);
        let rules = sh("iptables -S FORWARD; ip6tables -S FORWARD; iptables-save; ip6tables-save");
        for rule in [
            "-s 10.77.0.0/16 -m comment --comment \"podwire blue from 10.77.0.0/16\" -j ACCEPT",
            "-d 10.78.12.0/22 ",
            "-s fd77::/48 ",
            "-d fd78::/61 ",
        ] {
            assert!(rules.contains(rule), "{rule}: {rules}");
        }
        // The operator replaces all chains, and Podwire's rules are added again.
        sh("iptables-restore <<-'END'
	*filter
	:FORWARD DROP [0:0]
	-A FORWARD -i eth7 -j ACCEPT
	COMMIT
	END");
        assert_eq!(accept("blue", &["10.77.0.0/16", "fd77::/48"]).len(), 2);
        assert!(sh("iptables -S FORWARD").contains("podwire blue to 10.77.0.0/16"));
    });
}

#[test]
fn a9_pods_reach_the_outside_only_with_accept_rules() {
    for mode in [AttachMode::Bridge, AttachMode::Routed] {
        let lab = Lab::new(mode);
        lab.add_pod(&Sample::new(mode, 2).publish(Protocol::Tcp, 8080, 80));
        let serve = |at, address: &str| lab.serve(at, Protocol::Tcp, address);
        let _servers: [Server; 4] = [
            serve(At::Outside, "192.0.2.2:80"),
            serve(At::Outside, "[2001:db8::2]:80"),
            serve(At::Pod(2), "10.77.0.2:80"),
            serve(At::Pod(2), "[fd77::2]:80"),
        ];
        let passes = |from, target: &str, wait| {
            let target: SocketAddr = target.parse().unwrap();
            lab.inside(from, || TcpStream::connect_timeout(&target, wait).is_ok())
        };
        let paths = [
            (At::Pod(2), "192.0.2.2:80"),
            (At::Pod(2), "[2001:db8::2]:80"),
            (At::Outside, "192.0.2.1:8080"),
            (At::Outside, "[2001:db8::1]:8080"),
        ];
        for (name, install) in dropping_firewalls() {
            lab.inside(At::Host, || sh(&install));
            for (from, target) in paths {
                assert!(!passes(from, target, UNREACHABLE_AFTER), "{mode:?}, {name}: {target}");
            }
            lab.inside(At::Host, accept_blue);
            for (from, target) in paths {
                assert!(passes(from, target, TIMEOUT), "{mode:?}, {name}: {target}");
            }
            lab.inside(At::Host, withdraw_blue);
            assert!(!passes(At::Pod(2), "192.0.2.2:80", UNREACHABLE_AFTER), "{mode:?}, {name}");
            lab.inside(At::Host, || sh("for t in 'inet strict' 'inet firewalld' 'ip filter' 'ip6 filter'; do nft delete table $t 2>/dev/null || true; done"));
        }
    }
}
