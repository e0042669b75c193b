//! Faults that no rule or setting of this node shows: `podwire doctor` probes the paths to other nodes.

use super::*;
use testkit::TransportMode;

/// Two nodes with a pod each, whose agents run the tool that is tested.
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

fn wait_well(cluster: &Cluster) {
    wait_until("all paths to answer", DEADLINE, || {
        Ok(matches!(of_others(cluster, &[]).as_slice(), [(verdict, _)] if verdict == "ok"))
    })
    .unwrap();
}

/// Transport, rule of another program on n1, and the words of the finding.
const DROPS: [(TransportMode, &str, &[&str]); 3] = [
    (
        TransportMode::Vxlan,
        "hook input priority 0; udp dport 4789 drop",
        &["node n2 answers, but its pod network does not", "VXLAN tunnel", "UDP port 4789"],
    ),
    (
        TransportMode::Direct,
        "hook input priority 0; ip saddr 10.42.0.0/16 drop; ip6 saddr fd42::/64 drop",
        &["node n2 answers, but its pod network does not", "direct route over eth0", "subnets of pods"],
    ),
    (
        TransportMode::Direct,
        "hook forward priority 0; ip daddr 10.42.0.0/16 drop; ip6 daddr fd42::/64 drop",
        &["answers this node, but not its pods", "forward chains"],
    ),
];

#[test]
fn a_firewall_between_pod_networks_is_found_by_probes_in_both_families() {
    for (transport, rule, words) in DROPS {
        let cluster = cluster("probe", Plan { transport, ..Plan::default() });
        wait_well(&cluster);
        let n1 = cluster.node("n1").unwrap();
        n1.sh(&["nft", &format!("table inet other {{ chain c {{ type filter {rule}; }}; }}")]).unwrap();
        let found = of_others(&cluster, &[]);
        assert_eq!(found.len(), 2, "{rule}: {found:?}");
        for (verdict, message) in &found {
            assert_eq!(verdict, "problem", "{message}");
            has(message, words);
        }
        n1.sh(&["nft", "delete table inet other"]).unwrap();
        wait_well(&cluster);
    }
}

#[test]
fn a_node_that_lost_its_address_is_told_so_and_not_to_change_its_mtu_or_to_start_etcd() {
    let plan = Plan { transport: TransportMode::Vxlan, ..Plan::default() };
    let cluster = cluster("lostaddr", plan);
    wait_well(&cluster);
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

    // F12: the tunnel over IPv6 stays when the address is back. No route leads through it, and it limits no pod.
    wait_until("the tunnel over IPv6", DEADLINE, || {
        Ok(n1.run(&["ip", "link", "show", "pwvx6"], b"")?.success())
    })
    .unwrap();
    n1.sh(&["sh", "-c", &format!("ip address add {address}/24 dev eth0 && ip route add {route}")]).unwrap();
    wait_well(&cluster);
    wait_until("the conditions to end", DEADLINE, || Ok(conditions().is_empty())).unwrap();
    n1.sh(&["ip", "link", "show", "pwvx6"]).unwrap();
    has(&podwire(&cluster, &["doctor"]).stdout, &["pods send up to 1450 bytes; pwvx4 carries 1450"]);
}

/// F3: the path carries less than the nodes' links, and the advice of the condition ends it.
#[test]
fn f3_a_narrow_path_is_found_until_pods_send_smaller_packets() {
    let plan = Plan { transport: TransportMode::Vxlan, subnets: 2, ..Plan::default() };
    let mut cluster = cluster("narrow", plan);
    wait_well(&cluster);
    let rule =
        "table inet narrow { chain c { type filter hook forward priority 0; meta length > 1390 drop; }; }";
    cluster.underlay().sh(&["nft", rule]).unwrap();
    let found = of_others(&cluster, &[]);
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
    wait_well(&cluster);
    assert!(!podwire(&cluster, &["doctor"]).stdout.contains("Mtu"));
}

/// F3: one lost packet says nothing about a path. Every second request to each target is dropped.
#[test]
fn f3_a_lost_ping_is_repeated_before_it_counts() {
    let cluster = cluster("lossy", Plan { transport: TransportMode::Vxlan, ..Plan::default() });
    wait_well(&cluster);
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
    let found = of_others(&cluster, &[]);
    let [(verdict, message)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(verdict, "ok", "{message}");
    has(
        message,
        &["2 addresses reached, 1 by packets as large as those of pods; 2 paths to pod networks answered"],
    );
}

/// F3: a packet that this node does not send says nothing about the path.
#[test]
fn f3_a_packet_that_cannot_be_sent_is_not_a_narrow_path() {
    let cluster = cluster("unsent", Plan { transport: TransportMode::Vxlan, ..Plan::default() });
    wait_well(&cluster);
    let n1 = cluster.node("n1").unwrap();
    let rule = "table inet own { chain c { type filter hook output priority 0; meta length > 1390 drop; }; }";
    n1.sh(&["nft", rule]).unwrap();
    let found = of_others(&cluster, &[]);
    let [(verdict, message)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(verdict, "unknown", "{message}");
    has(message, &["1 target could not be probed: this node cannot send 1500 bytes to node n2 at "]);
    has(message, &["Operation not permitted"]);
}

/// F3: `network.mtu` below 1280 is refused with IPv6, so it is not the advice.
#[test]
fn f3_a_path_too_narrow_for_ipv6_gets_advice_that_can_be_followed() {
    let cluster = cluster("tight", Plan { transport: TransportMode::Vxlan, subnets: 2, ..Plan::default() });
    wait_well(&cluster);
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
    // The command answers as soon as the path is wide enough.
    let (n1, fix) = (cluster.node("n1").unwrap(), found["fix"].as_str().unwrap());
    assert!(!n1.run(&["sh", "-c", fix], b"").unwrap().success(), "{fix}");
    limit(1330);
    n1.sh(&["sh", "-c", fix]).unwrap();
    has(&of_others(&cluster, &[])[0].1, &["the path carries 1330: pods may send 1280 at most"]);
}

fn podwire(cluster: &Cluster, args: &[&str]) -> Outcome {
    let (agent, node) = (cluster.agent("n1").unwrap(), cluster.node("n1").unwrap());
    let run_dir = agent.run_dir().to_str().unwrap();
    node.run(&[&[env!("CARGO_BIN_EXE_podwire")], args, &["--run-dir", run_dir]].concat(), b"").unwrap()
}

/// What doctor says of other firewalls: verdict, message and command.
fn of_firewalls(host: &Host) -> Vec<[String; 3]> {
    let report: Value = serde_json::from_str(&doctor(host, &["-o", "json"]).stdout).unwrap();
    let checks = report["checks"].as_array().unwrap().iter().filter(|one| one["check"] == "other firewalls");
    let text = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
    checks.map(|check| ["verdict", "message", "fix"].map(|key| text(check, key))).collect()
}

#[test]
fn firewalls_that_doctor_cannot_evaluate_are_unknown_and_not_well() {
    for (act, words, command, undo) in [
        (
            "nft 'table inet strict { chain c { type filter hook input priority 0; policy drop; iifname lo accept; }; }'",
            "may drop packets from pods to this node",
            "nft list chain inet strict c",
            "nft 'insert rule inet strict c iifname \"pw*\" accept'",
        ),
        (
            "iptables-legacy -P FORWARD DROP",
            "tables of iptables-legacy are loaded (filter)",
            "iptables-legacy -S FORWARD",
            "",
        ),
        (
            "ip6tables-legacy -P FORWARD DROP",
            "tables of iptables-legacy are loaded (filter)",
            "ip6tables-legacy -S FORWARD",
            "",
        ),
    ] {
        let (host, _) = standalone("unclear", "routed");
        has(&doctor(&host, &[]).stdout, &["no problems"]);
        sh(&host, act);
        let found = of_firewalls(&host);
        let [[verdict, message, fix]] = found.as_slice() else { panic!("{act}: {found:?}") };
        assert_eq!((verdict.as_str(), fix.as_str()), ("unknown", command), "{act}: {message}");
        has(message, &[words]);
        let page = doctor(&host, &[]).stdout;
        has(&page, &["no problems; 1 check unknown", command]);
        sh(&host, fix);
        if !undo.is_empty() {
            sh(&host, undo);
            has(&doctor(&host, &[]).stdout, &["no problems"]);
        }
    }
}

/// As podman's firewall plugin leaves the chain, beside a policy of the operator.
const LIKELY: &str = "iptables -P FORWARD DROP && iptables -N CNI-FORWARD && iptables -A FORWARD -j CNI-FORWARD && \
    iptables -A CNI-FORWARD -s 10.88.0.5/32 -j ACCEPT";

#[test]
fn a_chain_that_may_drop_is_reported_as_that_and_status_succeeds() {
    let host = Host::new("likely");
    let agent = host.agent(&["--no-install"]);
    let status = || host.plugin.status(&host.node, &agent.config(&json!({}))).unwrap();
    let message = || {
        let conditions = agent.get("/v1/status").unwrap()["conditions"].clone();
        conditions[0]["message"].as_str().unwrap_or_default().to_owned()
    };
    for (act, verb, is_served) in
        [(LIKELY, "may drop", true), ("iptables -F CNI-FORWARD", "drops the traffic", false)]
    {
        sh(&host, act);
        wait_until("the condition", DEADLINE, || Ok(message().contains(verb))).unwrap();
        has(&wrong(&host)[0].1, &[verb]);
        assert_eq!(status().success(), is_served, "{act}");
    }
    assert_eq!(status().error().unwrap().code, 51);
}

#[test]
fn an_agent_that_is_not_ready_yet_is_no_reason_to_enable_forwarding() {
    let host = Host::new("notyet");
    sh(
        &host,
        "ip link add podwire0 type veth peer name other; sysctl -w net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0",
    );
    let mut agent = host.idle_agent(&["--no-install"]);
    agent.launch().unwrap();
    wait_until("the reason", DEADLINE, || Ok(doctor(&host, &[]).stdout.contains("BridgeNameTaken"))).unwrap();
    let found = wrong(&host);
    assert_eq!(found.len(), 1, "{found:?}");
    has(&doctor(&host, &[]).stdout, &["the agent enables it when it is ready"]);
}
