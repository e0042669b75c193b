//! Drift that is caused by commands of an operator.

use netlink::{NetNs, PeerMonitor};
use testkit::{Cluster, Plan, PodPath, inspect};

use super::{PeerObjects, TUNNEL, await_path, await_peer_objects, ip, peer_routes, problems, set_sysctl};
use crate::common::{PROBE_TIME, Streams, TIMEOUT, await_that, expect_reach, up};

/// n1 and n3 are on one link, n2 is behind a router: both transports are in use.
fn plan() -> Plan {
    Plan { subnets: 2, ..Plan::default() }
}

const ALL_PAIRS: [(&str, &str); 3] = [("p1", "p2"), ("p1", "p3"), ("p2", "p3")];

/// Creates unmanaged objects on n1 that are similar to managed ones.
fn create_unmanaged(cluster: &Cluster) {
    let n1 = cluster.node("n1").unwrap();
    for line in peer_routes(n1) {
        let block = line.split(' ').next().unwrap();
        let (via, family) = if block.contains(':') { ("fd99:1::fe", "-6") } else { ("10.199.1.254", "-4") };
        // The same destination with a higher metric.
        ip(n1, &format!("{family} route add {block} via {via} dev eth0 metric 200000 proto static"));
        ip(n1, &format!("{family} route add {block} via {via} dev eth0 metric 200001 proto 114"));
    }
    ip(n1, "link add other0 type vxlan id 9 dstport 8473 local 10.199.1.1 nolearning");
    ip(n1, "link set other0 up");
    for (mac, dst) in [("02:aa:00:00:00:01", "10.199.1.77"), ("00:00:00:00:00:00", "10.199.1.78")] {
        n1.sh(&["bridge", "fdb", "append", mac, "dev", "other0", "dst", dst]).unwrap();
    }
    ip(n1, "neigh add 192.0.2.9 dev other0 lladdr 02:aa:00:00:00:01 nud permanent");
}

/// All unmanaged objects as text.
fn unmanaged(cluster: &Cluster) -> Vec<String> {
    let n1 = cluster.node("n1").unwrap();
    let mut all = Vec::new();
    for argv in [
        "ip -4 route show proto static",
        "ip -6 route show proto static",
        "ip -4 route show proto 114",
        "ip -6 route show proto 114",
        "ip -d link show dev other0",
        "bridge fdb show dev other0",
        "ip neigh show dev other0 nud permanent",
    ] {
        all.push(n1.sh(&argv.split(' ').collect::<Vec<_>>()).unwrap());
    }
    assert!(all.iter().all(|text| !text.is_empty()), "{all:?}");
    all
}

#[test]
fn drift_is_repaired_and_unmanaged_objects_are_not_changed() {
    let cluster = up("byhand", &plan());
    create_unmanaged(&cluster);
    let n1 = cluster.node("n1").unwrap();
    // Joining is not a repair.
    for kind in ["peer_route", "tunnel"] {
        assert_eq!(repairs(&cluster, kind), 0, "{kind}");
    }
    let (before, unmanaged_before) = (PeerObjects::of(n1).unwrap(), unmanaged(&cluster));
    assert_eq!((before.routes.len(), before.neighbours.len(), before.fdb.len()), (4, 2, 1), "{before:#?}");
    let entry: Vec<&str> = before.fdb.first().unwrap().split(' ').collect();
    let (mac, remote) = (entry[0], entry[entry.iter().position(|word| *word == "dst").unwrap() + 1]);
    let del_fdb = format!("bridge fdb del {mac} dev {TUNNEL} dst {remote}");
    let del_neighbours: Vec<String> = before
        .neighbours
        .iter()
        .map(|line| format!("ip neigh del {} dev {TUNNEL}", line.split(' ').next().unwrap()))
        .collect();
    let faults = [
        vec!["ip -4 route flush proto 113", "ip -6 route flush proto 113"],
        vec!["ip link del dev pwvx4"],
        vec!["ip link set dev pwvx4 down"],
        vec!["ip link set dev pwvx4 mtu 1200"],
        vec!["ip link set dev pwvx4 address 02:bb:00:00:00:01"],
        del_neighbours.iter().map(String::as_str).collect(),
        vec![del_fdb.as_str()],
        vec!["ip -4 addr flush dev pwvx4"],
    ];
    for fault in faults {
        let streams = Streams::between(&cluster, &ALL_PAIRS);
        let mut monitor = PeerMonitor::open_in(&NetNs::open(n1.path()).unwrap()).unwrap();
        for line in &fault {
            n1.sh(&line.split(' ').collect::<Vec<_>>()).unwrap();
        }
        await_peer_objects(n1, &before, &fault.join("; "), TIMEOUT);
        assert!(!monitor.read().unwrap().is_empty(), "{fault:?} had no effect");
        expect_reach(&cluster, TIMEOUT);
        streams.expect_recovery();
        assert_eq!(unmanaged(&cluster), unmanaged_before, "after {fault:?}");
    }
    // At least: two commands flushed four routes. Routes that were deleted with the tunnel may count, too.
    for (kind, minimum) in [("peer_route", 4), ("tunnel", 1), ("peer_neighbour", 2), ("peer_fdb", 1)] {
        assert!(repairs(&cluster, kind) >= minimum, "{kind}: {}", repairs(&cluster, kind));
    }
    let status: api::Status =
        serde_json::from_value(cluster.agent("n1").unwrap().get(api::STATUS).unwrap()).unwrap();
    assert!(status.reconcile.repairs >= 8, "{:#?}", status.reconcile);
    let recent: Vec<&str> =
        status.reconcile.recent_repairs.iter().map(|repair| repair.message.as_str()).collect();
    for sentence in [
        "neighbours of tunnels restored: ",
        "1 forwarding entry of a tunnel restored: ",
        "tunnel pwvx4: MAC 02:",
        "tunnel pwvx4: up again",
    ] {
        assert!(recent.iter().any(|what| what.contains(sentence)), "{sentence:?} in {recent:#?}");
    }
}

/// The objects of n1's `PeerRouteFailed` conditions.
fn failed_routes(cluster: &Cluster) -> Vec<String> {
    let status = cluster.agent("n1").unwrap().get(api::STATUS).unwrap();
    let status: api::Status = serde_json::from_value(status).unwrap();
    let failed =
        status.conditions.into_iter().filter(|condition| condition.code == types::Code::PeerRouteFailed);
    failed.map(|condition| condition.object).collect()
}

#[test]
fn a5_only_drift_that_was_repaired_counts_as_a_repair() {
    let mut cluster = Cluster::hosts("refused", &plan()).unwrap();
    cluster.start_etcd().unwrap();
    cluster.start_agent("n1").unwrap();
    cluster.start_agent("n2").unwrap();
    await_that("routes to n2", TIMEOUT, || peer_routes(cluster.node("n1").unwrap()).len() == 2);
    // The kernel refuses a route whose gateway is behind another gateway.
    let detour = |cluster: &Cluster, verb: &str| {
        ip(cluster.node("n1").unwrap(), &format!("-6 route {verb} fd99:1::3/128 via fd99:1::99 dev eth0"));
    };
    detour(&cluster, "add");
    cluster.start_agent("n3").unwrap();
    await_that("the refusal", TIMEOUT, || failed_routes(&cluster).len() == 1);
    let refused = failed_routes(&cluster);
    assert!(refused[0].starts_with("route fd42:"), "{refused:?}");
    detour(&cluster, "del");
    await_that("all routes", TIMEOUT, || peer_routes(cluster.node("n1").unwrap()).len() == 4);
    await_that("no refusal", TIMEOUT, || failed_routes(&cluster).is_empty());
    assert_eq!(repairs(&cluster, "peer_route"), 0, "a change of a record is not a repair");

    detour(&cluster, "add");
    for family in ["-4", "-6"] {
        ip(cluster.node("n1").unwrap(), &format!("{family} route flush proto 113"));
    }
    await_that("the second refusal", TIMEOUT, || failed_routes(&cluster) == refused);
    // A refused route does not hide the repair of the other ones.
    await_that("3 repairs", TIMEOUT, || repairs(&cluster, "peer_route") == 3);
    detour(&cluster, "del");
    await_that("4 repairs", TIMEOUT, || repairs(&cluster, "peer_route") == 4);
    await_that("no refusal", TIMEOUT, || failed_routes(&cluster).is_empty());
    assert_eq!(peer_routes(cluster.node("n1").unwrap()).len(), 4);
}

/// The number of repairs of this kind that the agent of n1 counted. A counter is served after its first increment.
fn repairs(cluster: &Cluster, kind: &str) -> u64 {
    metric(cluster, &format!("podwire_reconcile_repairs_total{{kind=\"{kind}\"}}")).unwrap_or(0.0) as u64
}

/// A metric of the agent of n1. `None`: not served yet. A metric with labels is served after its first report.
fn metric(cluster: &Cluster, name: &str) -> Option<f64> {
    let metrics = cluster.agent("n1").unwrap().metrics().unwrap();
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    Some(value.parse().unwrap())
}

fn await_metrics(cluster: &Cluster, expected: &[(&str, f64)]) {
    for (name, value) in expected {
        await_that(&format!("{name} {value}"), TIMEOUT, || metric(cluster, name) == Some(*value));
    }
}

/// The time since n1's watch was last confirmed.
fn watch_age(cluster: &Cluster) -> f64 {
    metric(cluster, "podwire_store_watch_age_seconds").unwrap()
}

/// The lines of n1's log with this message about a peer.
fn logged(cluster: &Cluster, message: &str, node: &str) -> Vec<String> {
    let log = cluster.agent("n1").unwrap().log().unwrap();
    let matches = |line: &&str| line.contains(message) && line.contains(&format!("node={node}"));
    log.lines().filter(matches).map(str::to_owned).collect()
}

#[test]
fn a5_peer_changes_are_logged_once_and_counted() {
    let mut cluster = Cluster::hosts("peerlog", &plan()).unwrap();
    cluster.start_etcd().unwrap();
    cluster.start_agent("n1").unwrap();
    let route = |transport: &str| format!("podwire_peer_routes{{transport=\"{transport}\"}}");
    let (direct, vxlan, none) = (route("direct"), route("vxlan"), route("none"));
    await_metrics(&cluster, &[("podwire_peers", 0.0), (&direct, 0.0), ("podwire_store_reachable", 1.0)]);
    for node in ["n2", "n3"] {
        cluster.start_agent(node).unwrap();
        await_that("the peer in the log", TIMEOUT, || !logged(&cluster, "peer joined", node).is_empty());
    }
    let expected =
        [("podwire_peers", 2.0), ("podwire_tunnels", 1.0), (&direct, 2.0), (&vxlan, 2.0), (&none, 0.0)];
    await_metrics(&cluster, &expected);
    // An unchanged record is not a change.
    cluster.agent_mut("n3").unwrap().restart().unwrap();
    set_sysctl(cluster.node("n3").unwrap(), "ipv4/conf/eth0/promote_secondaries", "1");
    ip(cluster.node("n3").unwrap(), "addr add 10.199.1.33/24 dev eth0");
    ip(cluster.node("n3").unwrap(), "addr del 10.199.1.3/24 dev eth0");
    let moved = "addresses 10.199.1.3,fd99:1::3 -> 10.199.1.33,fd99:1::3";
    await_that("the change in the log", TIMEOUT, || {
        logged(&cluster, "peer changed", "n3").iter().any(|line| line.contains(moved))
    });
    cluster.agent_mut("n3").unwrap().stop().unwrap();
    let path = format!("{}/n3?force=true", api::NODES);
    let removed = cluster.agent("n1").unwrap().client().delete(&path, TIMEOUT).unwrap();
    assert_eq!(removed.status, 200);
    await_metrics(&cluster, &[("podwire_peers", 1.0), (&direct, 0.0), (&vxlan, 2.0)]);
    let counts = |cluster: &Cluster, node| {
        ["joined", "changed", "left"].map(|change| logged(cluster, &format!("peer {change}"), node).len())
    };
    assert_eq!(
        (counts(&cluster, "n2"), counts(&cluster, "n3"), counts(&cluster, "n1")),
        ([1, 0, 0], [1, 1, 1], [0; 3])
    );

    assert!(watch_age(&cluster) < TIMEOUT.as_secs_f64());
    cluster.etcd.members[0].kill().unwrap();
    await_metrics(&cluster, &[("podwire_store_reachable", 0.0)]);
    let age = watch_age(&cluster);
    await_that("the watch to get older", TIMEOUT, || watch_age(&cluster) > age + 1.0);
    // Routes are kept without the store.
    await_metrics(&cluster, &[("podwire_peers", 1.0), (&vxlan, 2.0)]);
    cluster.start_etcd().unwrap();
    await_metrics(&cluster, &[("podwire_store_reachable", 1.0)]);
    await_that("the watch to be confirmed", TIMEOUT, || watch_age(&cluster) < age);
    assert_eq!(counts(&cluster, "n2"), [1, 0, 0], "an outage is not a change of a peer");
}

#[test]
fn an_unmanaged_link_with_the_tunnels_name_is_never_used() {
    let mut cluster = Cluster::hosts("unmanaged", &plan()).unwrap();
    ip(cluster.node("n1").unwrap(), "link add pwvx4 type veth peer name other");
    cluster.start_etcd().unwrap();
    cluster.start_agents().unwrap();
    cluster.pods_everywhere(1).unwrap();
    let n1 = cluster.node("n1").unwrap();
    let unmanaged = inspect::link(n1, TUNNEL).unwrap();
    await_that("the condition", TIMEOUT, || {
        problems(cluster.agent("n1").unwrap())
            .iter()
            .any(|what| what.contains("cannot create tunnel pwvx4") && what.contains("rename or remove it"))
    });
    // Peers that need no tunnel are reachable.
    await_path(&cluster, ("p1", "p3"), PodPath::Direct, TIMEOUT);
    let without_tunnel = [("p1", "p3"), ("p3", "p1"), ("p2", "p3"), ("p3", "p2")];
    await_that("reachability without the tunnel of n1", TIMEOUT, || {
        let matrix = cluster.reach(PROBE_TIME).unwrap();
        without_tunnel.iter().all(|(from, to)| matrix.cell(from, to).unwrap().is_ok())
    });
    assert_eq!(inspect::link(n1, TUNNEL).unwrap(), unmanaged);
    // After the link is renamed, the agent creates its tunnel, and the condition ends.
    let streams = Streams::between(&cluster, &[("p1", "p3")]);
    ip(n1, "link set dev pwvx4 name other0");
    expect_reach(&cluster, TIMEOUT);
    streams.expect_no_loss();
    assert_eq!(inspect::link(n1, "other0").unwrap().index, unmanaged.index);
    await_that("the end of the condition", TIMEOUT, || problems(cluster.agent("n1").unwrap()).is_empty());
}
