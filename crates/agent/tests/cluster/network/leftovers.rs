//! Leftovers of earlier agents, and objects of another network on the same node.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use testkit::{Agent, Extra, Ns, Plan, inspect};

use super::{PeerObjects, TUNNEL, await_peer_objects, ip, mtu_of, peer_routes, problems, routes_to};
use crate::common::{TIMEOUT, await_that, expect_reach, up};

/// Longer than the delay between two attempts to add a route that the kernel refused.
const RETRIES: Duration = Duration::from_secs(2);

/// n2 is behind a router, so both transports are in use.
fn plan() -> Plan {
    Plan { subnets: 2, ..Plan::default() }
}

/// The blocks of a pod's node, from the routes of a node.
fn blocks_of(ns: &Ns, cluster: &testkit::Cluster, pod: &str) -> Vec<IpNet> {
    let routes = routes_to(ns, cluster, pod);
    routes.iter().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn two_agents_on_one_node_keep_each_others_routes() {
    // Pods with a larger MTU than the tunnel, so that the firewall has to clamp connections.
    let large = "--network-mtu=1500";
    let all = Extra { flags: vec![large.to_owned()], ..Extra::default() };
    let cluster = up("twice", &Plan { all, ..plan() });
    let n1 = cluster.node("n1").unwrap();
    let before = peer_routes(n1);
    // Unmanaged routes to networks that neither agent knows.
    ip(n1, "route add 203.0.113.0/24 via 10.199.1.254 proto 113 metric 77");
    ip(n1, "-6 route add 2001:db8:7::/64 via fd99:1::fe dev eth0 proto 113 metric 77");
    let all = peer_routes(n1);
    assert_eq!(all.len(), before.len() + 2);
    let dir = n1.dir().join("red");
    let store = dir.join("store").display().to_string();
    let flags = [
        "--install=false",
        "--node=n1",
        "--store=embedded",
        &format!("--store-dir={store}"),
        "--network-name=red",
        "--network-bridge=red0",
        "--network-subnet=10.77.0.0/16,fd77::/64",
        "--network-margin=8",
        "--network-tunnel=red",
        "--network-vni=77",
        large,
    ];
    let mut red = Agent::in_dir(n1, &dir, &flags).unwrap();
    red.launch().unwrap();
    red.wait_ready().unwrap();
    let clamped = || n1.sh(&["nft", "list", "ruleset"]).unwrap();
    await_that("both tunnels to be known", TIMEOUT, || {
        clamped().contains("pwvx4") && clamped().contains("red4")
    });
    // Each agent removes a stale route of its own network.
    for (route, part) in [("10.42.250.0/24", "10.42.250"), ("10.77.250.0/24", "10.77.250")] {
        ip(n1, &format!("route add {route} via 10.199.1.254 proto 113 metric 77"));
        await_that("the removal of a stale route", TIMEOUT, || {
            !peer_routes(n1).iter().any(|line| line.contains(part))
        });
    }
    assert_eq!(peer_routes(n1), all);
    assert!(clamped().contains("pwvx4") && clamped().contains("red4"), "{}", clamped());
    expect_reach(&cluster, TIMEOUT);
}

/// An agent may be killed after it created the device and before it set the alias.
#[test]
fn a_tunnel_without_alias_is_still_managed() {
    let mut cluster = up("unmarked", &plan());
    let n1 = (**cluster.node("n1").unwrap()).clone();
    let (before, index) = (PeerObjects::of(&n1).unwrap(), inspect::link(&n1, TUNNEL).unwrap().index);
    cluster.kill_agent("n1").unwrap();
    n1.sh(&["ip", "link", "set", "dev", TUNNEL, "alias", ""]).unwrap();
    ip(&n1, "link set dev pwvx4 down");
    cluster.start_agent("n1").unwrap();
    await_peer_objects(&n1, &before, "the loss of the alias", TIMEOUT);
    assert_eq!(inspect::link(&n1, TUNNEL).unwrap().index, index);
    expect_reach(&cluster, TIMEOUT);
    assert_eq!(problems(cluster.agent("n1").unwrap()), [""; 0]);
}

/// For example on a node whose former block belongs to another node.
#[test]
fn an_address_of_another_nodes_block_is_removed_from_the_tunnel() {
    let cluster = up("otherblock", &plan());
    let n1 = cluster.node("n1").unwrap();
    let before = PeerObjects::of(n1).unwrap();
    for block in blocks_of(n1, &cluster, "p2").iter().filter(|block| block.addr().is_ipv4()) {
        ip(n1, &format!("addr add {}/32 dev {TUNNEL}", block.network()));
    }
    await_peer_objects(n1, &before, "an address of another node's block", TIMEOUT);
    expect_reach(&cluster, TIMEOUT);
}

#[test]
fn a_refused_route_is_logged_once_and_reported_until_it_is_added() {
    let cluster = up("refused", &plan());
    let n1 = cluster.node("n1").unwrap();
    let before = peer_routes(n1);
    let blocks = blocks_of(n1, &cluster, "p2");
    let local: IpAddr = blocks.iter().map(IpNet::network).find(IpAddr::is_ipv4).unwrap();
    // The kernel refuses a local address as gateway.
    ip(n1, &format!("addr add {local}/32 dev lo"));
    ip(n1, "route flush proto 113");
    let agent = cluster.agent("n1").unwrap();
    let is_reported = || problems(agent).iter().any(|message| message.contains(&local.to_string()));
    await_that("the condition", TIMEOUT, is_reported);
    let of_it = |log: String| log.lines().filter(|line| line.contains("invalid gateway")).count();
    // The agent retries several times meanwhile.
    std::thread::sleep(RETRIES);
    assert_eq!(of_it(agent.log().unwrap()), 1, "{}", agent.log().unwrap());
    ip(n1, &format!("addr del {local}/32 dev lo"));
    await_that("the route to be restored", TIMEOUT, || peer_routes(n1) == before);
    await_that("no condition", TIMEOUT, || problems(agent).is_empty());
    expect_reach(&cluster, TIMEOUT);
}

#[test]
fn pods_fit_into_the_tunnel_if_the_node_boots_without_an_address() {
    let mut cluster = up("early", &Plan { mtu: 1400, ..plan() });
    let n1 = (**cluster.node("n1").unwrap()).clone();
    let expected = mtu_of(&crate::common::pod(&cluster, "p1").pod, "eth0");
    assert_eq!(expected, 1350);
    cluster.remove_pod("p1").unwrap();
    let file = cluster.node("n1").unwrap().dir().join("lib/podwire/mtu");
    for (name, is_saved, mtu) in [("p8", true, expected), ("p9", false, 1430)] {
        cluster.kill_agent("n1").unwrap();
        // Like after a boot: neither underlay nor bridge determine an MTU.
        ip(&n1, "addr flush dev eth0");
        ip(&n1, "link del dev podwire0");
        if !is_saved {
            std::fs::remove_file(&file).unwrap();
        }
        cluster.start_agent("n1").unwrap();
        assert_eq!(mtu_of(&cluster.pod("n1", name).unwrap().pod, "eth0"), mtu, "saved: {is_saved}");
        cluster.remove_pod(name).unwrap();
    }
}

/// A flapping link does not change the MTU of pods.
#[test]
fn pods_fit_into_the_tunnel_after_the_link_lost_its_address() {
    let cluster = up("flapped", &Plan { mtu: 1400, ..plan() });
    let n1 = cluster.node("n1").unwrap();
    let before = std::fs::read_to_string(n1.dir().join("lib/podwire/mtu")).unwrap();
    assert_eq!(before, "1350\n");
    cluster.remove_pod("p1").unwrap();
    let routes = peer_routes(n1);
    ip(n1, "addr flush dev eth0");
    await_that("the routes to change", TIMEOUT, || peer_routes(n1) != routes);
    await_that("the condition", TIMEOUT, || {
        problems(cluster.agent("n1").unwrap())
            .iter()
            .any(|what| what.contains("was removed, and it has no other IPv4 address"))
    });
    ip(n1, "link del dev podwire0");
    assert_eq!(mtu_of(&cluster.pod("n1", "p8").unwrap().pod, "eth0"), 1350);
}

/// The store refuses the node. Its running pods keep their routes, tunnel and accepted sources.
#[test]
fn a1_a_node_with_another_margin_or_vni_keeps_its_paths() {
    let vni = "4078";
    let flags = ["--network-vni", vni].map(str::to_owned).to_vec();
    let mut cluster = up("mismatch", &Plan { all: Extra { flags, ..Extra::default() }, ..plan() });
    let n1 = (**cluster.node("n1").unwrap()).clone();
    let table = || n1.sh(&["nft", "-s", "list", "table", "inet", "podwire-peers-podwire"]).unwrap();
    let (before, rules) = (PeerObjects::of(&n1).unwrap(), table());
    for (flag, right, wrong) in [("--network-margin", "8", "6"), ("--network-vni", vni, "4099")] {
        cluster.kill_agent("n1").unwrap();
        let agent = cluster.agent_mut("n1").unwrap();
        agent.set_flag(flag, wrong).unwrap();
        agent.launch().unwrap();
        await_that("the mismatch to be reported", TIMEOUT, || {
            agent.get(api::STATUS).is_ok_and(|status| status.to_string().contains("NetworkMismatch"))
        });
        // The peers thread answers after its first comparison.
        agent.get(api::ROUTES).unwrap();
        assert_eq!(PeerObjects::of(&n1).as_ref(), Some(&before), "{flag}");
        assert_eq!(table(), rules, "{flag}");
        let status = agent.get(api::STATUS).unwrap().to_string();
        assert!(!status.contains("PeerRecordRefused"), "{status}");
        expect_reach(&cluster, TIMEOUT);
        cluster.kill_agent("n1").unwrap();
        cluster.agent_mut("n1").unwrap().set_flag(flag, right).unwrap();
        cluster.start_agent("n1").unwrap();
    }
}
