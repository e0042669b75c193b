//! What becomes of claims and records that are not as they should be.

use model::BlockClaim;

use super::super::alive::Heartbeat;
use super::super::contact::Contact;
use super::super::join::MOST_BLOCKS;
use super::*;

pub(super) async fn put(registry: &Registry, key: &str, value: &[u8]) {
    let put = Change::Put { key: key.to_owned(), value: value.to_vec(), lease: None };
    registry.store.commit(&[], &[put]).await.unwrap();
}

async fn claim(registry: &Registry, block: &IpNet, node: &str) {
    let value = BlockClaim { node: node.try_into().unwrap() }.encode();
    put(registry, &registry.layout.block(block), &value).await;
}

#[test]
fn claims_without_a_record_are_removed() {
    with_store(|registry| async move {
        join(&registry, &candidate("n1", 1)).await.unwrap();
        let orphan = nets(&["10.2.9.0/24"])[0];
        claim(&registry, &orphan, "dead").await;
        assert_eq!(remove(&registry, "dead", false).await.unwrap(), [orphan]);
        assert_eq!(look(&registry).await.unwrap().claims.len(), 2, "those of n1 stay");
        assert!(remove(&registry, "dead", false).await.unwrap_err().to_string().contains("no node dead"));
    });
}

#[test]
fn a_node_with_very_many_claims_is_removed() {
    with_store(|registry| async move {
        for n in 0..250_u32 {
            let block = format!("10.4.{n}.0/24").parse().unwrap();
            claim(&registry, &block, "vast").await;
        }
        assert_eq!(remove(&registry, "vast", false).await.unwrap().len(), 250);
        assert!(look(&registry).await.unwrap().claims.is_empty());
    });
}

#[test]
fn a_damaged_record_is_removed_by_force_and_a_newer_one_never() {
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
fn a_node_writes_its_own_damaged_record_and_claim_anew() {
    with_store(|registry| async move {
        let first = join(&registry, &candidate("n1", 1)).await.unwrap();
        let key = registry.layout.block(&first.record.blocks[0]);
        put(&registry, &key, b"junk").await;
        let again = join(&registry, &candidate("n1", 1)).await.unwrap();
        assert_eq!(again.record.blocks, first.record.blocks);
        let claim = registry.store.get(&key).await.unwrap().unwrap();
        assert_eq!(BlockClaim::decode(&claim.value).unwrap().node.as_str(), "n1");

        put(&registry, &registry.layout.node(&first.record.name), b"junk").await;
        let mut remembering = candidate("n1", 1);
        remembering.remembered.clone_from(&first.record.blocks);
        say_alive(&registry, &first).await;
        let mended = join(&registry, &remembering).await.unwrap();
        assert_eq!((mended.record, mended.was_forgotten), (first.record.clone(), false));
        // Whose it was is not known: who is alive under this name has it.
        put(&registry, &registry.layout.node(&first.record.name), b"junk").await;
        let error = join(&registry, &candidate("n1", 2)).await.unwrap_err();
        assert!(matches!(error, JoinError::Held { .. }), "{error}");
    });
}

#[test]
fn a_damaged_claim_that_is_only_remembered_stays() {
    with_store(|registry| async move {
        let block = nets(&["10.2.9.0/24"])[0];
        put(&registry, &registry.layout.block(&block), b"junk").await;
        let mut remembering = candidate("n1", 1);
        remembering.remembered = vec![block];
        let joined = join(&registry, &remembering).await.unwrap();
        assert!(joined.record.blocks.len() == 2 && !joined.record.blocks.contains(&block), "{joined:?}");
        let claim = registry.store.get(&registry.layout.block(&block)).await.unwrap().unwrap();
        assert_eq!(claim.value, b"junk");
    });
}

#[test]
fn a_node_has_no_more_blocks_than_one_commit_can_hold() {
    with_store(|registry| async move {
        let wide = NetworkSpec { subnets: nets(&["10.2.0.0/16"]), margin: 8, ..spec() };
        let mut vast = Candidate { spec: wide.clone(), ..candidate("n1", 1) };
        vast.remembered =
            (0..MOST_BLOCKS).map(|n| block_layouts(&wide).unwrap()[0].block(n as u64)).collect();
        let joined = join(&registry, &vast).await.unwrap();
        assert_eq!(joined.record.blocks.len(), MOST_BLOCKS);
        assert_eq!(join(&registry, &vast).await.unwrap().record, joined.record);
        let error = registry.grow(joined, &block_layouts(&wide).unwrap()[0], &[]).await.unwrap_err();
        assert!(error.to_string().contains("100 blocks"), "{error}");
        assert!(remove(&registry, "n1", true).await.unwrap_err().to_string().contains("this node"));
    });
}

#[test]
fn tunnels_that_would_not_meet_are_refused() {
    with_store(|registry| async move {
        join(&registry, &candidate("n1", 1)).await.unwrap();
        for other in [NetworkSpec { vni: 5, ..spec() }, NetworkSpec { vxlan_port: 8472, ..spec() }] {
            let error = join(&registry, &Candidate { spec: other, ..candidate("n2", 2) }).await.unwrap_err();
            let reported = error.to_string();
            assert!(
                matches!(error, JoinError::Network { .. }) && reported.contains("VNI 4077 on port 4789"),
                "{reported}"
            );
        }
    });
}

#[test]
fn nothing_is_written_for_a_network_that_has_changed_meanwhile() {
    with_store(|registry| async move {
        let (entered, _) = registry.enter(&candidate("n1", 1)).await.unwrap();
        let other = NetworkSpec { subnets: nets(&["10.9.0.0/16"]), ..spec() };
        put(&registry, &registry.layout.network(), &other.encode()).await;
        let network = entered.network;
        let error = registry.complete(entered, &candidate("n1", 1), &[]).await.unwrap_err();
        assert!(matches!(error, JoinError::Restless { .. }), "{error}");
        let late = candidate("n2", 2);
        let hold = registry.hold(&late).await.unwrap();
        let error = registry.register(&late, network, &hold).await.unwrap_err();
        assert!(matches!(error, JoinError::Restless { .. }), "{error}");
        let contents = look(&registry).await.unwrap();
        assert_eq!((contents.claims.len(), contents.nodes.len()), (0, 1));
    });
}

#[test]
fn after_a_wipe_blocks_of_known_nodes_are_left_alone() {
    with_store(|registry| async move {
        let known = nets(&["10.2.0.0/24", "10.2.1.0/24", "fd00:2::/68"]);
        let lost = nets(&["10.2.5.0/24"]);
        claim(&registry, &lost[0], "n9").await;
        let mut forgotten = candidate("n1", 1);
        forgotten.remembered = lost;
        let joined = registry.join(&forgotten, &known).await.unwrap();
        assert!(
            joined.was_forgotten && joined.record.blocks.iter().all(|block| !known.contains(block)),
            "{joined:?}"
        );
        let block_layout = block_layouts(&spec()).unwrap()[0];
        let grown = registry.grow(joined.clone(), &block_layout, &known).await.unwrap();
        assert!(grown.record.blocks.iter().all(|block| !known.contains(block)), "{grown:?}");
        let all: Vec<IpNet> = (0..16).map(|n| block_layout.block(n)).collect();
        let error = registry.grow(grown, &block_layout, &all).await.unwrap_err();
        assert!(matches!(error, JoinError::Awaited { .. }), "{error}");
    });
}

#[test]
fn a_machine_that_gets_another_name_takes_its_blocks_along() {
    with_store(|registry| async move {
        let before = join(&registry, &candidate("old", 1)).await.unwrap();
        let mut renamed = candidate("new", 1);
        renamed.remembered.clone_from(&before.record.blocks);
        renamed.former = Some("old".try_into().unwrap());
        let joined = join(&registry, &renamed).await.unwrap();
        assert!(!joined.was_forgotten && joined.lost.is_empty(), "{joined:?}");
        assert_eq!(joined.record.blocks, before.record.blocks);
        let contents = look(&registry).await.unwrap();
        assert!(
            contents.nodes[0].record == joined.record
                && contents.nodes.len() == 1
                && contents.claims.len() == 2,
            "{contents:?}"
        );
        assert!(contents.claims.iter().all(|(_, node)| node.as_str() == "new"), "{contents:?}");
        // Another machine has the name by now: what it has stays its own.
        let other = candidate("old", 2);
        let gone = Change::Delete(registry.layout.alive(&other.record.name));
        registry.store.commit(&[], &[gone]).await.unwrap();
        let other = join(&registry, &other).await.unwrap();
        let mut late = candidate("newest", 1);
        late.remembered.clone_from(&other.record.blocks);
        late.former = Some("old".try_into().unwrap());
        assert_eq!(join(&registry, &late).await.unwrap().lost.len(), 2);
        assert!(look(&registry).await.unwrap().nodes.iter().any(|node| node.record == other.record));
        // A dead machine had the new name: its blocks come with it, and ours stay with the old one.
        let dead = join(&registry, &candidate("dead", 9)).await.unwrap();
        let gone = Change::Delete(registry.layout.alive(&dead.record.name));
        registry.store.commit(&[], &[gone]).await.unwrap();
        let mut heir = candidate("dead", 2);
        heir.remembered.clone_from(&other.record.blocks);
        heir.former = Some("old".try_into().unwrap());
        assert_eq!(join(&registry, &heir).await.unwrap().record.blocks, dead.record.blocks);
        assert!(look(&registry).await.unwrap().nodes.iter().any(|node| node.record == other.record));
    });
}

#[test]
fn a_newer_alive_is_never_overwritten() {
    with_store(|registry| async move {
        let ours = candidate("n1", 1);
        let key = registry.layout.alive(&ours.record.name);
        let newer = br#"{"schema":7,"alive":{}}"#;
        put(&registry, &key, newer).await;
        assert!(matches!(registry.hold(&ours).await.unwrap_err(), JoinError::Decode { .. }));
        assert_eq!(registry.store.get(&key).await.unwrap().unwrap().value, newer);
        put(&registry, &key, b"junk").await;
        registry.hold(&ours).await.unwrap();
    });
}

#[test]
fn of_machines_that_come_at_once_with_one_name_one_gets_in() {
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
            let is_told = |outcome: &Result<_, JoinError>| {
                matches!(outcome, Err(JoinError::Held { .. } | JoinError::Restless { .. }))
            };
            assert!(refused.iter().all(is_told), "{refused:?}");
            let record = look(&registry)
                .await
                .unwrap()
                .nodes
                .into_iter()
                .find(|node| node.record.name.as_str() == name);
            assert_eq!(record.unwrap().record, entered[0].as_ref().unwrap().0.record);
        }
    });
}

/// The lease lives on where only the key is gone.
#[test]
fn a_name_that_is_lost_while_its_lease_lives_is_noticed() {
    with_store(|registry| async move {
        let (_, hold) = registry.enter(&candidate("n1", 1)).await.unwrap();
        let key = hold.key.clone();
        let (holds, held) = tokio::sync::watch::channel(Some(hold));
        let lost = std::sync::Arc::<tokio::sync::Notify>::default();
        let contact = std::sync::Arc::new(Contact::new(None));
        let heartbeat = Heartbeat { holds: held, lost: std::sync::Arc::clone(&lost), contact };
        let heartbeat = tokio::spawn(heartbeat.run());
        registry.store.commit(&[], &[Change::Delete(key)]).await.unwrap();
        tokio::time::timeout(std::time::Duration::from_secs(20), lost.notified()).await.unwrap();
        drop(holds);
        heartbeat.await.unwrap();
    });
}
