//! A3, A4: each node keeps its own block.

use std::collections::BTreeSet;

use testkit::{Cluster, Extra, LabStore, Plan, wait_until};

use super::{
    Registry, etcdctl, expect_consistent, kill_and_expire, node_blocks, peer_routes, problems, records,
    status, stored,
};
use crate::common::{TIMEOUT, expect_reach};

#[test]
fn a3_a_node_keeps_its_block_after_restarts_boots_and_disk_loss() {
    for (store, names) in [(LabStore::Etcd { members: 1 }, &["n1", "n2"][..]), (LabStore::Embedded, &["n1"])]
    {
        let mut cluster =
            Cluster::up("same", &Plan { nodes: names.len(), store, ..Plan::default() }).unwrap();
        let before = node_blocks(cluster.agent("n1").unwrap());
        assert_eq!(before.values().collect::<BTreeSet<_>>().len(), names.len());
        let expect_same = |cluster: &Cluster, what: &str| {
            for name in names {
                assert_eq!(node_blocks(cluster.agent(name).unwrap()), before, "{store:?}: {what}");
            }
        };
        cluster.kill_agent("n1").unwrap();
        for name in &names[1..] {
            cluster.agent_mut(name).unwrap().stop().unwrap();
        }
        // In reverse order.
        for name in names.iter().rev() {
            cluster.start_agent(name).unwrap();
        }
        expect_same(&cluster, "restarts");
        cluster.kill_node("n1").unwrap();
        cluster.start_node("n1").unwrap();
        expect_same(&cluster, "a boot: /run is empty");
        if store != LabStore::Embedded {
            kill_and_expire(&mut cluster, "n2");
            std::fs::remove_dir_all(cluster.node("n2").unwrap().dir().join("lib")).unwrap();
            cluster.start_agent("n2").unwrap();
            expect_same(&cluster, "a new disk: only the store has the block");
            expect_consistent(&cluster, "/podwire");
        }
    }
}

/// The counter is only the start of the search. Here it has invalid values.
#[test]
fn a3_nodes_that_join_concurrently_get_different_blocks_with_any_counter() {
    const COUNTER: &str = "elsewhere/count";
    let env = [("ETCD_COUNTER_KEY".to_owned(), COUNTER.to_owned())].to_vec();
    let all = Extra { env, ..Extra::default() };
    let mut cluster = Cluster::hosts("counter", &Plan { nodes: 12, all, ..Plan::default() }).unwrap();
    cluster.start_etcd().unwrap();
    let names = cluster.node_names();
    for (half, invalid) in names.chunks(6).zip(["-1", "18446744073709551616 invalid"]) {
        // This also resets its version, so that the next node starts where an earlier one did.
        etcdctl(&cluster, &["del", COUNTER]);
        etcdctl(&cluster, &["put", COUNTER, "--", invalid]);
        for name in half {
            cluster.agent_mut(name).unwrap().launch().unwrap();
        }
        for name in half {
            cluster.agent_mut(name).unwrap().wait_ready().unwrap();
        }
    }
    let listed = records(&cluster, "/podwire");
    let blocks: BTreeSet<_> = listed.values().flat_map(|record| record.blocks.to_vec()).collect();
    assert_eq!((listed.len(), blocks.len()), (12, 24), "{listed:?}");
    expect_consistent(&cluster, "/podwire");
    assert!(stored(&cluster, "/podwire/counter").is_empty(), "the configured counter key must be used");
    let counted = etcdctl(&cluster, &["get", COUNTER, "-w", "json"]);
    assert!(
        counted.contains(r#""version":7"#),
        "one PUT of the test and one of each of six nodes: {counted}"
    );
}

/// Two blocks, three nodes.
#[test]
fn a3_missing_free_blocks_are_reported_and_node_rm_frees_one() {
    let pods = ["10.9.0.0/28", "fd09::/124"].map(|net| net.parse().unwrap()).to_vec();
    let mut cluster = Cluster::hosts("full", &Plan { pods, margin: 1, ..Plan::default() }).unwrap();
    cluster.start_etcd().unwrap();
    for name in ["n1", "n2"] {
        cluster.start_agent(name).unwrap();
    }
    let first = records(&cluster, "/podwire")["n1"].blocks.clone();
    cluster.agent_mut("n3").unwrap().launch().unwrap();
    let parts = ["all 2 blocks of 10.9.0.0/28 are in use", "podwire node rm NAME", "a larger subnet"];
    let has_all = |text: &str| parts.iter().all(|part| text.contains(part));
    wait_until("n3 to report why it has no block", TIMEOUT, || {
        let ready = cluster.agent("n3")?.client().get(api::READY, TIMEOUT)?;
        Ok(ready.status == 503 && has_all(&String::from_utf8_lossy(&ready.body)))
    })
    .unwrap();
    let refused = status(&cluster, "n3").error().unwrap();
    assert!(refused.code == 50 && has_all(&format!("{} {}", refused.msg, refused.details)), "{refused:?}");
    let reported = problems(cluster.agent("n3").unwrap());
    assert!(reported.iter().any(|problem| has_all(problem["message"].as_str().unwrap())), "{reported:?}");

    // A full node cannot claim another block either.
    for number in 0..5 {
        cluster.pod("n1", &format!("p{number}")).unwrap();
    }
    let full = format!("{:#}", cluster.pod("n1", "p5").unwrap_err());
    assert!(full.contains("no free address left in 10.9.0.") && full.contains("remove pods"), "{full}");
    let refused = status(&cluster, "n1").error().unwrap();
    assert!(refused.code == 50 && refused.msg.contains("no free address left"), "{refused:?}");

    let socket = cluster.agent("n2").unwrap().socket().display().to_string();
    let remove = |cluster: &Cluster| {
        cluster.agent("n2").unwrap().podwire(&["node", "rm", "n1", "--socket", &socket]).unwrap()
    };
    let alive = remove(&cluster);
    assert!(!alive.success() && alive.stderr.contains("alive"), "{alive:?}");
    kill_and_expire(&mut cluster, "n1");
    let removed = remove(&cluster);
    assert!(removed.success() && first.iter().all(|block| removed.stdout.contains(&block.to_string())));
    cluster.agent_mut("n3").unwrap().wait_ready().unwrap();
    let listed = records(&cluster, "/podwire");
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["n2", "n3"]);
    assert_eq!(listed["n3"].blocks, first);
    expect_consistent(&cluster, "/podwire");
    wait_until("no condition", TIMEOUT, || Ok(problems(cluster.agent("n3")?).is_empty())).unwrap();
}

#[test]
fn a4_prefixes_are_separate_clusters_with_their_own_nodes_and_blocks() {
    let with_prefix = |prefix: &str| Extra {
        flags: ["--etcd-prefix", prefix].map(str::to_owned).to_vec(),
        ..Extra::default()
    };
    let each = [("n1", "/hosts"), ("n2", "/hosts"), ("n3", "/hosts2"), ("n4", "/hosts2")];
    let each = each.map(|(name, prefix)| (name.to_owned(), with_prefix(prefix))).into();
    let cluster = Cluster::up("prefix", &Plan { nodes: 4, each, ..Plan::default() }).unwrap();
    for (prefix, names) in [("/hosts", ["n1", "n2"]), ("/hosts2", ["n3", "n4"])] {
        let listed = records(&cluster, prefix);
        assert_eq!(listed.keys().collect::<Vec<_>>(), names);
        expect_consistent(&cluster, prefix);
        for (local, peer) in [(0, 1), (1, 0)] {
            let (node, other) = (names[local], &listed[names[peer]]);
            assert_eq!(other.addresses, cluster.addresses(names[peer]).unwrap());
            assert_eq!(node_blocks(cluster.agent(node).unwrap()).keys().collect::<Vec<_>>(), names);
            let routes: Vec<_> = peer_routes(cluster.node(node).unwrap());
            assert!(routes.iter().map(|(block, ..)| block).eq(other.blocks.iter()), "{node}: {routes:?}");
        }
    }
    // Both have the same blocks, because each prefix has its own counter and claims.
    let [one, two] = ["/hosts", "/hosts2"].map(|prefix| Registry::of(&cluster, prefix).claims);
    assert!(one.keys().eq(two.keys()), "{one:?} {two:?}");
    cluster.pod("n1", "a").unwrap();
    cluster.pod("n2", "b").unwrap();
    expect_reach(&cluster, TIMEOUT);
}
