//! The membership thread without the peers thread: the node's allocation follows the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::{API_VERSION, BlockClaim, ClusterObject, ObjectId, ObjectRecord};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::super::block_requests::{BlockNeed, PendingBlockRequests, WantedBlocks};
use super::super::claim_mirror::ClaimMirror;
use super::super::command::MembershipCommand;
use super::super::member::{Member, with_jitter};
use super::super::node_state::NodeStateDir;
use super::super::objects::ObjectMirror;
use super::super::shared::SharedMembership;
use super::registry::put;
use super::*;
use crate::agent_status::AgentStatus;
use crate::allocation::NodeAllocations;
use crate::identities::{ObserverParts, SavedPods, observer};
use crate::peers::PeerQueue;
use crate::peers::inputs::{NodePosition, PeerRecords, inputs, reports};
use crate::policies::Policies;
use crate::policies::objects::defaults;
use crate::waker::Waker;
use config::{Config, Flags};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A node without a peers thread.
struct Fixture {
    dir: tempfile::TempDir,
    registry: Registry,
    shared: Arc<SharedMembership>,
    allocations: Arc<NodeAllocations>,
    agent_status: Arc<AgentStatus>,
    commands: mpsc::Sender<MembershipCommand>,
    _addresses: watch::Sender<Option<Vec<IpAddr>>>,
    macs: watch::Sender<Vec<Mac>>,
    peers: PeerQueue,
    /// The member until it is started.
    idle: Option<Member>,
}

impl Fixture {
    /// A node with these saved blocks.
    fn new(saved: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::load(&Flags::default(), Vec::new()).unwrap();
        config.run_dir = dir.path().join("run");
        config.network.subnets = spec().subnets;
        config.cluster.margin = spec().margin;
        config.state_dir = dir.path().join("state");
        config.reconcile = Duration::from_millis(1);
        let node_state = NodeStateDir::of(&config.state_dir, &config.network.name);
        let allocations = Arc::new(NodeAllocations::none("not joined yet", Vec::new()));
        let agent_status = Arc::new(AgentStatus::new());
        let (peers, queue) = inputs(Waker::new().unwrap());
        let slots = (Arc::clone(&allocations), Arc::clone(&agent_status));
        let shared = Arc::new(SharedMembership::new(&Arc::new(config), slots, node_state));
        shared.set_saved_blocks(blocks(saved));
        let (registry, candidate) = (registry(dir.path()), candidate("n1", 1));
        let (addresses, published) = watch::channel(Some(vec!["192.0.2.1".parse().unwrap()]));
        let (macs, published_macs) = watch::channel(Vec::new());
        let (commands, waiting) = mpsc::channel(16);
        let policies =
            Policies::new("n1".try_into().unwrap(), Waker::new().unwrap(), Arc::clone(&agent_status));
        let policies = Arc::new(policies);
        let member = Member {
            registry: registry.clone(),
            candidate: Candidate { saved_blocks: blocks(saved), ..candidate },
            shared: Arc::clone(&shared),
            addresses: published,
            macs: published_macs,
            name_lease: watch::channel(None).0,
            name_lost: Arc::default(),
            peers,
            identities: observer(ObserverParts {
                own: "n1".try_into().unwrap(),
                config: Arc::clone(&shared.config),
                layout: registry.layout.clone(),
                policies: Arc::clone(&policies),
                peers: Vec::new(),
                pods: SavedPods::default(),
            }),
            objects: ObjectMirror::new(defaults(&shared.config), policies).0,
            commands: waiting,
            claims: ClaimMirror::default(),
            revision: 0,
            unread: BTreeMap::new(),
            was_wiped: false,
            queries: JoinSet::new(),
            progress_at: tokio::time::Instant::now(),
            objects_changed_at: tokio::time::Instant::now(),
            maintenance_at: tokio::time::Instant::now(),
        };
        let idle = Some(member);
        Self {
            dir,
            registry,
            shared,
            allocations,
            agent_status,
            commands,
            _addresses: addresses,
            macs,
            peers: queue,
            idle,
        }
    }

    fn start(&mut self) -> tokio::task::JoinHandle<()> {
        let member = self.idle.take().unwrap();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            tokio::select! {
                () = member.run() => {}
                () = shared.report_reachability() => {}
            }
        })
    }

    fn blocks(&self) -> Result<Vec<IpNet>, String> {
        self.allocations
            .default_network()
            .map(|network| network.blocks().to_vec())
            .map_err(|none| none.to_string())
    }

    /// The blocks on disk, for a reboot.
    fn saved_blocks(&self) -> Vec<IpNet> {
        let node_state = NodeStateDir::of(&self.dir.path().join("state"), &self.shared.config.network.name);
        node_state.record().map(|record| record.blocks.to_vec()).unwrap_or_default()
    }

    async fn until(&self, condition: impl Fn(&Self) -> bool) {
        let end = std::time::Instant::now() + TEST_TIMEOUT;
        while !condition(self) {
            assert!(
                std::time::Instant::now() < end,
                "{:?}: {:?}",
                self.blocks(),
                self.agent_status.conditions()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

const OWN_BLOCKS: [&str; 2] = ["10.2.0.0/24", "fd00:2::/68"];

#[test]
fn a_node_that_lost_its_name_allocates_no_addresses() {
    run(async {
        let mut fixture = Fixture::new(&OWN_BLOCKS);
        assert_eq!(
            fixture.blocks().unwrap(),
            nets(&OWN_BLOCKS),
            "saved blocks must be in force before the store answers"
        );
        fixture.agent_status.set_started();
        let other = join(&fixture.registry, &candidate("n1", 2)).await.unwrap();
        assert_eq!(other.record.blocks, blocks(&OWN_BLOCKS), "the other host must have the same blocks");
        put_alive(&fixture.registry, &other).await;
        let task = fixture.start();
        fixture.until(|fixture| fixture.blocks().is_err()).await;
        assert!(fixture.blocks().unwrap_err().contains("belongs to another host"), "{:?}", fixture.blocks());
        assert!(!fixture.agent_status.readiness().ready);
        fixture.until(|fixture| fixture.saved_blocks().is_empty()).await;
        // The other host releases the name, and the blocks return.
        let released = Change::Delete(fixture.registry.layout.alive(&other.record.name));
        fixture.registry.store.commit(&[], &[released]).await.unwrap();
        fixture.until(|fixture| fixture.blocks().is_ok_and(|blocks| blocks == nets(&OWN_BLOCKS))).await;
        assert_eq!(fixture.saved_blocks(), nets(&OWN_BLOCKS));
        task.abort();
    });
}

#[test]
fn a_lost_block_is_withdrawn_even_if_no_block_is_free() {
    run(async {
        let mut fixture = Fixture::new(&OWN_BLOCKS);
        for n in 2..18 {
            join(&fixture.registry, &candidate(&format!("n{n}"), n)).await.unwrap();
        }
        let task = fixture.start();
        fixture.until(|fixture| fixture.blocks().is_err()).await;
        let lost = |fixture: &Fixture| {
            fixture.agent_status.conditions().iter().any(|condition| condition.code == types::Code::BlockLost)
        };
        fixture.until(lost).await;
        fixture.until(|fixture| fixture.blocks().is_err_and(|reason| reason.contains("all 16 blocks"))).await;
        // Another node is removed.
        remove(&fixture.registry, "n5", true).await.unwrap();
        fixture.until(|fixture| fixture.blocks().is_ok()).await;
        // No pod has an address of the lost blocks, so the condition ends.
        fixture.until(|fixture| !lost(fixture)).await;
        task.abort();
    });
}

#[test]
fn a_lost_block_is_withdrawn_while_the_disk_hangs() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().max_blocking_threads(1).build().unwrap().block_on(async {
        let [first, second, v6] = ["10.2.0.0/24", "10.2.1.0/24", "fd00:2::/68"];
        let fixture = Fixture::new(&[first, second, v6]);
        // All disk operations wait for this thread.
        let (disk, released) = std::sync::mpsc::channel::<()>();
        let hanging = tokio::task::spawn_blocking(move || released.recv());
        let record = NodeRecord { blocks: blocks(&[second, v6]), ..candidate("n1", 1).record };
        let lost = vec![(nets(&[first])[0], "n2".try_into().unwrap())];
        let joined = Joined { record, revision: 1, network: 1, lost, was_forgotten: false };
        let mut accepted = std::pin::pin!(fixture.shared.accept(&joined));
        tokio::select! {
            biased;
            () = &mut accepted => panic!("accept did not wait for the disk"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(fixture.blocks().unwrap(), nets(&[second, v6]));
        drop(disk);
        accepted.await;
        assert_eq!(fixture.saved_blocks(), nets(&[second, v6]));
        assert!(hanging.await.unwrap().is_err());
    });
}

/// A node that cannot join can still query the store. The fix of `BlocksExhausted` depends on it.
#[test]
fn a4_a_node_without_a_free_block_lists_nodes_and_removes_one() {
    run(async {
        let mut fixture = Fixture::new(&[]);
        for n in 2..18 {
            join(&fixture.registry, &candidate(&format!("n{n}"), n)).await.unwrap();
        }
        let task = fixture.start();
        let has = |fixture: &Fixture, code| {
            fixture.agent_status.conditions().iter().any(|condition| condition.code == code)
        };
        fixture.until(|fixture| has(fixture, types::Code::BlocksExhausted)).await;
        assert!(fixture.shared.contact.is_reachable() && fixture.shared.contact.failure().is_none());
        let (done, answer) = tokio::sync::oneshot::channel();
        fixture.commands.send(MembershipCommand::Ask(StoreQuery::ReadContents(done))).await.unwrap();
        assert_eq!(answer.await.unwrap().unwrap().nodes.len(), 17);
        let (done, answer) = tokio::sync::oneshot::channel();
        let query = StoreQuery::Remove { name: "n5".try_into().unwrap(), force: true, done };
        fixture.commands.send(MembershipCommand::Ask(query)).await.unwrap();
        assert_eq!(answer.await.unwrap().unwrap().len(), 2);
        fixture
            .until(|fixture| fixture.blocks().is_ok() && !has(fixture, types::Code::BlocksExhausted))
            .await;
        task.abort();
    });
}

/// A record of a newer version is never removed.
#[test]
fn a1_a_corrupt_record_is_reported_with_a_removal_command() {
    run(async {
        let mut fixture = Fixture::new(&[]);
        let key = |name: &str| fixture.registry.layout.node(&name.try_into().unwrap());
        let (bad, newer) = (key("bad"), key("newer"));
        put(&fixture.registry, &bad, b"junk").await;
        put(&fixture.registry, &newer, br#"{"schema":7,"node":{}}"#).await;
        let task = fixture.start();
        let message = |fixture: &Fixture, key: &str| {
            let object = format!("key {key}");
            let condition =
                fixture.agent_status.conditions().into_iter().find(|condition| condition.object == object);
            condition.map(|condition| condition.message)
        };
        fixture.until(|fixture| message(fixture, &bad).is_some() && message(fixture, &newer).is_some()).await;
        let text = message(&fixture, &bad).unwrap();
        assert!(text.contains("'podwire node rm --force bad'"), "{text}");
        let text = message(&fixture, &newer).unwrap();
        assert!(!text.contains("node rm") && text.contains("update podwire"), "{text}");
        task.abort();
    });
}

#[test]
fn a4_a_store_with_another_network_is_reachable() {
    run(async {
        let mut fixture = Fixture::new(&[]);
        let mut other = candidate("n2", 2);
        other.spec.vni += 1;
        join(&fixture.registry, &other).await.unwrap();
        let task = fixture.start();
        fixture
            .until(|fixture| {
                fixture
                    .agent_status
                    .conditions()
                    .iter()
                    .any(|condition| condition.code == types::Code::NetworkMismatch)
            })
            .await;
        assert!(fixture.shared.contact.is_reachable() && fixture.shared.contact.failure().is_none());
        task.abort();
    });
}

#[test]
fn d_a_store_of_schema_1_is_reported_and_queries_say_what_to_do() {
    run(async {
        let mut fixture = Fixture::new(&[]);
        let network =
            br#"{"schema":1,"network":{"subnets":["10.2.0.0/20"],"margin":4,"vni":1,"vxlan_port":4789}}"#;
        let key = fixture.registry.layout.network();
        put(&fixture.registry, &key, network).await;
        let task = fixture.start();
        fixture.until(|fixture| fixture.agent_status.has(types::Code::StoreSchemaFormer)).await;
        fixture
            .until(|fixture| fixture.blocks().is_err_and(|reason| reason.contains("see StoreSchemaFormer")))
            .await;
        assert!(fixture.shared.contact.is_reachable(), "queries are answered");
        assert!(read_contents(&fixture.registry).await.unwrap_err().to_string().contains("remove its store"));
        let keys = fixture.registry.store.keys(&fixture.registry.layout.root()).await.unwrap();
        assert_eq!(keys, [key], "nothing was written");
        task.abort();
    });
}

#[test]
fn two_concurrent_requests_get_one_block() {
    run(async {
        let mut fixture = Fixture::new(&[]);
        let task = fixture.start();
        fixture.until(|fixture| fixture.blocks().is_ok()).await;
        let before = fixture.blocks().unwrap();
        for pending_request in [PendingBlockRequests::default(), PendingBlockRequests::default()] {
            pending_request.request(BlockNeed {
                network: &NetworkRef::default(),
                wanted: WantedBlocks::Besides(before[0]),
                observed: &before,
                commands: &fixture.commands,
            });
        }
        fixture.until(|fixture| fixture.blocks().is_ok_and(|blocks| blocks != before)).await;
        let (done, answer) = tokio::sync::oneshot::channel();
        fixture.commands.send(MembershipCommand::Ask(StoreQuery::ReadContents(done))).await.unwrap();
        assert_eq!(answer.await.unwrap().unwrap().claims.len(), 3);
        assert_eq!(fixture.blocks().unwrap().len(), 3);
        task.abort();
    });
}

#[test]
fn a1_a_block_shortage_ends_when_no_block_is_needed() {
    run(async {
        let mut fixture = Fixture::new(&[]);
        for n in 2..17 {
            join(&fixture.registry, &candidate(&format!("n{n}"), n)).await.unwrap();
        }
        let task = fixture.start();
        fixture.until(|fixture| fixture.blocks().is_ok()).await;
        let before = fixture.blocks().unwrap();
        let pending_request = PendingBlockRequests::default();
        pending_request.request(BlockNeed {
            network: &NetworkRef::default(),
            wanted: WantedBlocks::Besides(before[0]),
            observed: &before,
            commands: &fixture.commands,
        });
        let has_shortage = |fixture: &Fixture| {
            fixture
                .agent_status
                .conditions()
                .iter()
                .any(|condition| condition.code == types::Code::BlocksExhausted)
        };
        fixture.until(has_shortage).await;
        // No reconcile round repeats the request, because pods were removed.
        fixture.until(|fixture| !has_shortage(fixture)).await;
        task.abort();
        let failed = JoinError::from(store::Error::Config { problem: "no right to write".to_owned() });
        assert_ne!(
            failed.finding(&fixture.shared.config).code,
            types::Code::BlocksExhausted,
            "a failed store does not mean a shortage of blocks"
        );
    });
}

#[test]
fn a_node_without_a_block_reports_the_store_it_waits_for() {
    run(async {
        let fixture = Fixture::new(&[]);
        fixture.shared.explain_waiting("etcd at http://a:2379");
        assert!(fixture.blocks().unwrap_err().contains("yet: waiting for etcd at http://a:2379"));
        // A record without blocks does not change the reason.
        let (entered, _) = fixture.registry.enter(&candidate("n1", 1)).await.unwrap();
        fixture.shared.accept(&entered).await;
        assert!(fixture.blocks().unwrap_err().contains("yet: waiting for etcd at http://a:2379"));
    });
}

/// For example on a full or read-only disk.
#[test]
fn a_record_that_cannot_be_saved_is_reported_and_saved_later() {
    run(async {
        let mut fixture = Fixture::new(&[]);
        let state = fixture.dir.path().join("state");
        std::fs::write(&state, "a file instead of the directory").unwrap();
        let task = fixture.start();
        fixture.until(|fixture| fixture.blocks().is_ok()).await;
        let is_reported = |fixture: &Fixture| {
            fixture.agent_status.conditions().iter().any(|condition| {
                condition.code == types::Code::StateDirUnwritable
                    && condition.fix.as_deref().is_some_and(|fix| fix.starts_with("df -h /"))
            })
        };
        fixture.until(is_reported).await;
        assert!(fixture.saved_blocks().is_empty());
        std::fs::remove_file(&state).unwrap();
        fixture.until(|fixture| !is_reported(fixture)).await;
        assert_eq!(fixture.saved_blocks(), fixture.blocks().unwrap());
        task.abort();
    });
}

/// Reports of the peers thread are saved without a wait of that thread.
#[test]
fn peers_that_could_not_be_saved_are_reported_and_saved_later() {
    run(async {
        let fixture = Fixture::new(&[]);
        let state = fixture.dir.path().join("state");
        std::fs::write(&state, "a file instead of the directory").unwrap();
        let (reports, received) = reports();
        let shared = Arc::clone(&fixture.shared);
        let task = tokio::spawn(async move { shared.save_peers(received.records).await });
        let peer = NodeRecord {
            blocks: blocks(&["10.2.7.0/24", "fd00:2:0:0:7000::/68"]),
            ..candidate("n2", 2).record
        };
        let awaited = vec!["n3".try_into().unwrap()];
        reports.records.send_replace(PeerRecords { records: Arc::new(vec![peer.clone()]), awaited });
        let has = |fixture: &Fixture, code| {
            fixture.agent_status.conditions().iter().any(|condition| condition.code == code)
        };
        fixture.until(|fixture| has(fixture, types::Code::StateDirUnwritable)).await;
        assert!(
            has(&fixture, types::Code::PeerNotRegistered)
                && BlockAllocation::of_default(fixture.shared.peers_blocks()) == peer.blocks
        );
        std::fs::remove_file(&state).unwrap();
        fixture.until(|fixture| !has(fixture, types::Code::StateDirUnwritable)).await;
        assert_eq!(fixture.shared.node_state.peers(), [peer]);
        task.abort();
    });
}

#[test]
fn the_mtu_and_lost_addresses_of_this_node_are_followed() {
    run(async {
        let fixture = Fixture::new(&OWN_BLOCKS);
        let (reports, received) = reports();
        let shared = Arc::clone(&fixture.shared);
        let task = tokio::spawn(async move { shared.follow_position(received.position).await });
        reports.position.send_replace(NodePosition { mtu: Some(1380), ..NodePosition::default() });
        let mtu = |fixture: &Fixture| fixture.allocations.default_network().unwrap().mtu();
        fixture
            .until(|fixture| mtu(fixture) == Some(1380) && fixture.shared.node_state.mtu() == Some(1380))
            .await;
        // A link that is down briefly does not change the MTU.
        let lost = vec!["2001:db8::5".parse().unwrap()];
        reports.position.send_replace(NodePosition { mtu: None, lost });
        fixture.shared.contact.stopped("no answer");
        let is_reported = |fixture: &Fixture| {
            fixture.shared.report();
            fixture
                .agent_status
                .conditions()
                .iter()
                .any(|condition| condition.message.contains("lost its address 2001:db8::5"))
        };
        fixture.until(is_reported).await;
        assert_eq!(mtu(&fixture), Some(1380));
        task.abort();
    });
}

#[test]
fn nodes_retry_at_different_times() {
    let wait = Duration::from_secs(5);
    let waits: BTreeSet<Duration> =
        (0..100).map(|n| with_jitter(wait, &NodeUid::from_random([n; 16]), 1)).collect();
    assert!(waits.len() > 50, "{waits:?}");
    assert!(waits.iter().all(|time| (wait / 2..wait * 3 / 2).contains(time)), "{waits:?}");
}

/// Other nodes accept packets of its pods only from these.
#[test]
fn d_the_record_follows_the_macs_of_the_links() {
    run(async {
        let mut fixture = Fixture::new(&OWN_BLOCKS);
        let macs = || async {
            let key = fixture.registry.layout.node(&"n1".try_into().unwrap());
            let entry = fixture.registry.store.get(&key).await.unwrap();
            entry.map(|entry| NodeRecord::decode(&entry.value).unwrap().macs)
        };
        let (first, second) = (vec![Mac::local([1; 5])], vec![Mac::local([2; 5])]);
        fixture.macs.send_replace(first.clone());
        let task = fixture.idle.take().map(|member| tokio::spawn(member.run())).unwrap();
        for expected in [first, second.clone()] {
            let end = std::time::Instant::now() + TEST_TIMEOUT;
            while macs().await.as_ref() != Some(&expected) {
                assert!(std::time::Instant::now() < end, "{:?}", macs().await);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            fixture.macs.send_replace(second.clone());
        }
        task.abort();
    });
}

/// The value of an object of tenant blue.
fn network(name: &str, subnet: &str) -> (ObjectId, Vec<u8>) {
    let metadata = json!({ "name": name, "tenant": "blue" });
    let spec = json!({ "subnets": [subnet] });
    let document =
        json!({ "apiVersion": API_VERSION, "kind": "Network", "metadata": metadata, "spec": spec });
    let object = ClusterObject::from_document(document).unwrap();
    (object.id(), ObjectRecord::from(object).encode())
}

#[test]
fn d_claims_of_a_network_count_in_any_order_with_its_object() {
    let mut fixture = Fixture::new(&[]);
    run(async {
        let member = fixture.start();
        fixture.until(|node| node.blocks().is_ok()).await;
        let put = |key: String, value: &[u8]| Change::Put { key, value: value.to_vec(), lease: None };
        let layout = &fixture.registry.layout;
        let owned = |changes: Vec<Change>, block: IpNet, expected: Option<&'static str>| {
            let expected = Some(expected.map(|node| node.try_into().unwrap()));
            let (fixture, mut found) = (&fixture, None);
            async move {
                fixture.registry.store.commit(&[], &changes).await.unwrap();
                let until = tokio::time::Instant::now() + TEST_TIMEOUT;
                while found != expected {
                    assert!(
                        tokio::time::Instant::now() < until,
                        "{block}: {found:?} instead of {expected:?}"
                    );
                    found = fixture.peers.take().claims.remove(&block).or(found);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        };
        let claim = BlockClaim { node: "n2".try_into().unwrap() }.encode();
        let subnets = [("a", "10.90.0.0/16", "10.90.1.0/24"), ("b", "10.91.0.0/16", "10.91.1.0/24")];
        for (at, (name, subnet, block)) in subnets.into_iter().enumerate() {
            let ((id, value), block) = (network(name, subnet), block.parse().unwrap());
            let network_ref = id.network_ref().unwrap();
            let (object, key) = (layout.object(&id), layout.network_block(&network_ref, &block));
            // In one transaction, in both orders.
            let mut changes = vec![put(object.clone(), &value), put(key.clone(), &claim)];
            changes.rotate_left(at);
            owned(changes, block, Some("n2")).await;
            // The claim is removed later than the object.
            owned(vec![Change::Delete(object.clone())], block, None).await;
            let commit =
                |change: Change| async { fixture.registry.store.commit(&[], &[change]).await.unwrap() };
            commit(Change::Delete(key.clone())).await;
            // An object that cannot be read at first.
            commit(put(object.clone(), b"{}")).await;
            commit(put(key, &claim)).await;
            owned(vec![put(object, &value)], block, Some("n2")).await;
        }
        drop(fixture.commands);
        member.await.unwrap();
    });
}
