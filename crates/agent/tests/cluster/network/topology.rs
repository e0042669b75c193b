//! Nodes that move between on-link and behind a router: the path to a peer follows, and pods stay reachable.

use testkit::{Cluster, Ns, Plan, PodPath};

use super::{await_path, ip, path, set_sysctl};
use crate::common::{Streams, TIMEOUT, expect_reach, up};

/// Connects n3 to another subnet, with addresses of that subnet.
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
fn f6_paths_follow_a_node_that_moves_behind_a_router_and_back() {
    let cluster = up("moves", &Plan { subnets: 2, ..Plan::default() });
    let paths =
        || [("p1", "p3"), ("p3", "p1"), ("p2", "p3"), ("p3", "p2")].map(|(a, b)| path(&cluster, a, b));
    // Strict reverse path filtering: while paths change they are asymmetric, so the tunnel must be loose.
    for node in ["n1", "n2", "n3"] {
        set_sysctl(cluster.node(node).unwrap(), "ipv4/conf/all/rp_filter", "1");
    }
    assert_eq!(paths(), [PodPath::Direct, PodPath::Direct, PodPath::Vxlan, PodPath::Vxlan]);
    for (from, to) in [(1, 2), (2, 1)] {
        let untouched = Streams::between(&cluster, &[("p1", "p2")]);
        let moved = Streams::between(&cluster, &[("p1", "p3"), ("p2", "p3")]);
        move_n3(&cluster, from, to);
        let (p1, p2) =
            if to == 2 { (PodPath::Vxlan, PodPath::Direct) } else { (PodPath::Direct, PodPath::Vxlan) };
        for (pair, expected) in
            [(("p1", "p3"), p1), (("p3", "p1"), p1), (("p2", "p3"), p2), (("p3", "p2"), p2)]
        {
            await_path(&cluster, pair, expected, TIMEOUT);
        }
        expect_reach(&cluster, TIMEOUT);
        untouched.expect_no_loss();
        moved.expect_recovery();
    }
}

/// Gives n2 the same addresses with other prefix lengths, so that its peers are behind the router or on-link.
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
fn f6_asymmetric_paths_work_with_strict_reverse_path_filtering() {
    let cluster = up("oneway", &Plan { nodes: 2, ..Plan::default() });
    let n2 = cluster.node("n2").unwrap();
    set_sysctl(cluster.node("n1").unwrap(), "ipv4/conf/all/rp_filter", "1");
    for (lengths, before, return_path) in
        [((32, 128), (24, 64), PodPath::Vxlan), ((24, 64), (32, 128), PodPath::Direct)]
    {
        let streams = Streams::between(&cluster, &[("p1", "p2"), ("p2", "p1")]);
        set_prefix(n2, lengths, before);
        await_path(&cluster, ("p2", "p1"), return_path, TIMEOUT);
        assert_eq!(path(&cluster, "p1", "p2"), PodPath::Direct);
        expect_reach(&cluster, TIMEOUT);
        streams.expect_recovery();
    }
}
