//! A9: forwarding, masquerade only at the edge of the cluster, and unmanaged firewalls.

use std::net::SocketAddr;

use testkit::{Cluster, Ns, Plan, PodPath, TransportMode, inspect, tcp_connects, tcp_echo, wait_until};

use super::{peer_routes, problems, status};
use crate::common::{PROBE_TIME, TIMEOUT, expect_reach};

const SYSCTLS: [&str; 2] = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];

/// Pods see the addresses of pods, and an external host sees the addresses of nodes.
fn expect_masquerade_only_outside(transport: TransportMode, path: PodPath) {
    let plan = Plan { nodes: 2, transport, ..Plan::default() };
    let cluster = Cluster::up("edge", &plan).unwrap();
    cluster.pods_everywhere(1).unwrap();
    for name in ["n1", "n2"] {
        for sysctl in SYSCTLS {
            assert_eq!(cluster.node(name).unwrap().sh(&["sysctl", "-n", sysctl]).unwrap().trim(), "1");
        }
    }
    // The matrix also fails if a source address was rewritten.
    let matrix = cluster.reach(TIMEOUT).unwrap();
    assert!(matrix.all(), "{:#?}", matrix.failures());
    assert!(matrix.cells.iter().all(|cell| cell.path == path), "{matrix:?}");
    // An external host without routes to pods.
    for (family, outside) in ["10.199.1.254", "fd99:1::fe"].into_iter().enumerate() {
        let to: SocketAddr = (outside.parse::<std::net::IpAddr>().unwrap(), 0).into();
        let server = tcp_echo(cluster.underlay(), to).unwrap();
        for attached in cluster.pods() {
            let observed = tcp_connects(&attached.pod, server.address(), TIMEOUT).unwrap().unwrap();
            assert_eq!(
                observed.ip(),
                cluster.addresses(&attached.node).unwrap()[family],
                "{}",
                attached.name
            );
        }
    }
}

#[test]
fn a9_masquerade_applies_only_outside_the_cluster_with_direct_routes() {
    expect_masquerade_only_outside(TransportMode::Direct, PodPath::Direct);
}

#[test]
fn a9_masquerade_applies_only_outside_the_cluster_with_vxlan() {
    expect_masquerade_only_outside(TransportMode::Vxlan, PodPath::Vxlan);
}

const STRICT: &str =
    "table inet strict { chain c { type filter hook forward priority filter + 10; policy drop; }; }";

/// The number of accept rules in the unmanaged chain.
fn accept_rules(node: &Ns) -> usize {
    let rules = node.sh(&["nft", "-s", "list", "table", "inet", "strict"]).unwrap();
    rules.lines().filter(|line| line.contains("comment") && line.contains("podwire")).count()
}

fn doctor(cluster: &Cluster, node: &str) -> testkit::Outcome {
    let agent = cluster.agent(node).unwrap();
    let (run, state) = (agent.run_dir().display().to_string(), cluster.node(node).unwrap().dir().join("lib"));
    agent.podwire(&["doctor", "--run-dir", &run, "--state-dir", state.to_str().unwrap()]).unwrap()
}

/// n1 has an unmanaged firewall. n3 is on-link, n2 is reached through the tunnel.
#[test]
fn a9_a_dropping_unmanaged_chain_is_reported_and_gets_accept_rules() {
    let mut cluster = Cluster::up("unmanaged", &Plan { subnets: 2, ..Plan::default() }).unwrap();
    cluster.pods_everywhere(1).unwrap();
    expect_reach(&cluster, TIMEOUT);
    let n1 = (**cluster.node("n1").unwrap()).clone();
    n1.sh(&["nft", STRICT]).unwrap();
    wait_until("the condition", TIMEOUT, || Ok(!problems(cluster.agent("n1")?).is_empty())).unwrap();
    let reported = problems(cluster.agent("n1").unwrap());
    let command = reported[0]["fix"].as_str().unwrap();
    let degraded = status(&cluster, "n1").error().unwrap();
    assert_eq!(degraded.code, 51, "{degraded:?}");
    assert!(format!("{} {}", degraded.msg, degraded.details).contains(command), "{degraded:?}");
    let report = doctor(&cluster, "n1");
    assert!(report.status.code() == Some(1) && report.stdout.contains(command), "{report:?}");
    wait_until("all pods but p1 to reach each other", TIMEOUT, || {
        let matrix = cluster.reach(PROBE_TIME)?;
        let (of_p1, other_cells): (Vec<_>, Vec<_>) =
            matrix.cells.into_iter().partition(|cell| [&cell.from, &cell.to].contains(&&"p1".to_owned()));
        assert!(of_p1.iter().all(|cell| !cell.is_ok()), "{of_p1:?}");
        Ok(other_cells.iter().all(testkit::MatrixCell::is_ok))
    })
    .unwrap();
    assert_eq!(status(&cluster, "n3").stdout, "", "n3 must not be affected");

    // The fix works.
    n1.sh(&["sh", "-c", command]).unwrap();
    expect_reach(&cluster, TIMEOUT);
    wait_until("no condition", TIMEOUT, || Ok(problems(cluster.agent("n1")?).is_empty())).unwrap();
    n1.sh(&["nft", "delete table inet strict"]).unwrap();

    n1.sh(&["nft", STRICT]).unwrap();
    let accept = ("PODWIRE_NETWORK_ACCEPT_FORWARD".to_owned(), "true".to_owned());
    cluster.agent_mut("n1").unwrap().set_env(&[accept]);
    cluster.agent_mut("n1").unwrap().restart().unwrap();
    wait_until("two rules for each family", TIMEOUT, || Ok(accept_rules(&n1) == 4)).unwrap();
    expect_reach(&cluster, TIMEOUT);
    wait_until("no condition", TIMEOUT, || Ok(problems(cluster.agent("n1")?).is_empty())).unwrap();
    assert!(status(&cluster, "n1").success());
    let report = doctor(&cluster, "n1");
    assert!(report.success(), "{}", report.stdout);

    assert!(!peer_routes(&n1).is_empty());
    assert!(inspect::links(&n1).unwrap().iter().any(|link| link.kind() == Some("vxlan")));
    cluster.agent_mut("n1").unwrap().stop().unwrap();
    let agent = cluster.agent("n1").unwrap();
    let (run, state) = (agent.run_dir().display().to_string(), cluster.node("n1").unwrap().dir().join("lib"));
    let cleaned =
        agent.podwire(&["cleanup", "--run-dir", &run, "--state-dir", state.to_str().unwrap()]).unwrap();
    assert!(cleaned.success(), "{cleaned:?}");
    assert!(cleaned.stdout.contains("podwire node rm n1"), "{}", cleaned.stdout);
    assert_eq!((accept_rules(&n1), peer_routes(&n1)), (0, vec![]));
    let links = inspect::links(&n1).unwrap();
    assert_eq!(links.iter().map(|link| link.name.as_str()).collect::<Vec<_>>(), ["lo", "eth0"]);
    // The unmanaged table is unchanged.
    assert!(n1.sh(&["nft", "list", "table", "inet", "strict"]).unwrap().contains("policy drop"));
}
