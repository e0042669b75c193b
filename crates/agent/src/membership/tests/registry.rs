//! Claims and records that are missing, corrupt or inconsistent.

use model::BlockClaim;

use super::super::contact::Contact;
use super::super::former_schema::FormerSchema;
use super::super::heartbeat::Heartbeat;
use super::super::join::MAX_BLOCKS;
use super::*;

pub(super) async fn put(registry: &Registry, key: &str, value: &[u8]) {
    let put = Change::Put { key: key.to_owned(), value: value.to_vec(), lease: None };
    registry.store.commit(&[], &[put]).await.unwrap();
}

async fn claim(registry: &Registry, block: &IpNet, node: &str) {
    let value = BlockClaim { node: node.try_into().unwrap() }.encode();
    put(registry, &claim_key(registry, block), &value).await;
}

#[test]
fn node_removal_includes_claims_without_a_record() {
    with_store(|registry| async move {
        join(&registry, &candidate("n1", 1)).await.unwrap();
        let orphan = nets(&["10.2.9.0/24"])[0];
        claim(&registry, &orphan, "dead").await;
        assert_eq!(remove(&registry, "dead", false).await.unwrap(), [orphan]);
        assert_eq!(read_contents(&registry).await.unwrap().claims.len(), 2, "the claims of n1 must remain");
        assert!(remove(&registry, "dead", false).await.unwrap_err().to_string().contains("no node dead"));
    });
}

#[test]
fn a_node_with_250_claims_is_removed() {
    with_store(|registry| async move {
        for n in 0..250_u32 {
            let block = format!("10.4.{n}.0/24").parse().unwrap();
            claim(&registry, &block, "large").await;
        }
        assert_eq!(remove(&registry, "large", false).await.unwrap().len(), 250);
        assert!(read_contents(&registry).await.unwrap().claims.is_empty());
    });
}

#[test]
fn force_removes_a_corrupt_record_but_never_a_newer_one() {
    with_store(|registry| async move {
        let key = registry.layout.node(&"junk".try_into().unwrap());
        put(&registry, &key, b"junk").await;
        claim(&registry, &nets(&["10.2.9.0/24"])[0], "junk").await;
        assert!(remove(&registry, "junk", false).await.unwrap_err().to_string().contains("--force"));
        assert_eq!(remove(&registry, "junk", true).await.unwrap(), nets(&["10.2.9.0/24"]));
        assert!(registry.store.get(&key).await.unwrap().is_none());
        put(&registry, &key, br#"{"schema":7,"node":{}}"#).await;
        assert!(remove(&registry, "junk", true).await.unwrap_err().to_string().contains("update podwire"));
        assert!(registry.store.get(&key).await.unwrap().is_some());
    });
}

#[test]
fn a_node_rewrites_its_corrupt_record_and_claim() {
    with_store(|registry| async move {
        let first = join(&registry, &candidate("n1", 1)).await.unwrap();
        let key = claim_key(&registry, &first.record.blocks.of(&NetworkRef::default())[0]);
        put(&registry, &key, b"junk").await;
        let rejoined = join(&registry, &candidate("n1", 1)).await.unwrap();
        assert_eq!(rejoined.record.blocks, first.record.blocks);
        let claim = registry.store.get(&key).await.unwrap().unwrap();
        assert_eq!(BlockClaim::decode(&claim.value).unwrap().node.as_str(), "n1");

        put(&registry, &registry.layout.node(&first.record.name), b"junk").await;
        let mut restarted = candidate("n1", 1);
        restarted.saved_blocks.clone_from(&first.record.blocks);
        put_alive(&registry, &first).await;
        let repaired = join(&registry, &restarted).await.unwrap();
        assert_eq!((repaired.record, repaired.was_forgotten), (first.record.clone(), false));
        // The owner in a corrupt record is unknown. The running agent with this name holds it.
        put(&registry, &registry.layout.node(&first.record.name), b"junk").await;
        let error = join(&registry, &candidate("n1", 2)).await.unwrap_err();
        assert!(matches!(error, JoinError::Held { .. }), "{error}");
    });
}

#[test]
fn a_corrupt_claim_of_a_saved_block_is_not_overwritten() {
    with_store(|registry| async move {
        let block = nets(&["10.2.9.0/24"])[0];
        put(&registry, &claim_key(&registry, &block), b"junk").await;
        let mut restarted = candidate("n1", 1);
        restarted.saved_blocks = BlockAllocation::of_default(vec![block]);
        let joined = join(&registry, &restarted).await.unwrap();
        assert!(joined.record.blocks.len() == 2 && !joined.record.blocks.contains(&block), "{joined:?}");
        let claim = registry.store.get(&claim_key(&registry, &block)).await.unwrap().unwrap();
        assert_eq!(claim.value, b"junk");
    });
}

#[test]
fn the_number_of_blocks_is_limited_to_one_commit() {
    with_store(|registry| async move {
        let wide = NetworkSpec { subnets: nets(&["10.2.0.0/16"]), margin: 8, ..spec() };
        let mut large = Candidate {
            networks: NetworkLayouts::of_default(&wide).unwrap(),
            spec: wide.clone(),
            ..candidate("n1", 1)
        };
        large.saved_blocks = (0..MAX_BLOCKS)
            .map(|n| (NetworkRef::default(), default_layouts(&wide)[0].block(n as u64)))
            .collect();
        let joined = join(&registry, &large).await.unwrap();
        assert_eq!(joined.record.blocks.len(), MAX_BLOCKS);
        assert_eq!(join(&registry, &large).await.unwrap().record, joined.record);
        let error = registry
            .claim_another_block(joined, any_block(&default_layouts(&wide)[0]), &[])
            .await
            .unwrap_err();
        assert!(error.to_string().contains("100 blocks"), "{error}");
        assert!(remove(&registry, "n1", true).await.unwrap_err().to_string().contains("this node"));
    });
}

#[test]
fn a_different_vni_or_vxlan_port_is_refused() {
    with_store(|registry| async move {
        join(&registry, &candidate("n1", 1)).await.unwrap();
        for other in [NetworkSpec { vni: 5, ..spec() }, NetworkSpec { vxlan_port: 8472, ..spec() }] {
            let candidate = Candidate { spec: other.clone(), ..candidate("n2", 2) };
            let error = join(&registry, &candidate).await.unwrap_err();
            let reported = error.to_string();
            assert!(
                matches!(error, JoinError::Network { .. }) && reported.contains("VNI 4077 on port 4789"),
                "{reported}"
            );
            let config = config::Config::load(&config::Flags::default(), Vec::new()).unwrap();
            let message = error.finding(&config).message;
            let key = if other.vni == 5 { "network.vni" } else { "network.vxlan_port" };
            let wanted = format!("; set {key} in /etc/podwire/agent.toml to ");
            assert!(message.contains(&wanted) && !message.contains(" and network."), "{message}");
        }
    });
}

#[test]
fn a_join_fails_if_the_network_changes_meanwhile() {
    with_store(|registry| async move {
        let (entered, _) = registry.enter(&candidate("n1", 1)).await.unwrap();
        let other = NetworkSpec { subnets: nets(&["10.9.0.0/16"]), ..spec() };
        put(&registry, &registry.layout.network(), &other.encode()).await;
        let network = entered.network;
        let error = registry.complete(entered, &candidate("n1", 1), &[]).await.unwrap_err();
        assert!(matches!(error, JoinError::Contended { .. }), "{error}");
        let late = candidate("n2", 2);
        let lease = registry.acquire_name(&late).await.unwrap();
        let error = registry.register(&late, network, &lease).await.unwrap_err();
        assert!(matches!(error, JoinError::Contended { .. }), "{error}");
        let contents = read_contents(&registry).await.unwrap();
        assert_eq!((contents.claims.len(), contents.nodes.len()), (0, 1));
    });
}

#[test]
fn blocks_of_known_nodes_are_not_claimed_after_a_wipe() {
    with_store(|registry| async move {
        let known = nets(&["10.2.0.0/24", "10.2.1.0/24", "fd00:2::/68"]);
        let lost = nets(&["10.2.5.0/24"]);
        claim(&registry, &lost[0], "n9").await;
        let mut forgotten = candidate("n1", 1);
        forgotten.saved_blocks = BlockAllocation::of_default(lost);
        let joined = registry.join(&forgotten, &known).await.unwrap();
        assert!(
            joined.was_forgotten && joined.record.blocks.iter().all(|block| !known.contains(block)),
            "{joined:?}"
        );
        let block_layout = default_layouts(&spec())[0];
        let after =
            registry.claim_another_block(joined.clone(), any_block(&block_layout), &known).await.unwrap();
        assert!(after.record.blocks.iter().all(|block| !known.contains(block)), "{after:?}");
        let all: Vec<IpNet> = (0..16).map(|n| block_layout.block(n)).collect();
        let error = registry.claim_another_block(after, any_block(&block_layout), &all).await.unwrap_err();
        assert!(matches!(error, JoinError::Reserved { .. }), "{error}");
    });
}

#[test]
fn a_renamed_node_keeps_its_blocks() {
    with_store(|registry| async move {
        let before = join(&registry, &candidate("old", 1)).await.unwrap();
        let mut renamed = candidate("new", 1);
        renamed.saved_blocks.clone_from(&before.record.blocks);
        renamed.former = Some("old".try_into().unwrap());
        let joined = join(&registry, &renamed).await.unwrap();
        assert!(!joined.was_forgotten && joined.lost.is_empty(), "{joined:?}");
        assert_eq!(joined.record.blocks, before.record.blocks);
        let contents = read_contents(&registry).await.unwrap();
        assert!(
            contents.nodes[0].record == joined.record
                && contents.nodes.len() == 1
                && contents.claims.len() == 2,
            "{contents:?}"
        );
        assert!(contents.claims.iter().all(|(_, _, node)| node.as_str() == "new"), "{contents:?}");
        // Another host uses the name by now and keeps its blocks.
        let other = candidate("old", 2);
        let released = Change::Delete(registry.layout.alive(&other.record.name));
        registry.store.commit(&[], &[released]).await.unwrap();
        let other = join(&registry, &other).await.unwrap();
        let mut late = candidate("newest", 1);
        late.saved_blocks.clone_from(&other.record.blocks);
        late.former = Some("old".try_into().unwrap());
        assert_eq!(join(&registry, &late).await.unwrap().lost.len(), 2);
        assert!(read_contents(&registry).await.unwrap().nodes.iter().any(|node| node.record == other.record));
        // The new name belonged to a dead host. Its blocks are taken over, and the own blocks stay with the old name.
        let dead = join(&registry, &candidate("dead", 9)).await.unwrap();
        let released = Change::Delete(registry.layout.alive(&dead.record.name));
        registry.store.commit(&[], &[released]).await.unwrap();
        let mut successor = candidate("dead", 2);
        successor.saved_blocks.clone_from(&other.record.blocks);
        successor.former = Some("old".try_into().unwrap());
        assert_eq!(join(&registry, &successor).await.unwrap().record.blocks, dead.record.blocks);
        assert!(read_contents(&registry).await.unwrap().nodes.iter().any(|node| node.record == other.record));
    });
}

#[test]
fn an_alive_key_of_a_newer_version_is_never_overwritten() {
    with_store(|registry| async move {
        let node = candidate("n1", 1);
        let key = registry.layout.alive(&node.record.name);
        let newer = br#"{"schema":7,"alive":{}}"#;
        put(&registry, &key, newer).await;
        assert!(matches!(registry.acquire_name(&node).await.unwrap_err(), JoinError::Decode { .. }));
        assert_eq!(registry.store.get(&key).await.unwrap().unwrap().value, newer);
        put(&registry, &key, b"junk").await;
        registry.acquire_name(&node).await.unwrap();
    });
}

#[test]
fn of_hosts_that_join_concurrently_with_one_name_one_succeeds() {
    with_store(|registry| async move {
        for round in 0..20 {
            let name = format!("n{round}");
            let mut joins = tokio::task::JoinSet::new();
            for uid in 1..=5 {
                let (registry, candidate) = (registry.clone(), candidate(&name, uid));
                joins.spawn(async move { registry.enter(&candidate).await });
            }
            let (entered, refused): (Vec<_>, Vec<_>) =
                joins.join_all().await.into_iter().partition(Result::is_ok);
            assert_eq!((entered.len(), refused.len()), (1, 4), "{refused:?}");
            let is_expected = |outcome: &Result<_, JoinError>| {
                matches!(outcome, Err(JoinError::Held { .. } | JoinError::Contended { .. }))
            };
            assert!(refused.iter().all(is_expected), "{refused:?}");
            let record = read_contents(&registry)
                .await
                .unwrap()
                .nodes
                .into_iter()
                .find(|node| node.record.name.as_str() == name);
            assert_eq!(record.unwrap().record, entered[0].as_ref().unwrap().0.record);
        }
    });
}

/// The lease still exists, but the key was removed.
#[test]
fn a_removed_alive_key_is_detected_while_its_lease_exists() {
    with_store(|registry| async move {
        let (_, lease) = registry.enter(&candidate("n1", 1)).await.unwrap();
        let key = lease.key.clone();
        let (sender, name_lease) = tokio::sync::watch::channel(Some(lease));
        let name_lost = std::sync::Arc::<tokio::sync::Notify>::default();
        let contact = std::sync::Arc::new(Contact::new(None));
        let heartbeat = Heartbeat { name_lease, name_lost: std::sync::Arc::clone(&name_lost), contact };
        let heartbeat = tokio::spawn(heartbeat.run());
        registry.store.commit(&[], &[Change::Delete(key)]).await.unwrap();
        tokio::time::timeout(std::time::Duration::from_secs(20), name_lost.notified()).await.unwrap();
        drop(sender);
        heartbeat.await.unwrap();
    });
}

async fn contents(registry: &Registry) -> Vec<(String, Vec<u8>)> {
    let listing = registry.store.list(&registry.layout.root()).await.unwrap();
    listing.entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
}

#[test]
fn d_a_store_of_schema_1_is_refused_and_not_changed() {
    let node = br#"{"schema":1,"node":{"name":"n9","blocks":["10.2.3.0/24"]}}"#.as_slice();
    let network = br#"{"schema":1,"network":{"subnets":["10.2.0.0/20"],"margin":4,"vni":1,"vxlan_port":4}}"#;
    let claim = br#"{"schema":1,"claim":{"node":"n9"}}"#;
    for (key, value) in [
        ("/pods/network", network.as_slice()),
        ("/pods/blocks/10.2.3.0-24", claim.as_slice()),
        ("/pods/nodes/n9", node),
    ] {
        with_store(|registry| async move {
            put(&registry, key, value).await;
            let error = join(&registry, &candidate("n1", 1)).await.unwrap_err();
            assert!(!error.is_transient(), "{error}");
            let config = config::Config::load(&config::Flags::default(), Vec::new()).unwrap();
            let finding = error.finding(&config);
            assert_eq!(finding.code, types::Code::StoreSchemaFormer);
            let store = registry.store.directory().unwrap().to_string_lossy().into_owned();
            let expected = format!("stop the agent, then remove its store with `rm -r {store}`");
            assert!(
                finding.message.starts_with(key) && finding.message.ends_with(&expected),
                "{}",
                finding.message
            );
            let listed = read_contents(&registry).await.unwrap_err();
            assert_eq!(listed.to_string(), error.to_string(), "queries answer the same");
            assert_eq!(contents(&registry).await, [(key.to_owned(), value.to_vec())]);
        });
    }
}

#[test]
fn d_an_own_record_of_schema_1_is_never_overwritten() {
    with_store(|registry| async move {
        join(&registry, &candidate("n1", 1)).await.unwrap();
        let key = registry.layout.node(&candidate("n2", 2).record.name);
        let former = br#"{"schema":1,"node":{"name":"n2"}}"#;
        put(&registry, &key, former).await;
        let error = join(&registry, &candidate("n2", 2)).await.unwrap_err();
        assert!(matches!(error, JoinError::FormerSchema(_)), "{error}");
        assert_eq!(registry.store.get(&key).await.unwrap().unwrap().value, former);
        assert!(remove(&registry, "n2", true).await.is_err(), "its claims are unknown");
        // Other nodes are not affected.
        join(&registry, &candidate("n3", 3)).await.unwrap();
        assert_eq!(read_contents(&registry).await.unwrap().unread.len(), 1);
    });
}

#[test]
fn d_the_message_about_schema_1_in_etcd_removes_only_the_former_keys() {
    let etcd = store::EtcdConfig { endpoints: vec!["http://127.0.0.1:2379".to_owned()], ..etcd_defaults() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let store = Store::open(&StoreConfig::Etcd(etcd)).unwrap();
    let registry = Registry { store, layout: KeyLayout::new("/pods", None) };
    let message = FormerSchema::new(&registry, "/pods/network".to_owned()).to_string();
    let commands =
        "`etcdctl del /pods/network; etcdctl del --prefix /pods/blocks/; etcdctl del --prefix /pods/nodes/`";
    assert!(message.contains("another `etcd.prefix`") && message.ends_with(commands), "{message}");
}

fn etcd_defaults() -> store::EtcdConfig {
    let (ca, cert, key, user, password) = (None, None, None, None, None);
    store::EtcdConfig { endpoints: Vec::new(), ca, cert, key, user, password, insecure: false }
}

#[test]
fn d_blocks_of_a_removed_network_are_kept_until_no_pod_uses_them() {
    with_store(|registry| async move {
        let network = NetworkRef::try_from("blue.front".to_owned()).unwrap();
        let layout = BlockLayout::new(nets(&["10.5.0.0/16"])[0], 8).unwrap();
        let mut node = candidate("n1", 1);
        let joined = join(&registry, &node).await.unwrap();
        let wanted =
            WantedBlock { network: &network, block_layout: &layout, pools: SearchedPools::Outside(&[]) };
        let claimed = registry.claim_another_block(joined, wanted, &[]).await.unwrap();
        let block = claimed.record.blocks.of(&network)[0];
        let key = registry.layout.network_block(&network, &block);
        // The networks of this candidate do not include the block's, which was removed.
        let kept = join(&registry, &node).await.unwrap();
        assert_eq!(kept.record.blocks, claimed.record.blocks);
        assert!(registry.store.get(&key).await.unwrap().is_some());
        node.released = BTreeSet::from([block]);
        let returned = join(&registry, &node).await.unwrap();
        assert_eq!(returned.record.blocks.of(&network), []);
        assert_eq!(returned.record.blocks.len(), 2, "the blocks of the default network stay");
        assert!(registry.store.get(&key).await.unwrap().is_none());
    });
}

#[test]
fn d_a_block_is_claimed_within_or_outside_of_pools() {
    with_store(|registry| async move {
        let network = NetworkRef::default();
        let joined = join(&registry, &candidate("n1", 1)).await.unwrap();
        let layout = default_layouts(&spec())[0];
        let pools = nets(&["10.2.9.64/28"]);
        let wanted = |pools| WantedBlock { network: &network, block_layout: &layout, pools };
        let within =
            registry.claim_another_block(joined, wanted(SearchedPools::Within(&pools)), &[]).await.unwrap();
        assert!(within.record.blocks.contains(&nets(&["10.2.9.0/24"])[0]), "{within:?}");
        let again =
            registry.claim_another_block(within.clone(), wanted(SearchedPools::Within(&pools)), &[]).await;
        assert!(matches!(again.unwrap_err(), JoinError::PoolsExhausted { .. }));
        let reserved = nets(&["10.2.0.0/21", "10.2.8.0/22", "10.2.12.0/23", "10.2.15.0/24"]);
        let outside = wanted(SearchedPools::Outside(&reserved));
        let outside = registry.claim_another_block(within, outside, &[]).await.unwrap();
        assert!(outside.record.blocks.contains(&nets(&["10.2.14.0/24"])[0]), "{outside:?}");
    });
}
