//! Faults that only probes can find: `podwire doctor` probes the paths to other nodes.

use super::*;
use testkit::TransportMode;

/// Two nodes with one pod each. The agents run the tested tool.
fn cluster(label: &str, plan: Plan) -> Cluster {
    let mut cluster = Cluster::hosts(label, &Plan { nodes: 2, ..plan }).unwrap();
    for name in cluster.node_names() {
        cluster.agent_mut(&name).unwrap().set_program(Path::new(env!("CARGO_BIN_EXE_podwire")));
    }
    cluster.start_etcd().unwrap();
    cluster.start_agents().unwrap();
    cluster.pods_everywhere(1).unwrap();
    cluster
}

fn wait_for_ok(cluster: &Cluster) {
    wait_until("all paths to be reachable", DEADLINE, || {
        Ok(matches!(peer_checks(cluster, &[]).as_slice(), [(verdict, _)] if verdict == "ok"))
    })
    .unwrap();
}

/// Transport, rule of another program on n1, and parts of the message.
const DROPS: [(TransportMode, &str, &[&str]); 3] = [
    (
        TransportMode::Vxlan,
        "hook input priority 0; udp dport 4789 drop",
        &["node n2 is reachable, but its pod network is not", "VXLAN tunnel", "UDP port 4789"],
    ),
    (
        TransportMode::Direct,
        "hook input priority 0; ip saddr 10.42.0.0/16 drop; ip6 saddr fd42::/64 drop",
        &["node n2 is reachable, but its pod network is not", "direct route on eth0", "pod subnets"],
    ),
    (
        TransportMode::Direct,
        "hook forward priority 0; ip daddr 10.42.0.0/16 drop; ip6 daddr fd42::/64 drop",
        &["reachable from this node, but not from its pods", "forward chains"],
    ),
];

#[test]
fn probes_find_a_firewall_between_pod_networks() {
    for (transport, rule, words) in DROPS {
        let cluster = cluster("probe", Plan { transport, ..Plan::default() });
        wait_for_ok(&cluster);
        let n1 = cluster.node("n1").unwrap();
        n1.sh(&["nft", &format!("table inet other {{ chain c {{ type filter {rule}; }}; }}")]).unwrap();
        let found = peer_checks(&cluster, &[]);
        assert_eq!(found.len(), 2, "{rule}: {found:?}");
        for (verdict, message) in &found {
            assert_eq!(verdict, "problem", "{message}");
            has(message, words);
        }
        n1.sh(&["nft", "delete table inet other"]).unwrap();
        wait_for_ok(&cluster);
    }
}

#[test]
fn a_lost_node_address_is_reported_without_wrong_fixes() {
    let plan = Plan { transport: TransportMode::Vxlan, ..Plan::default() };
    let cluster = cluster("lostaddr", plan);
    wait_for_ok(&cluster);
    let (n1, agent) = (cluster.node("n1").unwrap(), cluster.agent("n1").unwrap());
    let address = cluster.addresses("n1").unwrap().into_iter().find(std::net::IpAddr::is_ipv4).unwrap();
    let routes = n1.run(&["ip", "-4", "route", "show", "default"], b"").unwrap().stdout;
    let route = routes.lines().next().unwrap();
    n1.sh(&[
        "sh",
        "-c",
        &format!("ip -4 address del $(ip -4 -o address show to {address} | awk '{{print $4}}') dev eth0"),
    ])
    .unwrap();
    let conditions = || agent.get("/v1/status").unwrap()["conditions"].as_array().unwrap().clone();
    let found = |code: &str| conditions().into_iter().find(|one| one["code"] == code);
    for code in ["NodeAddressMissing", "StoreUnreachable"] {
        wait_until(code, DEADLINE, || Ok(found(code).is_some())).unwrap();
    }
    assert_eq!(found("NodeAddressMissing").unwrap()["object"], json!(format!("address {address}")));
    let lost = found("StoreUnreachable").unwrap();
    assert_eq!(lost["fix"], "ip address show", "{lost}");
    let run_dir = agent.run_dir().to_str().unwrap();
    let page = n1.run(&[env!("CARGO_BIN_EXE_podwire"), "doctor", "--run-dir", run_dir], b"").unwrap().stdout;
    has(&page, &["NodeAddressMissing"]);
    assert!(!page.contains("MtuTooLarge") && !page.contains("start etcd"), "{page}");

    // F12: the tunnel over IPv6 remains after the address is added again. It has no routes, so it does not limit the MTU.
    wait_until("the tunnel over IPv6", DEADLINE, || {
        Ok(n1.run(&["ip", "link", "show", "pwvx6"], b"")?.success())
    })
    .unwrap();
    n1.sh(&["sh", "-c", &format!("ip address add {address}/24 dev eth0 && ip route add {route}")]).unwrap();
    wait_for_ok(&cluster);
    wait_until("the conditions to end", DEADLINE, || Ok(conditions().is_empty())).unwrap();
    n1.sh(&["ip", "link", "show", "pwvx6"]).unwrap();
    has(&podwire(&cluster, &["doctor"]).stdout, &["pods send up to 1450 bytes; link pwvx4 carries 1450"]);
}

/// F3: the path MTU is smaller than the MTU of the links. The advice of the condition solves it.
#[test]
fn f3_a_narrow_path_is_found_and_the_advice_works() {
    let plan = Plan { transport: TransportMode::Vxlan, subnets: 2, ..Plan::default() };
    let mut cluster = cluster("narrow", plan);
    wait_for_ok(&cluster);
    let rule =
        "table inet narrow { chain c { type filter hook forward priority 0; meta length > 1390 drop; }; }";
    cluster.underlay().sh(&["nft", rule]).unwrap();
    let found = peer_checks(&cluster, &[]);
    let [(verdict, message)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(verdict, "problem", "{message}");
    has(message, &["node n2 at ", "pods send up to 1450 bytes, 1500 in the tunnel", "the path carries 1390"]);
    has(message, &["pods may send 1340 at most"]);
    let page = podwire(&cluster, &["doctor"]).stdout;
    has(&page, &["PathMtuTooSmall", "advice: set `network.mtu` on all nodes"]);

    let pods: Vec<(String, String)> =
        cluster.pods().iter().map(|pod| (pod.node.clone(), pod.name.clone())).collect();
    for name in cluster.node_names() {
        let agent = cluster.agent_mut(&name).unwrap();
        agent.set_env(&[("PODWIRE_NETWORK_MTU".to_owned(), "1340".to_owned())]);
        agent.restart().unwrap();
        agent.wait_ready().unwrap();
    }
    for (node, pod) in pods {
        cluster.remove_pod(&pod).unwrap();
        cluster.pod(&node, &pod).unwrap();
    }
    wait_for_ok(&cluster);
    assert!(!podwire(&cluster, &["doctor"]).stdout.contains("Mtu"));
}

/// F3: every second request to each target is dropped.
#[test]
fn f3_a_lost_ping_is_repeated() {
    let cluster = cluster("lossy", Plan { transport: TransportMode::Vxlan, ..Plan::default() });
    wait_for_ok(&cluster);
    let n2 = cluster.node("n2").unwrap();
    let own = "ip -o address show | awk '$2 != \"lo\" && $4 !~ /^fe80/ {split($4, a, \"/\"); print a[1]}' | sort -u";
    let own = n2.run(&["sh", "-c", own], b"").unwrap().stdout;
    let rules: Vec<String> = (own.lines())
        .map(|address| match address.contains(':') {
            true => format!("ip6 daddr {address} icmpv6 type echo-request numgen inc mod 2 == 0 drop"),
            false => format!("ip daddr {address} icmp type echo-request numgen inc mod 2 == 0 drop"),
        })
        .collect();
    assert!(rules.len() >= 4, "{own}");
    let rules = rules.join("; ");
    n2.sh(&[
        "nft",
        &format!("table inet lossy {{ chain c {{ type filter hook input priority 0; {rules}; }}; }}"),
    ])
    .unwrap();
    let found = peer_checks(&cluster, &[]);
    let [(verdict, message)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(verdict, "ok", "{message}");
    has(
        message,
        &[
            "2 addresses reachable, the 1 that pods use also with packets of full size; 2 paths to pod networks reachable",
        ],
    );
}

/// F3: a local rule drops large packets.
#[test]
fn f3_an_unsent_packet_does_not_prove_a_narrow_path() {
    let cluster = cluster("unsent", Plan { transport: TransportMode::Vxlan, ..Plan::default() });
    wait_for_ok(&cluster);
    let n1 = cluster.node("n1").unwrap();
    let rule = "table inet own { chain c { type filter hook output priority 0; meta length > 1390 drop; }; }";
    n1.sh(&["nft", rule]).unwrap();
    let found = peer_checks(&cluster, &[]);
    let [(verdict, message)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(verdict, "unknown", "{message}");
    has(message, &["1 target could not be probed: this node cannot send 1500 bytes to node n2 at "]);
    has(message, &["Operation not permitted"]);
}

/// F3: with IPv6 `network.mtu` cannot be below 1280, so the advice must be another one.
#[test]
fn f3_a_path_too_narrow_for_ipv6_has_valid_advice() {
    let cluster = cluster("tight", Plan { transport: TransportMode::Vxlan, subnets: 2, ..Plan::default() });
    wait_for_ok(&cluster);
    let limit = |size: u32| {
        let rule = format!(
            "table inet narrow; delete table inet narrow; \
             table inet narrow {{ chain c {{ type filter hook forward priority 0; meta length > {size} drop; }}; }}"
        );
        cluster.underlay().sh(&["nft", &rule]).unwrap();
    };
    limit(1300);
    let report: Value = serde_json::from_str(&podwire(&cluster, &["doctor", "-o", "json"]).stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|one| one["code"] == "PathMtuTooSmall").unwrap();
    has(found["message"].as_str().unwrap(), &["carries 1300: pods with IPv6 need 1330"]);
    assert!(!podwire(&cluster, &["doctor"]).stdout.contains("advice: set `network.mtu`"));
    // The fix succeeds as soon as the path is wide enough.
    let (n1, fix) = (cluster.node("n1").unwrap(), found["fix"].as_str().unwrap());
    assert!(!n1.run(&["sh", "-c", fix], b"").unwrap().success(), "{fix}");
    limit(1330);
    n1.sh(&["sh", "-c", fix]).unwrap();
    has(&peer_checks(&cluster, &[])[0].1, &["the path carries 1330: pods may send 1280 at most"]);
}

fn podwire(cluster: &Cluster, args: &[&str]) -> Outcome {
    let (agent, node) = (cluster.agent("n1").unwrap(), cluster.node("n1").unwrap());
    let run_dir = agent.run_dir().to_str().unwrap();
    node.run(&[&[env!("CARGO_BIN_EXE_podwire")], args, &["--run-dir", run_dir]].concat(), b"").unwrap()
}

/// Verdict, message and fix of the check `other firewalls`.
fn firewall_checks(host: &Host) -> Vec<[String; 3]> {
    let report: Value = serde_json::from_str(&doctor(host, &["-o", "json"]).stdout).unwrap();
    let checks = report["checks"].as_array().unwrap().iter().filter(|one| one["check"] == "other firewalls");
    let text = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
    checks.map(|check| ["verdict", "message", "fix"].map(|key| text(check, key))).collect()
}

#[test]
fn legacy_iptables_rules_are_reported_as_unknown() {
    let part = "tables of iptables-legacy are loaded (filter)";
    for (act, command) in [
        ("iptables-legacy -P FORWARD DROP", "iptables-legacy -S FORWARD"),
        ("ip6tables-legacy -P FORWARD DROP", "ip6tables-legacy -S FORWARD"),
    ] {
        let (host, _) = standalone("unclear", "routed");
        has(&doctor(&host, &[]).stdout, &["no problems"]);
        sh(&host, act);
        let found = firewall_checks(&host);
        let [[verdict, message, fix]] = found.as_slice() else { panic!("{act}: {found:?}") };
        assert_eq!((verdict.as_str(), fix.as_str()), ("unknown", command), "{act}: {message}");
        has(message, &[part]);
        let page = doctor(&host, &[]).stdout;
        has(&page, &["no problems; 1 check unknown", command]);
        sh(&host, fix);
    }
}

/// Rules of podman's firewall plugin, and a policy of the operator.
const MAY_DROP: &str = "iptables -P FORWARD DROP && iptables -N CNI-FORWARD && iptables -A FORWARD -j CNI-FORWARD && \
    iptables -A CNI-FORWARD -s 10.88.0.5/32 -j ACCEPT";

#[test]
fn cni_status_succeeds_with_a_chain_that_may_drop() {
    let host = Host::new("likely");
    let agent = host.agent(&["--no-install"]);
    let status = || host.plugin.status(&host.node, &agent.config(&json!({}))).unwrap();
    let message = || {
        let conditions = agent.get("/v1/status").unwrap()["conditions"].clone();
        conditions[0]["message"].as_str().unwrap_or_default().to_owned()
    };
    for (act, verb, is_served) in
        [(MAY_DROP, "may drop", true), ("iptables -F CNI-FORWARD", "drops the traffic", false)]
    {
        sh(&host, act);
        wait_until("the condition", DEADLINE, || Ok(message().contains(verb))).unwrap();
        has(&problems(&host)[0].1, &[verb]);
        assert_eq!(status().success(), is_served, "{act}");
    }
    assert_eq!(status().error().unwrap().code, 51);
}

#[test]
fn disabled_forwarding_is_ok_before_the_agent_is_ready() {
    let host = Host::new("notyet");
    sh(
        &host,
        "ip link add podwire0 type veth peer name other; sysctl -w net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0",
    );
    let mut agent = host.idle_agent(&["--no-install"]);
    agent.launch().unwrap();
    wait_until("the condition", DEADLINE, || Ok(doctor(&host, &[]).stdout.contains("BridgeNameTaken")))
        .unwrap();
    let found = problems(&host);
    assert_eq!(found.len(), 1, "{found:?}");
    has(&doctor(&host, &[]).stdout, &["the agent enables it when it is ready"]);
}
