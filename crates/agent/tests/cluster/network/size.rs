//! What fits through, and what happens to what does not.

use ipnet::IpNet;
use serde_json::json;
use testkit::{AttachedPod, Cluster, Extra, Plan};

use super::{TUNNEL, mtu_of, transfer};
use crate::common::{SOON, Streams, await_that, expect_reach, pod, up};

const DEAF: &[u8] = b"table inet deaf {
    chain in {
        type filter hook input priority 0
        icmp type destination-unreachable drop
        icmpv6 type packet-too-big drop
    }
}
";

/// What `ping` says to a packet of this size that must not be cut into pieces; once or twice: the first one may find out.
fn ping_whole(from: &AttachedPod, to: &std::net::IpAddr, size: u32) -> (bool, String) {
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
fn f8_what_is_too_big_for_the_tunnel_is_told_and_connections_fit() {
    let plan = Plan { nodes: 2, subnets: 2, all: with_mtu("1500"), ..Plan::default() };
    let cluster = up("toobig", &plan);
    let (p1, p2) = (pod(&cluster, "p1"), pod(&cluster, "p2"));
    assert_eq!((mtu_of(&p1.pod, "eth0"), mtu_of(cluster.node("n1").unwrap(), TUNNEL)), (1500, 1450));
    for address in &p2.addresses {
        let (went, said) = ping_whole(&p1, address, 1500);
        let told = if address.is_ipv4() {
            said.contains("Frag needed and DF set (mtu = 1450)")
        } else {
            said.contains("Packet too big: mtu=1450")
        };
        assert!(!went && told, "{address}: {said}");
        let (went, said) = ping_whole(&p1, address, 1450);
        assert!(went, "{address}: {said}");
    }
    await_that("connections are clamped", SOON, || clamps(&cluster, "n1") && clamps(&cluster, "n2"));
    // Also where nobody hears that something is too big, in both directions.
    for wired in [&p1, &p2] {
        flush_learnt(wired);
        assert!(wired.pod.run(&["nft", "-f", "-"], DEAF).unwrap().success());
    }
    let streams = Streams::between(&cluster, &[("p1", "p2")]);
    for (from, to) in [(&p1, &p2), (&p2, &p1)] {
        for address in &to.addresses {
            transfer(from, (to, *address));
        }
    }
    streams.expect_whole();
}

/// Does every packet that this node forwards pay for the clamp?
fn clamps(cluster: &Cluster, node: &str) -> bool {
    cluster.node(node).unwrap().sh(&["nft", "list", "chains"]).unwrap().contains("chain clamp ")
}

/// Forgets path MTUs.
fn flush_learnt(wired: &AttachedPod) {
    for family in ["-4", "-6"] {
        wired.pod.sh(&["ip", family, "route", "flush", "cache"]).unwrap();
    }
}

/// What pods get by themselves goes through whole, and one byte more does not leave them.
#[track_caller]
fn expect_room(cluster: &Cluster, mtu: u32) {
    let (p1, p2) = (pod(cluster, "p1"), pod(cluster, "p2"));
    assert_eq!((mtu_of(&p1.pod, "eth0"), mtu_of(&p2.pod, "eth0")), (mtu, mtu));
    for (from, to) in [(&p1, &p2), (&p2, &p1)] {
        for address in &to.addresses {
            let (went, said) = ping_whole(from, address, mtu);
            assert!(went, "{address}: {said}");
            assert!(!ping_whole(from, address, mtu + 1).0);
            transfer(from, (to, *address));
        }
    }
    expect_reach(cluster, SOON);
    assert!(!clamps(cluster, "n1") && !clamps(cluster, "n2"), "all that pods send fits");
}

/// The share's size is for who has none of its own.
#[test]
fn a_pod_that_got_a_larger_link_by_its_config_is_clamped_at_once() {
    let cluster = up("larger", &Plan { nodes: 2, subnets: 2, ..Plan::default() });
    let (node, agent) = (cluster.node("n1").unwrap(), cluster.agent("n1").unwrap());
    let pod = node.pod("large").unwrap();
    let config = agent.config(&json!({"mtu": 1500}));
    assert!(!clamps(&cluster, "n1"));
    cluster.plugin().add(&pod, &config).unwrap().ok().unwrap();
    await_that("connections are clamped", SOON, || clamps(&cluster, "n1"));
    cluster.plugin().del(&pod, &config).unwrap().ok().unwrap();
}

#[test]
fn pods_fit_into_small_underlays() {
    let v4: Vec<IpNet> = vec!["10.42.0.0/16".parse().unwrap()];
    for (label, plan) in [
        ("room1500", Plan::default()),
        ("room1400", Plan { mtu: 1400, ..Plan::default() }),
        ("room1300", Plan { mtu: 1300, pods: v4, ..Plan::default() }),
    ] {
        let room = plan.mtu - 50;
        let cluster = up(label, &Plan { nodes: 2, subnets: 2, ..plan });
        expect_room(&cluster, room);
    }
}
