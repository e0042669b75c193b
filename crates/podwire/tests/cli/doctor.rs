//! `podwire doctor`: a node that is well is told so; what is wrong is found, and the command that is given puts it right.

mod probes;

use std::path::Path;

use serde_json::{Value, json};
use testkit::{Cluster, DEADLINE, Outcome, Plan, Snapshot, wait_until};

use crate::common::{Host, has};

fn doctor(host: &Host, more: &[&str]) -> Outcome {
    let state = host.state_dir();
    host.ask(&[&["doctor", "--state-dir", state.to_str().unwrap()], more].concat())
}

/// What is wrong: check, sentence and command.
fn wrong(host: &Host) -> Vec<(String, String, String)> {
    let outcome = doctor(host, &["-o", "json"]);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", outcome.stdout, outcome.stderr);
    });
    let findings = report["checks"].as_array().unwrap();
    let bad = findings.iter().filter(|finding| finding["verdict"] == "problem");
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let bad: Vec<_> = bad.map(|f| (text(f, "check"), text(f, "message"), text(f, "fix"))).collect();
    assert_eq!(outcome.status.code(), Some(i32::from(!bad.is_empty())), "{bad:?}");
    bad
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
fn a9_a_healthy_node_is_all_ok_and_nothing_is_changed() {
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
                "IPv6 is forwarded",
                "is ready",
                "no problems",
            ],
        );
        assert!(!outcome.stdout.contains("PROBLEM"), "{mode}: {}", outcome.stdout);
        // Those that a check finds are not repeated as conditions: the conditions come after all checks.
        let last = outcome.stdout.lines().rfind(|line| line.contains(" ok ")).unwrap();
        assert!(last.starts_with("conditions "), "{mode}: {}", outcome.stdout);
        assert_eq!(wrong(&host), [], "{mode}");
        before.expect_same(&host.node).unwrap();
    }
}

/// Each makes one problem: which check finds it, and what must be in the sentence or the command.
const MISCHIEF: [(&str, &str, &str, &str); 7] = [
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
fn a9_each_problem_is_found_and_its_command_puts_it_right() {
    for (mode, act, check, command) in MISCHIEF {
        let (host, _) = standalone("ill", mode);
        assert_eq!(wrong(&host), [], "{mode}: before {act}");
        sh(&host, act);
        let found = wrong(&host);
        let [(found_by, what, helps)] = found.as_slice() else { panic!("{act}: {found:?}") };
        assert!(found_by == check && helps.contains(command), "{act}: {what}: {helps}");
        let page = doctor(&host, &[]);
        has(&page.stdout, &["PROBLEM", "1 problem"]);
        // The whole line, as it is pasted.
        sh(&host, page.stdout.lines().find(|line| line.trim() == helps.as_str()).unwrap());
        let after = wrong(&host);
        if check == "MTU" {
            // Now the tunnel fits its link, and the pods must be told.
            has(&after[0].1, &["pods send up to 1500 bytes", "pwvx4 carries 1450", "network.mtu"]);
        } else {
            assert_eq!(after, [], "{act}: after {helps}");
        }
    }
}

#[test]
fn pain15_damaged_tables_are_found_and_the_command_repairs_them() {
    let (host, _) = standalone("tables", "bridge");
    let path = host.tool.parent().unwrap().display();
    for act in
        ["flush chain inet podwire hostports", "flush set inet podwire pods4", "delete table bridge podwire"]
    {
        sh(&host, &format!("nft {act}"));
        let found = wrong(&host);
        let [(check, what, helps)] = found.as_slice() else { panic!("{act}: {found:?}") };
        assert_eq!(check, "podwire tables", "{act}: {what}");
        // Pods keep what is left of the tables while the command repairs them.
        assert!(helps.starts_with("podwire doctor --repair"), "{act}: {helps}");
        sh(&host, &format!("PATH={path}:$PATH; {helps} >/dev/null || test $? = 1"));
        assert_eq!(wrong(&host), [], "{act}");
    }
    let _agent = Host::agent(&host, &["--no-install"]);
    let refused = doctor(&host, &["--repair"]);
    assert_eq!(refused.status.code(), Some(1));
    has(&refused.stderr, &["an agent works on this node"]);
}

#[test]
fn an_agent_that_is_gone_or_not_ready_is_missed() {
    let host = Host::new("noagent");
    let mut agent = host.agent(&["--no-install"]);
    assert_eq!(wrong(&host), []);
    agent.kill().unwrap();
    assert_eq!(wrong(&host).iter().map(|f| f.2.as_str()).collect::<Vec<_>>(), ["systemctl start podwire"]);
    agent.launch().unwrap();
    agent.wait_ready().unwrap();
    assert_eq!(wrong(&host), []);
}

#[test]
fn a_store_that_is_away_is_not_a_node_without_others() {
    let host = Host::new("noetcd");
    let mut agent = host.idle_agent(&["--no-install", "--store", "etcd", "--etcd-endpoints", "127.0.0.1:1"]);
    agent.launch().unwrap();
    wait_until("an answer", DEADLINE, || Ok(agent.client().get(api::HEALTH, DEADLINE).is_ok())).unwrap();
    let found = wrong(&host);
    let others: Vec<_> = found.iter().filter(|(check, ..)| check == "peers").collect();
    assert!(others.is_empty(), "{found:?}");
    has(&doctor(&host, &[]).stdout, &["the other nodes are not known: ", "1 check unknown"]);
}

/// What doctor says on n1 of the other nodes: verdict and sentence. `how` runs it.
fn of_others(cluster: &Cluster, how: &[&str]) -> Vec<(String, String)> {
    let (agent, node) = (cluster.agent("n1").unwrap(), cluster.node("n1").unwrap());
    let run_dir = agent.run_dir().to_str().unwrap();
    let words =
        [how, &[env!("CARGO_BIN_EXE_podwire"), "doctor", "-o", "json", "--run-dir", run_dir]].concat();
    let outcome = node.run(&words, b"").unwrap();
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", outcome.stdout, outcome.stderr);
    });
    let findings = report["checks"].as_array().unwrap();
    let is_ill = findings.iter().any(|finding| finding["verdict"] == "problem");
    assert_eq!(outcome.status.code(), Some(i32::from(is_ill)), "{findings:?}");
    let others = findings.iter().filter(|finding| finding["check"] == "peers");
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    others.map(|finding| (text(finding, "verdict"), text(finding, "message"))).collect()
}

#[test]
fn other_nodes_are_reached_or_not_or_cannot_be_asked() {
    let plan = Plan { nodes: 2, subnets: 1, ..Plan::default() };
    let mut cluster = Cluster::hosts("doctors", &plan).unwrap();
    cluster.start_etcd().unwrap();
    for name in cluster.node_names() {
        cluster.agent_mut(&name).unwrap().set_program(Path::new(env!("CARGO_BIN_EXE_podwire")));
    }
    cluster.start_agents().unwrap();
    let what =
        "2 addresses reached, 2 by packets as large as those of pods; 2 paths to pod networks answered";
    let well = ("ok".to_owned(), what.to_owned());
    wait_until("n2 to be alive and reached", DEADLINE, || Ok(of_others(&cluster, &[]) == [well.clone()]))
        .unwrap();

    // As in a container that has no CAP_NET_RAW.
    let found = of_others(&cluster, &["setpriv", "--bounding-set", "-net_raw"]);
    let [(verdict, what)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(verdict, "unknown", "{what}");
    has(what, &["4 targets cannot be pinged from here", "not permitted"]);

    for address in cluster.addresses("n2").unwrap() {
        cluster.node("n1").unwrap().sh(&["ip", "route", "add", "unreachable", &address.to_string()]).unwrap();
        let found = of_others(&cluster, &[]);
        let sentence = format!("there is no route to node n2 at {address}");
        let told = found.iter().filter(|(verdict, what)| verdict == "problem" && what.starts_with(&sentence));
        assert_eq!(told.count(), 1, "{found:?}");
    }
}

#[test]
fn a3_the_limit_of_namespaces_is_raised_by_the_command_that_is_shown() {
    let host = Host::new("limit");
    let doctor = format!("{} doctor --run-dir {}", host.tool.display(), host.node.run_dir().display());
    // The limit of a user namespace, which has this one network namespace.
    let script = format!(
        "echo 1 > /proc/sys/user/max_net_namespaces\n\
         fix=$({doctor} | grep 'sysctl -w user') && sh -c \"$fix\" && {doctor} | grep veth"
    );
    let words = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", &script];
    let outcome = host.node.run(&words, b"").unwrap();
    has(&outcome.stdout, &["user.max_net_namespaces = 2048", "pods can be wired"]);
}

#[test]
fn who_may_not_look_is_told_so() {
    let host = Host::new("weak");
    let (run_dir, tool) = (host.node.run_dir(), host.tool.clone());
    for (without, told) in [
        ("-net_admin", "CAP_NET_ADMIN is missing"),
        ("-net_admin,-sys_admin", "CAP_NET_ADMIN and CAP_SYS_ADMIN are missing"),
    ] {
        let words = ["setpriv", "--bounding-set", without, tool.to_str().unwrap(), "doctor", "--run-dir"];
        let outcome = host.node.run(&[&words[..], &[run_dir.to_str().unwrap()]].concat(), b"").unwrap();
        assert_eq!(outcome.status.code(), Some(4), "{}{}", outcome.stdout, outcome.stderr);
        has(&outcome.stdout, &[told, "outside of a container"]);
        assert!(!outcome.stdout.contains("sudo"), "{}", outcome.stdout);
        assert!(!outcome.stdout.contains("nftables"), "{}", outcome.stdout);
    }
}

#[test]
fn a8_orphaned_elements_are_found_and_the_command_removes_them() {
    for mode in ["routed", "bridge"] {
        let (host, _) = standalone("orphans", mode);
        assert_eq!(wrong(&host), [], "{mode}");
        // As they stay where a pod went and its elements did not.
        for element in [
            "hostport4_any { tcp . 9999 : 10.50.0.77 . 80 }",
            "hostport6_any { udp . 9999 : fd00:50::77 . 80 }",
            "pods4 { 10.50.0.77 }",
        ] {
            sh(&host, &format!("nft 'add element inet podwire {element}'"));
        }
        let found = wrong(&host);
        assert_eq!(found.len(), 1, "{mode}: {found:?}");
        let (check, what, command) = &found[0];
        assert_eq!(check, "podwire tables", "{mode}");
        has(what, &["tcp . 9999", "udp . 9999", "10.50.0.77", "fd00:50::77"]);
        sh(&host, command);
        assert_eq!(wrong(&host), [], "{mode}");
    }
}

/// B16: nothing on the node needs an agent before the first pod, and after it.
#[test]
fn b16_a_fresh_standalone_node_needs_no_agent() {
    let host = Host::new("fresh");
    let of_agent = |host: &Host| {
        let wrong = wrong(host);
        wrong.into_iter().filter(|(check, ..)| check == "agent").collect::<Vec<_>>()
    };
    assert_eq!(of_agent(&host).len(), 1, "nothing is installed: status reports the same");
    assert!(host.install(&["--standalone"]).success());
    assert_eq!(of_agent(&host), [], "installed, without a pod");
    has(&doctor(&host, &[]).stdout, &["nothing on this node needs one"]);
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    assert_eq!(of_agent(&host), [], "with a pod");

    // A config that leads to an agent, as an operator writes it.
    let list =
        json!({ "cniVersion": "1.0.0", "name": "x", "plugins": [{ "type": "podwire-cni", "agent": true }] });
    std::fs::write(host.runtime().conf.join("20-x.conflist"), list.to_string()).unwrap();
    let found = of_agent(&host);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].2, "systemctl start podwire");
}

#[test]
fn b10_a_subnet_that_another_program_uses_is_found_and_nothing_of_it_is_removed() {
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
        assert_eq!(wrong(&host), [], "{label}");
        sh(
            &host,
            &format!("ip link add other type bridge; ip link set other up; ip route add {subnet} dev other"),
        );
        let found = wrong(&host);
        let (check, message, fix) = &found[0];
        assert_eq!((found.len(), check.as_str()), (1, "pod subnets"), "{label}: {found:?}");
        assert!(message.contains(subnet) && message.contains("link other"), "{label}: {message}");
        has(&doctor(&host, &[]).stdout, &["SubnetOverlap"]);
        assert_eq!(fix, "", "{label}: the other side is not Podwire's to remove");
        sh(&host, &format!("ip route del {subnet} dev other"));
        // The agent's own report ends with its next round.
        wait_until("the condition to end", DEADLINE, || Ok(wrong(&host).is_empty())).unwrap();
    }
}
