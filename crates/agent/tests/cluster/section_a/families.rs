//! A3: networks with one family, on an underlay with the same family only. Most other tests use both families.

use testkit::{Cluster, Families, Plan};

use super::{expect_consistent, records};
use crate::common::{TIMEOUT, expect_reach};

fn one_family(label: &str, underlay: Families, net: &str) {
    let pods = vec![net.parse().unwrap()];
    let plan = Plan { nodes: 3, subnets: 2, underlay, pods, ..Plan::default() };
    let cluster = Cluster::up(label, &plan).unwrap();
    for record in records(&cluster, "/podwire").values() {
        assert_eq!((record.blocks.len(), record.addresses.len()), (1, 1), "{record:?}");
        assert!(plan.pods[0].contains(&record.blocks.to_vec()[0]), "{record:?}");
    }
    expect_consistent(&cluster, "/podwire");
    cluster.pods_everywhere(1).unwrap();
    expect_reach(&cluster, TIMEOUT);
}

#[test]
fn a3_an_ipv4_only_network_works() {
    one_family("only-v4", Families::V4, "10.42.0.0/16");
}

#[test]
fn a3_an_ipv6_only_network_works() {
    one_family("only-v6", Families::V6, "fd42::/64");
}
