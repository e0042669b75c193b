//! A5: a route to every block of a peer, based only on the addresses in the records.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use testkit::{Cluster, Ns, Plan, inspect, wait_until};

use super::{node_blocks, peer_routes};
use crate::common::{TIMEOUT, expect_reach};

/// Counts DNS queries. Node names do not resolve here, and no process may query them.
const COUNT_DNS_QUERIES: &str = "table inet names { chain c { type filter hook output priority 0; \
     meta l4proto { tcp, udp } th dport 53 counter; }; }";

/// The outer destination address for each block of a peer, with any transport.
fn targets(node: &Ns) -> BTreeMap<IpNet, IpAddr> {
    let routes = peer_routes(node);
    let count = routes.len();
    let neighbours = inspect::neighbours(node).unwrap();
    let resolve = |(block, gateway, dev): (IpNet, IpAddr, String)| {
        if dev == "eth0" {
            return Some((block, gateway));
        }
        let mac = neighbours.iter().find(|entry| entry.dev == dev && entry.dst == gateway)?.mac.clone()?;
        // The device may be recreated at this moment.
        let fdb = node.json(&["bridge", "-j", "fdb", "show", "dev", &dev]).ok()?;
        let mut entries = fdb.as_array().unwrap().iter().filter(|entry| entry["mac"] == mac.as_str());
        let outer = entries.next()?["dst"].as_str()?.parse().ok()?;
        assert_eq!(entries.next(), None, "{mac} has two entries: {fdb}");
        Some((block, outer))
    };
    let resolved: BTreeMap<IpNet, IpAddr> = routes.into_iter().filter_map(resolve).collect();
    if resolved.len() == count { resolved } else { BTreeMap::new() }
}

/// The expected targets. A tunnel uses IPv4 addresses if there are any.
fn expected_targets(
    cluster: &Cluster,
    local: &str,
    at: &BTreeMap<&str, [IpAddr; 2]>,
) -> BTreeMap<IpNet, IpAddr> {
    let mut expected = BTreeMap::new();
    for (name, blocks) in node_blocks(cluster.agent(local).unwrap()).iter().filter(|(name, _)| *name != local)
    {
        let is_direct = cluster.subnet(local).unwrap() == cluster.subnet(name).unwrap();
        for block in blocks {
            let by_v6 = is_direct && block.addr().is_ipv6();
            expected.insert(*block, at[name.as_str()][usize::from(by_v6)]);
        }
    }
    expected
}

#[track_caller]
fn expect_routes(cluster: &Cluster, names: &[&str], at: &BTreeMap<&str, [IpAddr; 2]>) {
    for name in names {
        let (node, expected) = (cluster.node(name).unwrap(), expected_targets(cluster, name, at));
        assert_eq!(expected.len(), 2 * (names.len() - 1));
        let same = wait_until("the routes", TIMEOUT, || Ok(targets(node) == expected));
        assert!(same.is_ok(), "{name}: {:?} instead of {expected:?}", targets(node));
    }
}

/// Gives a node other addresses in its subnet.
fn move_to(cluster: &Cluster, name: &str, host: u8) -> [IpAddr; 2] {
    let (node, subnet) = (cluster.node(name).unwrap(), cluster.subnet(name).unwrap());
    let old = cluster.addresses(name).unwrap();
    let new = [format!("10.199.{subnet}.{host}"), format!("fd99:{subnet}::{host:x}")];
    // Otherwise the kernel removes the new address together with the old one of the same subnet.
    node.sh(&["sysctl", "-qw", "net.ipv4.conf.eth0.promote_secondaries=1"]).unwrap();
    for ((new, old), length) in new.iter().zip(&old).zip([24, 64]) {
        let nodad: &[&str] = if old.is_ipv6() { &["nodad"] } else { &[] };
        node.sh(&[&["ip", "addr", "add", &format!("{new}/{length}"), "dev", "eth0"], nodad].concat())
            .unwrap();
        node.sh(&["ip", "addr", "del", &format!("{old}/{length}"), "dev", "eth0"]).unwrap();
    }
    new.map(|address| address.parse().unwrap())
}

fn routes_follow_the_records(plan: &Plan, moving: &[&str], removed_node: &str) {
    let mut cluster = Cluster::hosts("routes", plan).unwrap();
    let names = plan.node_names();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    for name in &names {
        cluster.node(name).unwrap().sh(&["nft", COUNT_DNS_QUERIES]).unwrap();
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

    cluster.kill_node(removed_node).unwrap();
    expect_routes_unchanged(&cluster, (&names, removed_node), &at);
    let remaining = if removed_node == "n1" { "n2" } else { "n1" };
    let socket = cluster.agent(remaining).unwrap().socket().display().to_string();
    let removed = cluster
        .agent(remaining)
        .unwrap()
        .podwire(&["node", "rm", removed_node, "--force", "--socket", &socket])
        .unwrap();
    assert!(removed.success(), "{}", removed.stderr);
    names.retain(|name| *name != removed_node);
    expect_routes(&cluster, &names, &at);
    let addresses = at[removed_node].map(|address| address.to_string());
    for name in &names {
        let fdb = cluster.node(name).unwrap().sh(&["bridge", "fdb", "show"]).unwrap();
        assert!(!addresses.iter().any(|address| fdb.contains(&format!("dst {address} "))), "{name}: {fdb}");
        let counted = cluster.node(name).unwrap().sh(&["nft", "list", "table", "inet", "names"]).unwrap();
        assert!(counted.contains("counter packets 0 "), "{name}: a name was resolved: {counted}");
    }
    expect_reach(&cluster, TIMEOUT);
}

/// A node without power is not removed: routes to its pods stay, because the pods will return.
fn expect_routes_unchanged(
    cluster: &Cluster,
    (names, stopped_node): (&[&str], &str),
    at: &BTreeMap<&str, [IpAddr; 2]>,
) {
    for name in names.iter().filter(|name| **name != stopped_node) {
        assert_eq!(targets(cluster.node(name).unwrap()), expected_targets(cluster, name, at), "{name}");
    }
}

/// n1 and n3 are on-link, n2 is behind a router.
#[test]
fn a5_routes_to_blocks_follow_their_nodes_and_are_removed_with_them() {
    let plan = Plan { subnets: 2, ..Plan::default() };
    routes_follow_the_records(&plan, &["n2", "n3"], "n2");
}
