//! A6: the bridge and its addresses.

use std::net::IpAddr;

use testkit::{Cluster, Extra, Plan, inspect, wait_until};

use super::records;
use crate::common::{TIMEOUT, expect_reach};

const BRIDGE: &str = "podwire0";

#[test]
fn a6_the_bridge_has_the_first_address_of_each_block_and_is_repaired() {
    let mode = |mode: &str| Extra {
        flags: ["--network-mode", mode, "--reconcile-seconds", "3600"].map(str::to_owned).to_vec(),
        ..Extra::default()
    };
    let each = [("n1".to_owned(), mode("routed")), ("n2".to_owned(), mode("bridge"))].into();
    let cluster = Cluster::up("bridge", &Plan { nodes: 2, each, ..Plan::default() }).unwrap();
    cluster.pods_everywhere(2).unwrap();
    let listed = records(&cluster, "/podwire");
    for name in ["n1", "n2"] {
        let node = cluster.node(name).unwrap();
        let first: Vec<IpAddr> = listed[name]
            .blocks
            .iter()
            .map(|block| block.hosts().find(|ip| *ip != block.network()).unwrap())
            .collect();
        let is_right = || {
            let link = inspect::link(node, BRIDGE)?;
            let mut addresses: Vec<IpAddr> = inspect::addresses(node, BRIDGE)?
                .into_iter()
                .filter(|address| address.scope == "global")
                .map(|address| address.net.addr())
                .collect();
            addresses.sort();
            Ok(link.kind() == Some("bridge") && link.is_up() && addresses == first)
        };
        assert!(is_right().unwrap(), "{name}: {:?}", inspect::addresses(node, BRIDGE));
        let (v4, v6) = (format!("{}/24", first[0]), format!("{}/72", first[1]));
        for drift in [
            vec!["addr", "del", &v4, "dev", BRIDGE],
            vec!["addr", "del", &v6, "dev", BRIDGE],
            vec!["addr", "flush", "dev", BRIDGE, "scope", "global"],
            vec!["link", "set", BRIDGE, "down"],
            vec!["link", "del", BRIDGE],
        ] {
            node.sh(&[vec!["ip"], drift.clone()].concat()).unwrap();
            let repaired = wait_until("the bridge to be repaired", TIMEOUT, is_right);
            assert!(repaired.is_ok(), "{name}: {drift:?}: {:?}", inspect::addresses(node, BRIDGE));
        }
    }
    expect_reach(&cluster, TIMEOUT);
}
