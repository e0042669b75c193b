//! `podwire doctor`: a healthy node has no problems, problems are found, and their fixes work.

mod probes;

use std::path::Path;

use serde_json::{Value, json};
use testkit::{Cluster, DEADLINE, Outcome, Plan, Snapshot, wait_until};

use crate::common::{Host, has};

fn doctor(host: &Host, more: &[&str]) -> Outcome {
    let state = host.state_dir();
    host.ask(&[&["doctor", "--state-dir", state.to_str().unwrap()], more].concat())
}

/// All problems: check, message and fix.
fn problems(host: &Host) -> Vec<(String, String, String)> {
    let outcome = doctor(host, &["-o", "json"]);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", outcome.stdout, outcome.stderr);
    });
    let findings = report["checks"].as_array().unwrap();
    let found = findings.iter().filter(|finding| finding["verdict"] == "problem");
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let found: Vec<_> = found.map(|f| (text(f, "check"), text(f, "message"), text(f, "fix"))).collect();
    assert_eq!(outcome.status.code(), Some(i32::from(!found.is_empty())), "{found:?}");
    found
}

fn sh(host: &Host, line: &str) {
    host.node.sh(&["sh", "-c", line]).unwrap();
}

/// A node with pods and no agent.
fn standalone(label: &str, mode: &str) -> (Host, Value) {
    let host = Host::new(label);
    let mut config = host.standalone();
    config["mode"] = json!(mode);
    for name in ["a", "b"] {
        let pod = host.node.pod(name).unwrap();
        host.plugin.add(&pod, &config).unwrap().ok().unwrap();
    }
    (host, config)
}

#[test]
fn a9_a_healthy_node_has_no_problems_and_is_not_changed() {
    for mode in ["routed", "bridge"] {
        let host = Host::new("well");
        let agent = host.agent(&["--no-install", "--network-mode", mode]);
        let pod = host.node.pod("a").unwrap();
        host.plugin.add(&pod, &agent.config(&json!({}))).unwrap().ok().unwrap();
        let before = Snapshot::of(&host.node).unwrap();
        let outcome = doctor(&host, &[]);
        assert!(outcome.success(), "{mode}: {}{}", outcome.stdout, outcome.stderr);
        has(
            &outcome.stdout,
            &[
                "privileges",
                "veth",
                "vxlan",
                "nftables",
                "conntrack",
                "IPv6 forwarding is on",
                "is ready",
                "no problems",
            ],
        );
        assert!(!outcome.stdout.contains("PROBLEM"), "{mode}: {}", outcome.stdout);
        // Conditions come last, because those that another check has found are not repeated.
        let last = outcome.stdout.lines().rfind(|line| line.contains(" ok ")).unwrap();
        assert!(last.starts_with("conditions "), "{mode}: {}", outcome.stdout);
        assert_eq!(problems(&host), [], "{mode}");
        before.expect_same(&host.node).unwrap();
    }
}

/// Mode, command that creates a problem, check that finds it, and part of the fix.
const FAULTS: [(&str, &str, &str, &str); 7] = [
    ("routed", "sysctl -w net.ipv4.ip_forward=0", "forwarding", "sysctl -w net.ipv4.ip_forward=1"),
    (
        "routed",
        "sysctl -w net.ipv6.conf.all.forwarding=0",
        "forwarding",
        "sysctl -w net.ipv6.conf.all.forwarding=1",
    ),
    (
        "routed",
        "nft 'table inet strict { chain c { type filter hook forward priority 0; policy drop; }; }'",
        "other firewalls",
        "insert rule inet strict c",
    ),
    ("bridge", "iptables -P FORWARD DROP", "other firewalls", "insert rule ip filter FORWARD"),
    (
        "bridge",
        "sysctl -w net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=0",
        "br_netfilter",
        "sysctl -w net.bridge.bridge-nf-call-ip6tables=1",
    ),
    (
        "routed",
        "ip link add pwvx4 mtu 1500 type vxlan id 7 local 127.0.0.1 dstport 4789 && ip link set pwvx4 alias 'podwire tunnel pods' && sysctl -w net.ipv4.conf.pwvx4.rp_filter=1",
        "reverse paths",
        "sysctl -w net/ipv4/conf/pwvx4/rp_filter=2",
    ),
    (
        "bridge",
        "ip link add up0 type veth peer name peer0 && ip link set up0 up && ip link set peer0 up && ip addr add 192.0.2.1/24 dev up0 && ip route add default via 192.0.2.2 && ip link add pwvx4 mtu 1500 type vxlan id 7 local 192.0.2.1 dstport 4789 && ip link set pwvx4 up alias 'podwire tunnel pods' && ip route add 10.83.9.0/24 dev pwvx4 proto 113",
        "MTU",
        "ip link set dev pwvx4 mtu 1450",
    ),
];

#[test]
fn a9_each_problem_is_found_and_its_fix_works() {
    for (mode, act, check, command) in FAULTS {
        let (host, _) = standalone("faults", mode);
        assert_eq!(problems(&host), [], "{mode}: before {act}");
        sh(&host, act);
        let found = problems(&host);
        let [(found_by, message, fix)] = found.as_slice() else { panic!("{act}: {found:?}") };
        assert!(found_by == check && fix.contains(command), "{act}: {message}: {fix}");
        let page = doctor(&host, &[]);
        has(&page.stdout, &["PROBLEM", "1 problem"]);
        // The complete line, as an operator pastes it.
        sh(&host, page.stdout.lines().find(|line| line.trim() == fix.as_str()).unwrap());
        let after = problems(&host);
        if check == "MTU" {
            // The tunnel fits its link now, but the pods' MTU is still too large.
            has(&after[0].1, &["pods send up to 1500 bytes", "pwvx4 carries 1450", "network.mtu"]);
        } else {
            assert_eq!(after, [], "{act}: after {fix}");
        }
    }
}

#[test]
fn pain15_drift_of_tables_is_found_and_the_fix_repairs_it() {
    let (host, _) = standalone("tables", "bridge");
    let path = host.tool.parent().unwrap().display();
    for act in
        ["flush chain inet podwire hostports", "flush set inet podwire pods4", "delete table bridge podwire"]
    {
        sh(&host, &format!("nft {act}"));
        let found = problems(&host);
        let [(check, message, fix)] = found.as_slice() else { panic!("{act}: {found:?}") };
        assert_eq!(check, "podwire tables", "{act}: {message}");
        // Existing rules stay in place during the repair.
        assert!(fix.starts_with("podwire doctor --repair"), "{act}: {fix}");
        sh(&host, &format!("PATH={path}:$PATH; {fix} >/dev/null || test $? = 1"));
        assert_eq!(problems(&host), [], "{act}");
    }
    let _agent = Host::agent(&host, &["--no-install"]);
    let refused = doctor(&host, &["--repair"]);
    assert_eq!(refused.status.code(), Some(1));
    has(&refused.stderr, &["an agent runs on this node"]);
}

#[test]
fn a_killed_agent_is_reported() {
    let host = Host::new("noagent");
    let mut agent = host.agent(&["--no-install"]);
    assert_eq!(problems(&host), []);
    agent.kill().unwrap();
    assert_eq!(problems(&host).iter().map(|f| f.2.as_str()).collect::<Vec<_>>(), ["systemctl start podwire"]);
    agent.launch().unwrap();
    agent.wait_ready().unwrap();
    assert_eq!(problems(&host), []);
}

#[test]
fn peers_are_unknown_while_the_store_is_unreachable() {
    let host = Host::new("noetcd");
    let mut agent = host.idle_agent(&["--no-install", "--store", "etcd", "--etcd-endpoints", "127.0.0.1:1"]);
    agent.launch().unwrap();
    wait_until("an answer", DEADLINE, || Ok(agent.client().get(api::HEALTH, DEADLINE).is_ok())).unwrap();
    let found = problems(&host);
    let peers: Vec<_> = found.iter().filter(|(check, ..)| check == "peers").collect();
    assert!(peers.is_empty(), "{found:?}");
    has(&doctor(&host, &[]).stdout, &["the peers are unknown: ", "1 check unknown"]);
}

/// Verdicts and messages of the check `peers` on n1. `prefix` is a command that runs doctor.
fn peer_checks(cluster: &Cluster, prefix: &[&str]) -> Vec<(String, String)> {
    let (agent, node) = (cluster.agent("n1").unwrap(), cluster.node("n1").unwrap());
    let run_dir = agent.run_dir().to_str().unwrap();
    let words =
        [prefix, &[env!("CARGO_BIN_EXE_podwire"), "doctor", "-o", "json", "--run-dir", run_dir]].concat();
    let outcome = node.run(&words, b"").unwrap();
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", outcome.stdout, outcome.stderr);
    });
    let findings = report["checks"].as_array().unwrap();
    let has_problem = findings.iter().any(|finding| finding["verdict"] == "problem");
    assert_eq!(outcome.status.code(), Some(i32::from(has_problem)), "{findings:?}");
    let peers = findings.iter().filter(|finding| finding["check"] == "peers");
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    peers.map(|finding| (text(finding, "verdict"), text(finding, "message"))).collect()
}

#[test]
fn peers_are_reachable_unreachable_or_unknown() {
    let plan = Plan { nodes: 2, subnets: 1, ..Plan::default() };
    let mut cluster = Cluster::hosts("doctors", &plan).unwrap();
    cluster.start_etcd().unwrap();
    for name in cluster.node_names() {
        cluster.agent_mut(&name).unwrap().set_program(Path::new(env!("CARGO_BIN_EXE_podwire")));
    }
    cluster.start_agents().unwrap();
    let message = "2 addresses reachable, the 2 that pods use also with packets of full size; 2 paths to pod networks reachable";
    let expected = ("ok".to_owned(), message.to_owned());
    wait_until("n2 to be alive and reachable", DEADLINE, || {
        Ok(peer_checks(&cluster, &[]) == [expected.clone()])
    })
    .unwrap();

    // As in a container that has no CAP_NET_RAW.
    let found = peer_checks(&cluster, &["setpriv", "--bounding-set", "-net_raw"]);
    let [(verdict, message)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(verdict, "unknown", "{message}");
    has(message, &["4 targets cannot be pinged from this process", "not permitted"]);

    for address in cluster.addresses("n2").unwrap() {
        cluster.node("n1").unwrap().sh(&["ip", "route", "add", "unreachable", &address.to_string()]).unwrap();
        let found = peer_checks(&cluster, &[]);
        let message = format!("there is no route to node n2 at {address}");
        let reported =
            found.iter().filter(|(verdict, text)| verdict == "problem" && text.starts_with(&message));
        assert_eq!(reported.count(), 1, "{found:?}");
    }
}

#[test]
fn a3_the_fix_raises_the_limit_of_namespaces() {
    let host = Host::new("limit");
    let doctor = format!("{} doctor --run-dir {}", host.tool.display(), host.node.run_dir().display());
    // The limit is that of the new user namespace. It already has one network namespace, so no other can be created.
    let script = format!(
        "echo 1 > /proc/sys/user/max_net_namespaces\n\
         fix=$({doctor} | grep 'sysctl -w user') && sh -c \"$fix\" && {doctor} | grep veth"
    );
    let words = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", &script];
    let outcome = host.node.run(&words, b"").unwrap();
    has(&outcome.stdout, &["user.max_net_namespaces = 2048", "veth pairs can be created"]);
}

#[test]
fn missing_capabilities_are_reported() {
    let host = Host::new("weak");
    let (run_dir, tool) = (host.node.run_dir(), host.tool.clone());
    for (without, message) in [
        ("-net_admin", "CAP_NET_ADMIN is missing"),
        ("-net_admin,-sys_admin", "CAP_NET_ADMIN and CAP_SYS_ADMIN are missing"),
    ] {
        let words = ["setpriv", "--bounding-set", without, tool.to_str().unwrap(), "doctor", "--run-dir"];
        let outcome = host.node.run(&[&words[..], &[run_dir.to_str().unwrap()]].concat(), b"").unwrap();
        assert_eq!(outcome.status.code(), Some(4), "{}{}", outcome.stdout, outcome.stderr);
        has(&outcome.stdout, &[message, "outside of a container"]);
        assert!(!outcome.stdout.contains("sudo"), "{}", outcome.stdout);
        assert!(!outcome.stdout.contains("nftables"), "{}", outcome.stdout);
    }
}

#[test]
fn a8_orphaned_elements_are_found_and_the_fix_removes_them() {
    for mode in ["routed", "bridge"] {
        let (host, _) = standalone("orphans", mode);
        assert_eq!(problems(&host), [], "{mode}");
        // Elements of a pod that no longer exists.
        for element in [
            "hostport4_any { tcp . 9999 : 10.50.0.77 . 80 }",
            "hostport6_any { udp . 9999 : fd00:50::77 . 80 }",
            "pods4 { 10.50.0.77 }",
        ] {
            sh(&host, &format!("nft 'add element inet podwire {element}'"));
        }
        let found = problems(&host);
        assert_eq!(found.len(), 1, "{mode}: {found:?}");
        let (check, message, fix) = &found[0];
        assert_eq!(check, "podwire tables", "{mode}");
        has(message, &["tcp . 9999", "udp . 9999", "10.50.0.77", "fd00:50::77"]);
        sh(&host, fix);
        assert_eq!(problems(&host), [], "{mode}");
    }
}

/// Neither before nor after the first pod.
#[test]
fn b16_a_new_standalone_node_needs_no_agent() {
    let host = Host::new("fresh");
    let agent_problems = |host: &Host| {
        let found = problems(host);
        found.into_iter().filter(|(check, ..)| check == "agent").collect::<Vec<_>>()
    };
    let found = agent_problems(&host);
    assert_eq!(found.len(), 1, "nothing is installed, so an agent is expected");
    has(&found[0].1, &["Podwire is not installed on this machine", "`podwire lab up`"]);
    assert_eq!(found[0].2, "");
    assert!(host.install(&["--standalone"]).success());
    assert_eq!(agent_problems(&host), [], "installed, without a pod");
    has(&doctor(&host, &[]).stdout, &["not needed: the pods of this node are standalone"]);
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    assert_eq!(agent_problems(&host), [], "with a pod");

    // A config of an operator that names an agent.
    let list =
        json!({ "cniVersion": "1.0.0", "name": "x", "plugins": [{ "type": "podwire-cni", "agent": true }] });
    std::fs::write(host.runtime().conf.join("20-x.conflist"), list.to_string()).unwrap();
    let found = agent_problems(&host);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].2, "systemctl start podwire");
}

#[test]
fn b10_a_subnet_overlap_with_another_program_is_reported() {
    for (mode, with_agent) in [("bridge", false), ("routed", false), ("bridge", true), ("routed", true)] {
        let label = format!("overlap-{mode}-{with_agent}");
        let (host, subnet) = if with_agent {
            (Host::new(&label), "10.83.7.0/24")
        } else {
            (standalone(&label, mode).0, "10.50.0.128/25")
        };
        let _agent = with_agent.then(|| {
            let agent = host.agent(&["--no-install", "--network-mode", mode, "--reconcile-seconds", "1"]);
            let pod = host.node.pod("a").unwrap();
            host.plugin.add(&pod, &agent.config(&json!({}))).unwrap().ok().unwrap();
            agent
        });
        assert_eq!(problems(&host), [], "{label}");
        sh(
            &host,
            &format!("ip link add other type bridge; ip link set other up; ip route add {subnet} dev other"),
        );
        let found = problems(&host);
        let (check, message, fix) = &found[0];
        assert_eq!((found.len(), check.as_str()), (1, "pod subnets"), "{label}: {found:?}");
        assert!(message.contains(subnet) && message.contains("link other"), "{label}: {message}");
        has(&doctor(&host, &[]).stdout, &["SubnetOverlap"]);
        assert_eq!(fix, "", "{label}: no fix, because Podwire must not remove routes of other programs");
        sh(&host, &format!("ip route del {subnet} dev other"));
        // The condition of the agent ends with its next reconcile.
        wait_until("the condition to end", DEADLINE, || Ok(problems(&host).is_empty())).unwrap();
    }
}
