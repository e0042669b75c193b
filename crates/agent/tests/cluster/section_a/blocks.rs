//! A3, A4: a host's block is its own, the same for ever, and nobody else's.

use std::collections::BTreeSet;

use testkit::{Cluster, Extra, LabStore, Plan, wait_until};

use super::{
    Registry, etcdctl, expect_consistent, let_die, peer_routes, problems, records, shares, status, stored,
};
use crate::common::{TIMEOUT, expect_reach};

#[test]
fn a3_the_same_host_has_the_same_block_after_restarts_and_without_what_it_kept_in_memory() {
    for (store, names) in [(LabStore::Etcd { members: 1 }, &["n1", "n2"][..]), (LabStore::Embedded, &["n1"])]
    {
        let mut cluster =
            Cluster::up("same", &Plan { nodes: names.len(), store, ..Plan::default() }).unwrap();
        let before = shares(cluster.agent("n1").unwrap());
        assert_eq!(before.values().collect::<BTreeSet<_>>().len(), names.len());
        let expect_same = |cluster: &Cluster, what: &str| {
            for name in names {
                assert_eq!(shares(cluster.agent(name).unwrap()), before, "{store:?}: {what}");
            }
        };
        cluster.kill_agent("n1").unwrap();
        for name in &names[1..] {
            cluster.agent_mut(name).unwrap().stop().unwrap();
        }
        // In the other order.
        for name in names.iter().rev() {
            cluster.start_agent(name).unwrap();
        }
        expect_same(&cluster, "restarts");
        cluster.kill_node("n1").unwrap();
        cluster.start_node("n1").unwrap();
        expect_same(&cluster, "a boot: /run is empty");
        if store != LabStore::Embedded {
            let_die(&mut cluster, "n2");
            std::fs::remove_dir_all(cluster.node("n2").unwrap().dir().join("lib")).unwrap();
            cluster.start_agent("n2").unwrap();
            expect_same(&cluster, "a new disk: all it knew is gone, the store has it");
            expect_consistent(&cluster, "/podwire");
        }
    }
}

/// The counter says where to begin to look. Here it says nonsense, and then the same again.
#[test]
fn a3_hosts_that_join_at_once_have_different_blocks_whatever_the_counter_says() {
    const COUNTER: &str = "elsewhere/count";
    let env = [("ETCD_COUNTER_KEY".to_owned(), COUNTER.to_owned())].to_vec();
    let all = Extra { env, ..Extra::default() };
    let mut cluster = Cluster::hosts("counter", &Plan { nodes: 12, all, ..Plan::default() }).unwrap();
    cluster.start_etcd().unwrap();
    let names = cluster.node_names();
    for (half, nonsense) in names.chunks(6).zip(["-1", "18446744073709551616 or so"]) {
        // Also its version begins anew, so the first host that counts gets what another got before.
        etcdctl(&cluster, &["del", COUNTER]);
        etcdctl(&cluster, &["put", COUNTER, "--", nonsense]);
        for name in half {
            cluster.agent_mut(name).unwrap().launch().unwrap();
        }
        for name in half {
            cluster.agent_mut(name).unwrap().wait_ready().unwrap();
        }
    }
    let listed = records(&cluster, "/podwire");
    let blocks: BTreeSet<_> = listed.values().flat_map(|record| record.blocks.clone()).collect();
    assert_eq!((listed.len(), blocks.len()), (12, 24), "{listed:?}");
    expect_consistent(&cluster, "/podwire");
    assert!(stored(&cluster, "/podwire/counter").is_empty(), "the counter is where it was said to be");
    let counted = etcdctl(&cluster, &["get", COUNTER, "-w", "json"]);
    assert!(counted.contains(r#""version":7"#), "ours, and six hosts: {counted}");
}

/// Two blocks, three hosts.
#[test]
fn a3_a_network_without_a_free_block_says_what_to_do_and_a_removed_node_gives_its_block_back() {
    let pods = ["10.9.0.0/28", "fd09::/124"].map(|net| net.parse().unwrap()).to_vec();
    let mut cluster = Cluster::hosts("full", &Plan { pods, margin: 1, ..Plan::default() }).unwrap();
    cluster.start_etcd().unwrap();
    for name in ["n1", "n2"] {
        cluster.start_agent(name).unwrap();
    }
    let first = records(&cluster, "/podwire")["n1"].blocks.clone();
    cluster.agent_mut("n3").unwrap().launch().unwrap();
    let says = ["all 2 blocks of 10.9.0.0/28 are taken", "podwire node rm NAME", "a larger subnet"];
    let has_all = |text: &str| says.iter().all(|part| text.contains(part));
    wait_until("n3 to tell why it has no block", TIMEOUT, || {
        let ready = cluster.agent("n3")?.client().get(api::READY, TIMEOUT)?;
        Ok(ready.status == 503 && has_all(&String::from_utf8_lossy(&ready.body)))
    })
    .unwrap();
    let refused = status(&cluster, "n3").error().unwrap();
    assert!(refused.code == 50 && has_all(&format!("{} {}", refused.msg, refused.details)), "{refused:?}");
    let told = problems(cluster.agent("n3").unwrap());
    assert!(told.iter().any(|problem| has_all(problem["message"].as_str().unwrap())), "{told:?}");

    // Nor is there another for one that is full.
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
    let_die(&mut cluster, "n1");
    let removed = remove(&cluster);
    assert!(removed.success() && first.iter().all(|block| removed.stdout.contains(&block.to_string())));
    cluster.agent_mut("n3").unwrap().wait_ready().unwrap();
    let listed = records(&cluster, "/podwire");
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["n2", "n3"]);
    assert_eq!(listed["n3"].blocks, first);
    expect_consistent(&cluster, "/podwire");
    wait_until("no problem", TIMEOUT, || Ok(problems(cluster.agent("n3")?).is_empty())).unwrap();
}

#[test]
fn a4_listing_the_prefix_gives_hosts_and_blocks_and_prefixes_are_whole_segments() {
    let under = |prefix: &str| Extra {
        flags: ["--etcd-prefix", prefix].map(str::to_owned).to_vec(),
        ..Extra::default()
    };
    let each = [("n1", "/hosts"), ("n2", "/hosts"), ("n3", "/hosts2"), ("n4", "/hosts2")];
    let each = each.map(|(name, prefix)| (name.to_owned(), under(prefix))).into();
    let cluster = Cluster::up("prefix", &Plan { nodes: 4, each, ..Plan::default() }).unwrap();
    for (prefix, names) in [("/hosts", ["n1", "n2"]), ("/hosts2", ["n3", "n4"])] {
        let listed = records(&cluster, prefix);
        assert_eq!(listed.keys().collect::<Vec<_>>(), names);
        expect_consistent(&cluster, prefix);
        for (here, there) in [(0, 1), (1, 0)] {
            let (node, other) = (names[here], &listed[names[there]]);
            assert_eq!(other.addresses, cluster.addresses(names[there]).unwrap());
            assert_eq!(shares(cluster.agent(node).unwrap()).keys().collect::<Vec<_>>(), names);
            let to: Vec<_> = peer_routes(cluster.node(node).unwrap());
            assert!(to.iter().map(|(block, ..)| block).eq(&other.blocks), "{node}: {to:?}");
        }
    }
    // The same blocks, as each begins to count for itself: they do not see each other.
    let [one, two] = ["/hosts", "/hosts2"].map(|prefix| Registry::of(&cluster, prefix).claims);
    assert!(one.keys().eq(two.keys()), "{one:?} {two:?}");
    cluster.pod("n1", "a").unwrap();
    cluster.pod("n2", "b").unwrap();
    expect_reach(&cluster, TIMEOUT);
}
