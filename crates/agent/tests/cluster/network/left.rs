//! What is left from before, and what another network of the same machine has.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use testkit::{Agent, Extra, Ns, Plan, inspect};

use super::{TUNNEL, Wiring, await_wiring, ip, mtu_of, peer_routes, problems, routes_to};
use crate::common::{SOON, TIMEOUT, await_that, expect_reach, up};

/// Longer than the pause between two attempts to add a route that the kernel refused.
const TRIES: Duration = Duration::from_secs(2);

/// n2 is behind a router: both ways are in use.
fn plan() -> Plan {
    Plan { subnets: 2, ..Plan::default() }
}

/// The blocks that n1's kernel leads to a pod's node by.
fn blocks_of(ns: &Ns, cluster: &testkit::Cluster, pod: &str) -> Vec<IpNet> {
    let routes = routes_to(ns, cluster, pod);
    routes.iter().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn two_agents_of_one_machine_leave_each_others_routes_alone() {
    // Pods whose links carry more than the tunnel: the firewall has to know it.
    let large = "--network-mtu=1500";
    let all = Extra { flags: vec![large.to_owned()], ..Extra::default() };
    let cluster = up("twice", &Plan { all, ..plan() });
    let n1 = cluster.node("n1").unwrap();
    let before = peer_routes(n1);
    // Somebody else's, of a network that neither of them knows.
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
    // Both look at everything: each removes what is left of its own network.
    for (route, place) in [("10.42.250.0/24", "10.42.250"), ("10.77.250.0/24", "10.77.250")] {
        ip(n1, &format!("route add {route} via 10.199.1.254 proto 113 metric 77"));
        await_that("a stale route to go", SOON, || !peer_routes(n1).iter().any(|line| line.contains(place)));
    }
    assert_eq!(peer_routes(n1), all);
    assert!(clamped().contains("pwvx4") && clamped().contains("red4"), "{}", clamped());
    expect_reach(&cluster, SOON);
}

/// As an agent leaves it that is killed after it made the device.
#[test]
fn a_tunnel_that_lost_its_mark_is_ours_all_the_same() {
    let mut cluster = up("unmarked", &plan());
    let n1 = (**cluster.node("n1").unwrap()).clone();
    let (before, index) = (Wiring::of(&n1).unwrap(), inspect::link(&n1, TUNNEL).unwrap().index);
    cluster.kill_agent("n1").unwrap();
    n1.sh(&["ip", "link", "set", "dev", TUNNEL, "alias", ""]).unwrap();
    ip(&n1, "link set dev pwvx4 down");
    cluster.start_agent("n1").unwrap();
    await_wiring(&n1, &before, "a mark that was lost", SOON);
    assert_eq!(inspect::link(&n1, TUNNEL).unwrap().index, index);
    expect_reach(&cluster, SOON);
    assert_eq!(problems(cluster.agent("n1").unwrap()), [""; 0]);
}

/// As it is on a node whose block went to another.
#[test]
fn an_address_of_another_nodes_block_on_the_tunnel_goes() {
    let cluster = up("foreignblock", &plan());
    let n1 = cluster.node("n1").unwrap();
    let before = Wiring::of(n1).unwrap();
    for block in blocks_of(n1, &cluster, "p2").iter().filter(|block| block.addr().is_ipv4()) {
        ip(n1, &format!("addr add {}/32 dev {TUNNEL}", block.network()));
    }
    await_wiring(n1, &before, "another's address on the tunnel", SOON);
    expect_reach(&cluster, SOON);
}

#[test]
fn what_the_kernel_refuses_is_told_once_and_no_longer_when_it_is_done() {
    let cluster = up("refused", &plan());
    let n1 = cluster.node("n1").unwrap();
    let before = peer_routes(n1);
    let blocks = blocks_of(n1, &cluster, "p2");
    let taken: IpAddr = blocks.iter().map(IpNet::network).find(IpAddr::is_ipv4).unwrap();
    // No gateway can be an address of one's own.
    ip(n1, &format!("addr add {taken}/32 dev lo"));
    ip(n1, "route flush proto 113");
    let agent = cluster.agent("n1").unwrap();
    let told = || problems(agent).iter().any(|what| what.contains(&taken.to_string()));
    await_that("the refusal to be told", SOON, told);
    let of_it = |log: String| log.lines().filter(|line| line.contains("invalid gateway")).count();
    // The agent tries again several times meanwhile.
    std::thread::sleep(TRIES);
    assert_eq!(of_it(agent.log().unwrap()), 1, "{}", agent.log().unwrap());
    ip(n1, &format!("addr del {taken}/32 dev lo"));
    await_that("the route to be back", SOON, || peer_routes(n1) == before);
    await_that("nothing to be told", SOON, || problems(agent).is_empty());
    expect_reach(&cluster, SOON);
}

#[test]
fn pods_of_a_node_that_boots_before_its_link_has_an_address_fit_into_the_tunnel() {
    let mut cluster = up("early", &Plan { mtu: 1400, ..plan() });
    let n1 = (**cluster.node("n1").unwrap()).clone();
    let fits = mtu_of(&crate::common::pod(&cluster, "p1").pod, "eth0");
    assert_eq!(fits, 1350);
    cluster.remove_pod("p1").unwrap();
    let file = cluster.node("n1").unwrap().dir().join("lib/podwire/mtu");
    for (name, known, mtu) in [("p8", true, fits), ("p9", false, 1430)] {
        cluster.kill_agent("n1").unwrap();
        // As after a boot: nothing has a size yet.
        ip(&n1, "addr flush dev eth0");
        ip(&n1, "link del dev podwire0");
        if !known {
            std::fs::remove_file(&file).unwrap();
        }
        cluster.start_agent("n1").unwrap();
        assert_eq!(mtu_of(&cluster.pod("n1", name).unwrap().pod, "eth0"), mtu, "known: {known}");
        cluster.remove_pod(name).unwrap();
    }
}

/// A link that flaps says nothing about its size.
#[test]
fn pods_of_a_node_whose_link_lost_its_address_fit_into_the_tunnel() {
    let cluster = up("flapped", &Plan { mtu: 1400, ..plan() });
    let n1 = cluster.node("n1").unwrap();
    let before = std::fs::read_to_string(n1.dir().join("lib/podwire/mtu")).unwrap();
    assert_eq!(before, "1350\n");
    cluster.remove_pod("p1").unwrap();
    let routes = peer_routes(n1);
    ip(n1, "addr flush dev eth0");
    await_that("the agent to look", SOON, || peer_routes(n1) != routes);
    await_that("the problem to be told", SOON, || {
        problems(cluster.agent("n1").unwrap())
            .iter()
            .any(|what| what.contains("was removed, and it has no other IPv4 address"))
    });
    ip(n1, "link del dev podwire0");
    assert_eq!(mtu_of(&cluster.pod("n1", "p8").unwrap().pod, "eth0"), 1350);
}
