//! A3: a full node claims another block, and its pods are reachable there.

use ipnet::IpNet;
use model::{NodeRecord, Object as _};
use testkit::{Cluster, Plan, wait_until};

use super::{expect_consistent, problems, records};
use crate::common::{TIMEOUT, expect_reach};

/// Blocks with five addresses for pods, on nodes in two subnets.
fn tiny() -> Plan {
    let pods = ["10.9.0.0/24", "fd09::/120"].map(|net| net.parse().unwrap()).to_vec();
    Plan { nodes: 3, subnets: 2, pods, margin: 5, ..Plan::default() }
}

/// The number of pods that these blocks can address per family: all addresses but network, gateway and, for IPv4, broadcast.
fn capacities(blocks: &[IpNet]) -> [usize; 2] {
    let count = |v4| blocks.iter().filter(|block| block.addr().is_ipv4() == v4).count();
    [5 * count(true), 6 * count(false)]
}

#[test]
fn a3_a_full_node_claims_another_block_with_reachable_pods() {
    let mut cluster = Cluster::up("grow", &tiny()).unwrap();
    let before = records(&cluster, "/podwire");
    cluster.pod("n2", "far").unwrap();
    cluster.pod("n3", "near").unwrap();
    for number in 0..12 {
        cluster.pod("n1", &format!("p{number}")).unwrap();
    }
    let after = records(&cluster, "/podwire");
    let full = &after["n1"].blocks.to_vec();
    assert!(full.starts_with(&before["n1"].blocks.to_vec()), "the first blocks must stay first: {full:?}");
    let [v4, v6] = capacities(full);
    // One block may have been requested proactively.
    assert!((12..=20).contains(&v4) && (12..=18).contains(&v6), "12 pods: {full:?}");
    for name in ["n2", "n3"] {
        assert_eq!(after[name].blocks, before[name].blocks, "{name} is not full");
    }
    expect_consistent(&cluster, "/podwire");
    expect_reach(&cluster, TIMEOUT);

    // Without etcd, the existing blocks are used up. Then the failure is reported.
    cluster.etcd.members[0].kill().unwrap();
    let refused = (12..30).find_map(|number| cluster.pod("n1", &format!("p{number}")).err());
    let refused = format!("{:#}", refused.expect("a node without a store cannot claim blocks"));
    for part in ["no free address left in ", " in use", "remove pods", "no other block: "] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let pods = cluster.pods().iter().filter(|attached| attached.node == "n1").count();
    let saved = std::fs::read(cluster.node("n1").unwrap().dir().join("lib/podwire/node.json")).unwrap();
    let blocks = NodeRecord::decode(&saved).unwrap().blocks.to_vec();
    assert_eq!(Some(&pods), capacities(&blocks).iter().min(), "not all addresses were used: {blocks:?}");
    wait_until("a condition", TIMEOUT, || Ok(!problems(cluster.agent("n1").unwrap()).is_empty())).unwrap();
    expect_reach(&cluster, TIMEOUT);

    cluster.start_etcd().unwrap();
    wait_until("the node to claim another block", TIMEOUT, || Ok(cluster.pod("n1", "late").is_ok())).unwrap();
    expect_consistent(&cluster, "/podwire");
    expect_reach(&cluster, TIMEOUT);
}
