//! A5: a route to every other node's block, as the nodes' records say, by addresses alone.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use testkit::{Cluster, Ns, Plan, inspect, wait_until};

use super::{peer_routes, shares};
use crate::common::{TIMEOUT, expect_reach};

/// Names of nodes resolve to nothing here, and nobody is to ask.
const COUNT_QUESTIONS: &str = "table inet names { chain c { type filter hook output priority 0; \
     meta l4proto { tcp, udp } th dport 53 counter; }; }";

/// Where a node sends what is for other nodes' blocks: the outer address, whichever transport takes it there.
fn targets(node: &Ns) -> BTreeMap<IpNet, IpAddr> {
    let routes = peer_routes(node);
    let count = routes.len();
    let neighbours = inspect::neighbours(node).unwrap();
    let behind = |(block, gateway, dev): (IpNet, IpAddr, String)| {
        if dev == "eth0" {
            return Some((block, gateway));
        }
        let mac = neighbours.iter().find(|entry| entry.dev == dev && entry.dst == gateway)?.mac.clone()?;
        // The device may be made anew just now.
        let fdb = node.json(&["bridge", "-j", "fdb", "show", "dev", &dev]).ok()?;
        let mut entries = fdb.as_array().unwrap().iter().filter(|entry| entry["mac"] == mac.as_str());
        let outer = entries.next()?["dst"].as_str()?.parse().ok()?;
        assert_eq!(entries.next(), None, "{mac} is in two places: {fdb}");
        Some((block, outer))
    };
    let found: BTreeMap<IpNet, IpAddr> = routes.into_iter().filter_map(behind).collect();
    if found.len() == count { found } else { BTreeMap::new() }
}

/// What they should be. A tunnel is between IPv4 addresses where there are any.
fn wanted(cluster: &Cluster, here: &str, at: &BTreeMap<&str, [IpAddr; 2]>) -> BTreeMap<IpNet, IpAddr> {
    let mut wanted = BTreeMap::new();
    for (name, blocks) in shares(cluster.agent(here).unwrap()).iter().filter(|(name, _)| *name != here) {
        let is_direct = cluster.subnet(here).unwrap() == cluster.subnet(name).unwrap();
        for block in blocks {
            let by_v6 = is_direct && block.addr().is_ipv6();
            wanted.insert(*block, at[name.as_str()][usize::from(by_v6)]);
        }
    }
    wanted
}

#[track_caller]
fn expect_routes(cluster: &Cluster, names: &[&str], at: &BTreeMap<&str, [IpAddr; 2]>) {
    for name in names {
        let (node, wanted) = (cluster.node(name).unwrap(), wanted(cluster, name, at));
        assert_eq!(wanted.len(), 2 * (names.len() - 1));
        let same = wait_until("the routes", TIMEOUT, || Ok(targets(node) == wanted));
        assert!(same.is_ok(), "{name}: {:?} instead of {wanted:?}", targets(node));
    }
}

/// Gives a node other addresses on the subnet it is in.
fn move_to(cluster: &Cluster, name: &str, host: u8) -> [IpAddr; 2] {
    let (node, subnet) = (cluster.node(name).unwrap(), cluster.subnet(name).unwrap());
    let old = cluster.addresses(name).unwrap();
    let new = [format!("10.199.{subnet}.{host}"), format!("fd99:{subnet}::{host:x}")];
    // Else the new one goes with the old one, whose subnet it shares.
    node.sh(&["sysctl", "-qw", "net.ipv4.conf.eth0.promote_secondaries=1"]).unwrap();
    for ((new, old), length) in new.iter().zip(&old).zip([24, 64]) {
        let nodad: &[&str] = if old.is_ipv6() { &["nodad"] } else { &[] };
        node.sh(&[&["ip", "addr", "add", &format!("{new}/{length}"), "dev", "eth0"], nodad].concat())
            .unwrap();
        node.sh(&["ip", "addr", "del", &format!("{old}/{length}"), "dev", "eth0"]).unwrap();
    }
    new.map(|address| address.parse().unwrap())
}

fn routes_follow_the_records(plan: &Plan, moving: &[&str], leaving: &str) {
    let mut cluster = Cluster::hosts("routes", plan).unwrap();
    let names = plan.node_names();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    for name in &names {
        cluster.node(name).unwrap().sh(&["nft", COUNT_QUESTIONS]).unwrap();
    }
    cluster.start_etcd().unwrap();
    cluster.start_agents().unwrap();
    cluster.pods_everywhere(1).unwrap();
    let mut at: BTreeMap<&str, [IpAddr; 2]> =
        names.iter().map(|name| (*name, cluster.addresses(name).unwrap().try_into().unwrap())).collect();
    expect_routes(&cluster, &names, &at);
    expect_reach(&cluster, TIMEOUT);

    for (name, host) in moving.iter().zip(77..) {
        at.insert(name, move_to(&cluster, name, host));
    }
    expect_routes(&cluster, &names, &at);
    expect_reach(&cluster, TIMEOUT);

    cluster.kill_node(leaving).unwrap();
    expect_routes_of_others_stay(&cluster, (&names, leaving), &at);
    let asked = if leaving == "n1" { "n2" } else { "n1" };
    let socket = cluster.agent(asked).unwrap().socket().display().to_string();
    let removed = cluster
        .agent(asked)
        .unwrap()
        .podwire(&["node", "rm", leaving, "--force", "--socket", &socket])
        .unwrap();
    assert!(removed.success(), "{}", removed.stderr);
    names.retain(|name| *name != leaving);
    expect_routes(&cluster, &names, &at);
    let gone = at[leaving].map(|address| address.to_string());
    for name in &names {
        let fdb = cluster.node(name).unwrap().sh(&["bridge", "fdb", "show"]).unwrap();
        assert!(!gone.iter().any(|address| fdb.contains(&format!("dst {address} "))), "{name}: {fdb}");
        let asked = cluster.node(name).unwrap().sh(&["nft", "list", "table", "inet", "names"]).unwrap();
        assert!(asked.contains("counter packets 0 "), "{name}: somebody asked for a name: {asked}");
    }
    expect_reach(&cluster, TIMEOUT);
}

/// A node without power is not gone for good: its pods come back, and their routes are there.
fn expect_routes_of_others_stay(
    cluster: &Cluster,
    (names, leaving): (&[&str], &str),
    at: &BTreeMap<&str, [IpAddr; 2]>,
) {
    for name in names.iter().filter(|name| **name != leaving) {
        assert_eq!(targets(cluster.node(name).unwrap()), wanted(cluster, name, at), "{name}");
    }
}

/// n1 and n3 are on-link for each other, n2 is behind a router.
#[test]
fn a5_every_block_has_a_route_to_its_node_which_follows_it_and_goes_with_it() {
    let plan = Plan { subnets: 2, ..Plan::default() };
    routes_follow_the_records(&plan, &["n2", "n3"], "n2");
}
