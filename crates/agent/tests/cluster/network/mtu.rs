//! MTU of pods and tunnels, and packets that are too big.

use ipnet::IpNet;
use serde_json::json;
use testkit::{AttachedPod, Cluster, Extra, Plan};

use super::{TUNNEL, mtu_of, transfer};
use crate::common::{Streams, TIMEOUT, await_that, expect_reach, pod, up};

const DROP_PMTU: &[u8] = b"table inet pmtu_blackhole {
    chain in {
        type filter hook input priority 0
        icmp type destination-unreachable drop
        icmpv6 type packet-too-big drop
    }
}
";

/// Sends two pings of this size with DF set. The first one may discover the path MTU. Returns success and output.
fn ping_unfragmented(from: &AttachedPod, to: &std::net::IpAddr, size: u32) -> (bool, String) {
    // The headers of IP and ICMP.
    let payload = (size - if to.is_ipv4() { 28 } else { 48 }).to_string();
    let argv =
        ["ping", "-n", "-c", "2", "-i", "0.05", "-W", "1", "-M", "do", "-s", &payload, &to.to_string()];
    let outcome = from.pod.run(&argv, b"").unwrap();
    (outcome.success(), outcome.stdout + &outcome.stderr)
}

fn with_mtu(mtu: &str) -> Extra {
    Extra { flags: vec!["--network-mtu".to_owned(), mtu.to_owned()], ..Extra::default() }
}

#[test]
fn f8_too_big_packets_are_reported_and_connections_clamped() {
    let plan = Plan { nodes: 2, subnets: 2, all: with_mtu("1500"), ..Plan::default() };
    let cluster = up("toobig", &plan);
    let (p1, p2) = (pod(&cluster, "p1"), pod(&cluster, "p2"));
    assert_eq!((mtu_of(&p1.pod, "eth0"), mtu_of(cluster.node("n1").unwrap(), TUNNEL)), (1500, 1450));
    for address in &p2.addresses {
        let (succeeded, output) = ping_unfragmented(&p1, address, 1500);
        let is_reported = if address.is_ipv4() {
            output.contains("Frag needed and DF set (mtu = 1450)")
        } else {
            output.contains("Packet too big: mtu=1450")
        };
        assert!(!succeeded && is_reported, "{address}: {output}");
        let (succeeded, output) = ping_unfragmented(&p1, address, 1450);
        assert!(succeeded, "{address}: {output}");
    }
    await_that("connections are clamped", TIMEOUT, || clamps(&cluster, "n1") && clamps(&cluster, "n2"));
    // Also if ICMP errors are dropped, in both directions.
    for attached in [&p1, &p2] {
        flush_path_mtus(attached);
        assert!(attached.pod.run(&["nft", "-f", "-"], DROP_PMTU).unwrap().success());
    }
    let streams = Streams::between(&cluster, &[("p1", "p2")]);
    for (from, to) in [(&p1, &p2), (&p2, &p1)] {
        for address in &to.addresses {
            transfer(from, (to, *address));
        }
    }
    streams.expect_no_loss();
}

/// Whether this node clamps forwarded connections.
fn clamps(cluster: &Cluster, node: &str) -> bool {
    cluster.node(node).unwrap().sh(&["nft", "list", "chains"]).unwrap().contains("chain clamp ")
}

/// Removes learnt path MTUs.
fn flush_path_mtus(attached: &AttachedPod) {
    for family in ["-4", "-6"] {
        attached.pod.sh(&["ip", family, "route", "flush", "cache"]).unwrap();
    }
}

/// Packets of the pods' default MTU pass, and larger ones do not leave the pod.
#[track_caller]
fn expect_mtu(cluster: &Cluster, mtu: u32) {
    let (p1, p2) = (pod(cluster, "p1"), pod(cluster, "p2"));
    assert_eq!((mtu_of(&p1.pod, "eth0"), mtu_of(&p2.pod, "eth0")), (mtu, mtu));
    for (from, to) in [(&p1, &p2), (&p2, &p1)] {
        for address in &to.addresses {
            let (succeeded, output) = ping_unfragmented(from, address, mtu);
            assert!(succeeded, "{address}: {output}");
            assert!(!ping_unfragmented(from, address, mtu + 1).0);
            transfer(from, (to, *address));
        }
    }
    expect_reach(cluster, TIMEOUT);
    assert!(!clamps(cluster, "n1") && !clamps(cluster, "n2"), "clamping is not necessary");
}

/// The MTU of the node's allocation applies only to pods without an explicit MTU.
#[test]
fn a_pod_with_a_larger_configured_mtu_is_clamped() {
    let cluster = up("larger", &Plan { nodes: 2, subnets: 2, ..Plan::default() });
    let (node, agent) = (cluster.node("n1").unwrap(), cluster.agent("n1").unwrap());
    let pod = node.pod("large").unwrap();
    let config = agent.config(&json!({"mtu": 1500}));
    assert!(!clamps(&cluster, "n1"));
    cluster.plugin().add(&pod, &config).unwrap().ok().unwrap();
    await_that("connections are clamped", TIMEOUT, || clamps(&cluster, "n1"));
    cluster.plugin().del(&pod, &config).unwrap().ok().unwrap();
}

#[test]
fn pods_fit_into_small_underlays() {
    let v4: Vec<IpNet> = vec!["10.42.0.0/16".parse().unwrap()];
    for (label, plan) in [
        ("mtu1500", Plan::default()),
        ("mtu1400", Plan { mtu: 1400, ..Plan::default() }),
        ("mtu1300", Plan { mtu: 1300, pods: v4, ..Plan::default() }),
    ] {
        let mtu = plan.mtu - 50;
        let cluster = up(label, &Plan { nodes: 2, subnets: 2, ..plan });
        expect_mtu(&cluster, mtu);
    }
}
