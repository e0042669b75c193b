//! Who is on-link and who is behind a router changes: the way to a peer follows, and the network is never lost.

use testkit::{Cluster, Ns, Plan, PodPath};

use super::{await_way, ip, set_sysctl, way};
use crate::common::{SOON, Streams, expect_reach, up};

/// Plugs n3 into another subnet, with the addresses that belong there.
fn move_n3(cluster: &Cluster, from: usize, to: usize) {
    let n3 = cluster.node("n3").unwrap();
    ip(cluster.underlay(), &format!("link set dev n3 master net{to}"));
    ip(n3, &format!("addr add 10.199.{to}.3/24 dev eth0"));
    ip(n3, &format!("addr add fd99:{to}::3/64 dev eth0 nodad"));
    ip(n3, &format!("route replace default via 10.199.{to}.254 dev eth0"));
    ip(n3, &format!("route replace default via fd99:{to}::fe dev eth0"));
    ip(n3, &format!("addr del 10.199.{from}.3/24 dev eth0"));
    ip(n3, &format!("addr del fd99:{from}::3/64 dev eth0"));
}

#[test]
fn f6_a_node_that_moves_behind_a_router_and_back_takes_its_peers_from_direct_to_vxlan_and_back() {
    let cluster = up("moves", &Plan { subnets: 2, ..Plan::default() });
    let ways = || [("p1", "p3"), ("p3", "p1"), ("p2", "p3"), ("p3", "p2")].map(|(a, b)| way(&cluster, a, b));
    // Strict machines: while ways change they differ by direction, and the tunnel is loose.
    for node in ["n1", "n2", "n3"] {
        set_sysctl(cluster.node(node).unwrap(), "ipv4/conf/all/rp_filter", "1");
    }
    assert_eq!(ways(), [PodPath::Direct, PodPath::Direct, PodPath::Vxlan, PodPath::Vxlan]);
    for (from, to) in [(1, 2), (2, 1)] {
        let untouched = Streams::between(&cluster, &[("p1", "p2")]);
        let moved = Streams::between(&cluster, &[("p1", "p3"), ("p2", "p3")]);
        move_n3(&cluster, from, to);
        let (p1, p2) =
            if to == 2 { (PodPath::Vxlan, PodPath::Direct) } else { (PodPath::Direct, PodPath::Vxlan) };
        for (pair, way) in [(("p1", "p3"), p1), (("p3", "p1"), p1), (("p2", "p3"), p2), (("p3", "p2"), p2)] {
            await_way(&cluster, pair, way, SOON);
        }
        expect_reach(&cluster, SOON);
        untouched.expect_whole();
        moved.expect_back();
    }
}

/// The same addresses, with all others behind the router, or on-link.
fn set_prefix(n2: &Ns, lengths: (u8, u8), before: (u8, u8)) {
    ip(n2, &format!("addr add 10.199.1.2/{} dev eth0", lengths.0));
    ip(n2, "route replace 10.199.1.254/32 dev eth0");
    ip(n2, "route replace default via 10.199.1.254 dev eth0");
    ip(n2, &format!("addr del 10.199.1.2/{} dev eth0", before.0));
    ip(n2, &format!("addr del fd99:1::2/{} dev eth0", before.1));
    ip(n2, &format!("addr add fd99:1::2/{} dev eth0 nodad", lengths.1));
    ip(n2, "route replace fd99:1::fe/128 dev eth0");
    ip(n2, "route replace default via fd99:1::fe dev eth0");
}

#[test]
fn f6_ways_that_differ_by_direction_work_and_a_strict_node_takes_what_comes_by_the_tunnel() {
    let cluster = up("oneway", &Plan { nodes: 2, ..Plan::default() });
    let n2 = cluster.node("n2").unwrap();
    set_sysctl(cluster.node("n1").unwrap(), "ipv4/conf/all/rp_filter", "1");
    for (lengths, before, back) in
        [((32, 128), (24, 64), PodPath::Vxlan), ((24, 64), (32, 128), PodPath::Direct)]
    {
        let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p1")]);
        set_prefix(n2, lengths, before);
        await_way(&cluster, ("p2", "p1"), back, SOON);
        assert_eq!(way(&cluster, "p1", "p2"), PodPath::Direct);
        expect_reach(&cluster, SOON);
        streams.expect_back();
    }
}
