//! Unmanaged chains that drop packets of pods are detected, and the suggested command fixes them.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nft::{AttachMode, Certainty, Protocol, UnmanagedDrop, unmanaged_drops};
use types::IfName;

use crate::common::{Sample, in_netns, run};
use crate::lab::{At, Lab, Server};

fn drops() -> Vec<UnmanagedDrop> {
    let bridge = IfName::try_from("br0").unwrap();
    unmanaged_drops(&[&bridge]).unwrap()
}

/// Family, table, chain and reason of each.
fn described(drops: &[UnmanagedDrop]) -> Vec<String> {
    drops.iter().map(|d| format!("{} {} {}: {}", d.family, d.table, d.chain, d.why)).collect()
}

fn sh(command: &str) {
    run("sh", &["-c", command]);
}

const FORWARD: &str = "type filter hook forward priority filter + 10";

/// The forward chain of firewalld.
fn firewalld() -> String {
    format!(
        "table inet firewalld {{
            chain filter_FORWARD {{ {FORWARD}; policy accept;
                ct state {{ established, related }} accept
                ct status dnat accept
                iifname lo accept
                ct state invalid drop
                jump filter_FORWARD_POLICIES
                reject with icmpx admin-prohibited
            }}
            chain filter_FORWARD_POLICIES {{ iifname eth7 oifname eth8 accept; }}
        }}"
    )
}

#[test]
fn pain15_only_chains_that_drop_are_reported() {
    let chain = |rest: &str| format!("table inet t {{ chain c {{ {FORWARD}; {rest} }}; }}");
    let policy = "inet t c: its policy is drop";
    for (text, want) in [
        (chain(""), None),
        (chain("policy drop;"), Some(policy)),
        (chain("policy drop; iifname eth7 accept;"), Some(policy)),
        (chain("policy drop; ct state established accept; accept;"), None),
        (chain("policy drop; iifname \"pw*\" accept comment \"for podwire\";"), None),
        (chain("policy drop; iifname \"pw*\" drop comment \"against podwire\";"), Some(policy)),
        (chain("drop;"), Some("inet t c: chain c ends in a rule that drops all")),
        (chain("counter log prefix \"x\" drop;"), Some("inet t c: chain c ends in a rule that drops all")),
        (chain("iifname eth7 drop;"), None),
        (chain("limit rate 5/second drop;"), None),
        (chain("policy drop;").replace("inet t", "ip6 t"), Some("ip6 t c: its policy is drop")),
        (chain("policy drop;").replace("inet t", "bridge t").replace("filter + 10", "0"), None),
        (chain("policy drop;").replace("forward", "input"), None),
        (chain("policy drop;").replace("table inet t {", "table inet t { flags dormant;"), None),
        (
            "table ip t { chain d { counter reject; }; chain b { jump d; }; chain c { type filter hook forward priority 0; ip ttl 1 accept; jump b; }; }".to_owned(),
            Some("ip t c: chain d ends in a rule that rejects all"),
        ),
        (
            "table ip t { chain d { ip ttl 1 drop; return; drop; }; chain c { type filter hook forward priority 0; jump d; }; }".to_owned(),
            None,
        ),
        // A firewalld zone that contains the links of pods.
        (
            firewalld()
                .replace("iifname eth7 oifname eth8 accept", "iifname \"pw*\" jump trusted")
                .replace("chain filter_FORWARD {", "chain trusted { accept; }; chain filter_FORWARD {"),
            None,
        ),
        (firewalld(), Some("inet firewalld filter_FORWARD: chain filter_FORWARD ends in a rule that rejects all")),
    ] {
        in_netns(|| {
            Sample::new(AttachMode::Bridge, 2).add_pod();
            run("nft", &[&text]);
            assert_eq!(described(&drops()), want.into_iter().collect::<Vec<_>>(), "{text}");
        });
    }
}

/// With the expected certainty of each ruleset.
#[test]
fn a9_a_drop_is_certain_only_if_no_rule_may_accept_pods() {
    let chain = |rest: &str| {
        format!(
            "nft 'table inet t {{ chain d {{ {rest} }}; chain c {{ {FORWARD}; policy drop; jump d; }}; }}'"
        )
    };
    let docker = "iptables -P FORWARD DROP; iptables -N DOCKER-USER; iptables -N DOCKER; iptables -N DOCKER-ISOLATION-STAGE-1
        iptables -A FORWARD -j DOCKER-USER; iptables -A FORWARD -j DOCKER-ISOLATION-STAGE-1
        iptables -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
        iptables -A FORWARD -o docker0 -j DOCKER; iptables -A FORWARD -i docker0 ! -o docker0 -j ACCEPT
        iptables -A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
        iptables -A DOCKER-ISOLATION-STAGE-1 -i docker0 -j RETURN; iptables -A DOCKER-ISOLATION-STAGE-1 -j RETURN
        iptables -A DOCKER-USER -j RETURN";
    let ufw = "iptables -P FORWARD DROP; for c in before user after logging; do iptables -N ufw-$c-forward; iptables -A FORWARD -j ufw-$c-forward; done
        iptables -A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
        iptables -A ufw-before-forward -p icmp --icmp-type echo-request -j ACCEPT
        iptables -A ufw-logging-forward -m limit --limit 3/min -j LOG --log-prefix '[UFW BLOCK] '
        iptables -A ufw-logging-forward -m conntrack --ctstate INVALID -m limit --limit 3/min -j RETURN";
    for (install, is_certain) in [
        (chain(""), true),
        (
            chain("ip ttl 1 drop; counter log; iifname eth7 accept; ct state established,related accept;"),
            true,
        ),
        (chain("meta l4proto udp accept; meta mark set 7; ip ttl 1 return; ct state invalid drop;"), true),
        (chain("ip saddr 10.0.0.0/8 accept;"), false),
        (chain("iifname br0 accept;"), false),
        (chain("iifname br* accept;").replace("br*", "\"br*\""), false),
        (chain("iifname pwvx4pod2 accept;"), false),
        (chain("oifname eth0 accept;"), false),
        (chain("oifname eth7 accept;"), true),
        (chain("ct state vmap { established : accept, new : accept };"), false),
        (chain("ct state new accept;"), false),
        (chain("ip ttl 1 return; drop;"), false),
        (docker.to_owned(), true),
        (docker.replace("DOCKER-USER -j RETURN", "DOCKER-USER -s 10.88.0.0/16 -j ACCEPT"), false),
        (ufw.to_owned(), true),
        (format!("{ufw}; iptables -A ufw-user-forward -i lan0 -j ACCEPT"), true),
        (format!("{ufw}; iptables -A ufw-user-forward -d 10.0.0.0/8 -j ACCEPT"), false),
    ] {
        in_netns(|| {
            sh(
                "ip link add eth0 type veth peer name peer0 && ip link set eth0 up && ip link set peer0 up && ip addr add 192.0.2.1/24 dev eth0 && ip route add default via 192.0.2.2",
            );
            sh(&install);
            let found = drops();
            assert_eq!(found.len(), 1, "{install}: {found:?}");
            assert_eq!(found[0].certainty == Certainty::Certain, is_certain, "{install}");
        });
    }
}

#[test]
fn pain15_dropping_iptables_chains_are_reported() {
    in_netns(|| {
        sh("iptables -P FORWARD DROP && ip6tables -A FORWARD -j REJECT");
        let found = described(&drops());
        assert_eq!(
            found,
            [
                "ip filter FORWARD: its policy is drop",
                "ip6 filter FORWARD: chain FORWARD ends in a rule that rejects all"
            ]
        );
        sh("iptables -I FORWARD -i pw+ -m comment --comment 'for podwire' -j ACCEPT");
        assert_eq!(drops().len(), 1);
        for drop in drops() {
            sh(&drop.command);
        }
        assert_eq!(described(&drops()), [""; 0]);
        // iptables can still list its table.
        let rules = run("ip6tables", &["-S", "FORWARD"]);
        for rule in ["-i pw+", "-o pw+", "-i br0", "-o br0"] {
            assert!(rules.lines().any(|l| l.contains(rule) && l.ends_with("-j ACCEPT")), "{rules}");
        }
    });
}

/// Only the program that created such a table can change it. Newer versions of firewalld create theirs with an owner.
#[test]
fn pain15_the_fix_for_a_table_with_owner_uses_firewall_cmd() {
    in_netns(|| {
        let mut owner =
            Command::new("nft").arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let text = format!(
            "add table inet firewalld {{ flags owner; }}; add chain inet firewalld f {{ {FORWARD}; policy drop; }}\n"
        );
        let mut input = owner.stdin.take().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        let deadline = Instant::now() + TIMEOUT;
        let mut found = drops();
        while found.is_empty() && Instant::now() < deadline {
            std::thread::yield_now();
            found = drops();
        }
        drop(input);
        owner.wait().unwrap();
        assert_eq!(
            found.iter().map(|d| &*d.command).collect::<Vec<_>>(),
            [
                "firewall-cmd --permanent --zone=trusted --add-interface=pw+ --add-interface=br0 && firewall-cmd --reload"
            ]
        );
        assert!(
            found[0].why.ends_with("only the program that created the table can change it"),
            "{}",
            found[0].why
        );
    });
}

/// A connection that takes longer counts as dropped.
const UNREACHABLE_AFTER: Duration = Duration::from_millis(150);
/// Only a failing test waits this long.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Whether a TCP connection is established. The server process need not accept it.
fn connects(lab: &Lab, from: At, target: &str, wait: Duration) -> bool {
    let target: SocketAddr = target.parse().unwrap();
    lab.inside(from, || TcpStream::connect_timeout(&target, wait).is_ok())
}

#[test]
fn pain15_the_suggested_command_makes_pods_reachable() {
    let policy = format!("table inet strict {{ chain c {{ {FORWARD}; policy drop; }}; }}");
    let nft = |text: String| format!("nft '{text}'");
    let firewalls = [
        nft(policy),
        nft(firewalld().replace("ct status dnat accept", "")),
        "iptables -P FORWARD DROP && ip6tables -P FORWARD DROP".to_owned(),
    ];
    for mode in [AttachMode::Bridge, AttachMode::Routed] {
        let lab = Lab::new(mode);
        lab.add_pod(&Sample::new(mode, 2).publish(Protocol::Tcp, 8080, 80));
        lab.add_pod(&Sample::new(mode, 3));
        let serve = |at, address: &str| lab.serve(at, Protocol::Tcp, address);
        let _servers: [Server; 4] = [
            serve(At::Outside, "192.0.2.2:80"),
            serve(At::Outside, "[2001:db8::2]:80"),
            serve(At::Pod(2), "10.77.0.2:80"),
            serve(At::Pod(2), "[fd77::2]:80"),
        ];
        let paths = [
            (At::Pod(2), "192.0.2.2:80"),
            (At::Pod(2), "[2001:db8::2]:80"),
            (At::Outside, "192.0.2.1:8080"),
            (At::Outside, "[2001:db8::1]:8080"),
            (At::Pod(3), "10.77.0.2:80"),
            (At::Pod(3), "[fd77::2]:80"),
        ];
        // Packets between ports of a bridge pass the forward hook of inet tables only with br_netfilter.
        for family in ["iptables", "ip6tables"] {
            lab.sysctl(At::Host, &format!("bridge/bridge-nf-call-{family}"), "1");
        }
        for install in &firewalls {
            lab.inside(At::Host, || sh(install));
            for (from, target) in paths {
                assert!(
                    !connects(&lab, from, target, UNREACHABLE_AFTER),
                    "{mode:?}: {target} with {install}"
                );
            }
            lab.inside(At::Host, || {
                let found = drops();
                assert!(!found.is_empty(), "{install}");
                for drop in &found {
                    sh(&drop.command);
                }
                assert_eq!(described(&drops()), [""; 0]);
            });
            if mode == AttachMode::Bridge {
                // The kernel retries a failed neighbour resolution only after a second.
                for n in [2, 3] {
                    lab.ip(At::Pod(n), "neigh flush dev eth0");
                }
            }
            for (from, target) in paths {
                assert!(
                    connects(&lab, from, target, TIMEOUT),
                    "{mode:?}: {target} after the fix for {install}"
                );
            }
            lab.inside(At::Host, || sh("for t in 'inet strict' 'inet firewalld' 'ip filter' 'ip6 filter'; do nft delete table $t 2>/dev/null || true; done"));
        }
    }
}
