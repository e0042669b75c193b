//! The store's side as a whole, without a kernel: what a node hands out is what the store says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::super::command::MembershipCommand;
use super::super::grow::{Asker, PendingBlockRequest};
use super::super::member::{Member, spread};
use super::super::node_state::NodeStateDir;
use super::super::shared::SharedMembership;
use super::registry::put;
use super::*;
use crate::agent_status::AgentStatus;
use crate::allocation::NodeAllocations;
use crate::peers::PeerQueue;
use crate::peers::inputs::{NodePosition, PeerRecords, inputs, reports};
use crate::waker::Waker;
use config::{Config, Flags};

const SOON: Duration = Duration::from_secs(60);

/// A node without its kernel's side.
struct Site {
    dir: tempfile::TempDir,
    registry: Registry,
    shared: Arc<SharedMembership>,
    allocations: Arc<NodeAllocations>,
    agent_status: Arc<AgentStatus>,
    commands: mpsc::Sender<MembershipCommand>,
    _addresses: watch::Sender<Option<Vec<IpAddr>>>,
    _peers: PeerQueue,
    /// Until it is started.
    idle: Option<Member>,
}

impl Site {
    /// It remembers these blocks.
    fn new(remembered: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::load(&Flags::default(), Vec::new()).unwrap();
        config.run_dir = dir.path().join("run");
        config.network.subnets = spec().subnets;
        config.cluster.margin = spec().margin;
        config.state_dir = dir.path().join("state");
        config.reconcile = Duration::from_millis(1);
        let node_state = NodeStateDir::of(&config.state_dir, &config.network.name);
        let allocations = Arc::new(NodeAllocations::none("nothing yet", Vec::new()));
        let agent_status = Arc::new(AgentStatus::new());
        let (peers, queue) = inputs(Waker::new().unwrap());
        let slots = (Arc::clone(&allocations), Arc::clone(&agent_status));
        let shared = Arc::new(SharedMembership::new(&Arc::new(config), slots, node_state));
        shared.remember(nets(remembered));
        let (registry, candidate) = (registry(dir.path()), candidate("n1", 1));
        let (addresses, published) = watch::channel(Some(vec!["192.0.2.1".parse().unwrap()]));
        let (commands, waiting) = mpsc::channel(16);
        let member = Member {
            registry: registry.clone(),
            candidate: Candidate { remembered: nets(remembered), ..candidate },
            block_layouts: block_layouts(&spec()).unwrap(),
            shared: Arc::clone(&shared),
            addresses: published,
            holds: watch::channel(None).0,
            lost: Arc::default(),
            peers,
            commands: waiting,
            revision: 0,
            unread: BTreeMap::new(),
            was_wiped: false,
            asked: JoinSet::new(),
            progress_at: tokio::time::Instant::now(),
            aftercare_at: tokio::time::Instant::now(),
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
            _peers: queue,
            idle,
        }
    }

    fn start(&mut self) -> tokio::task::JoinHandle<()> {
        let member = self.idle.take().unwrap();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            tokio::select! {
                () = member.run() => {}
                () = shared.report_reach() => {}
            }
        })
    }

    fn blocks(&self) -> Result<Vec<IpNet>, String> {
        self.allocations
            .default_network()
            .map(|network| network.blocks().to_vec())
            .map_err(|none| none.to_string())
    }

    /// What it would know after a reboot.
    fn written(&self) -> Vec<IpNet> {
        let node_state = NodeStateDir::of(&self.dir.path().join("state"), &self.shared.config.network.name);
        node_state.record().map(|record| record.blocks).unwrap_or_default()
    }

    async fn until(&self, what: impl Fn(&Self) -> bool) {
        let end = std::time::Instant::now() + SOON;
        while !what(self) {
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

const OURS: [&str; 2] = ["10.2.0.0/24", "fd00:2::/68"];

#[test]
fn a_node_whose_name_went_to_another_hands_out_nothing_any_more() {
    run(async {
        let mut site = Site::new(&OURS);
        assert_eq!(site.blocks().unwrap(), nets(&OURS), "as long as nobody says otherwise");
        site.agent_status.set_started();
        let other = join(&site.registry, &candidate("n1", 2)).await.unwrap();
        assert_eq!(other.record.blocks, nets(&OURS), "the very blocks that we remember");
        say_alive(&site.registry, &other).await;
        let task = site.start();
        site.until(|site| site.blocks().is_err()).await;
        assert!(site.blocks().unwrap_err().contains("belongs to another machine"), "{:?}", site.blocks());
        assert!(!site.agent_status.readiness().ready);
        site.until(|site| site.written().is_empty()).await;
        // It goes, and everything is ours.
        let gone = Change::Delete(site.registry.layout.alive(&other.record.name));
        site.registry.store.commit(&[], &[gone]).await.unwrap();
        site.until(|site| site.blocks().is_ok_and(|blocks| blocks == nets(&OURS))).await;
        assert_eq!(site.written(), nets(&OURS));
        task.abort();
    });
}

#[test]
fn a_block_that_was_lost_is_given_up_also_where_there_is_no_other() {
    run(async {
        let mut site = Site::new(&OURS);
        for n in 2..18 {
            join(&site.registry, &candidate(&format!("n{n}"), n)).await.unwrap();
        }
        let task = site.start();
        site.until(|site| site.blocks().is_err()).await;
        let lost =
            |site: &Site| site.agent_status.conditions().iter().any(|one| one.code == types::Code::BlockLost);
        site.until(lost).await;
        site.until(|site| site.blocks().is_err_and(|why| why.contains("all 16 blocks"))).await;
        // Another goes for good.
        remove(&site.registry, "n5", true).await.unwrap();
        site.until(|site| site.blocks().is_ok()).await;
        // No pod has an address of what was lost: it is no concern of anybody.
        site.until(|site| !lost(site)).await;
        task.abort();
    });
}

#[test]
fn a_block_that_was_lost_is_given_up_also_if_the_disk_hangs() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().max_blocking_threads(1).build().unwrap().block_on(async {
        let [first, second, v6] = ["10.2.0.0/24", "10.2.1.0/24", "fd00:2::/68"];
        let site = Site::new(&[first, second, v6]);
        // Whatever waits for the disk waits for this thread.
        let (disk, hangs) = std::sync::mpsc::channel::<()>();
        let hanging = tokio::task::spawn_blocking(move || hangs.recv());
        let record = NodeRecord { blocks: nets(&[second, v6]), ..candidate("n1", 1).record };
        let lost = vec![(nets(&[first])[0], "n2".try_into().unwrap())];
        let joined = Joined { record, revision: 1, network: 1, lost, was_forgotten: false };
        let mut accepted = std::pin::pin!(site.shared.accept(&joined));
        tokio::select! {
            biased;
            () = &mut accepted => panic!("the disk hangs"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(site.blocks().unwrap(), nets(&[second, v6]));
        drop(disk);
        accepted.await;
        assert_eq!(site.written(), nets(&[second, v6]));
        assert!(hanging.await.unwrap().is_err());
    });
}

/// A store that answers can be asked, also by a node that cannot join: the fix of `BlocksExhausted` needs it.
#[test]
fn a4_a_node_without_a_free_block_lists_nodes_and_removes_one() {
    run(async {
        let mut site = Site::new(&[]);
        for n in 2..18 {
            join(&site.registry, &candidate(&format!("n{n}"), n)).await.unwrap();
        }
        let task = site.start();
        let has = |site: &Site, code| site.agent_status.conditions().iter().any(|one| one.code == code);
        site.until(|site| has(site, types::Code::BlocksExhausted)).await;
        assert!(site.shared.contact.is_reachable() && site.shared.contact.failure().is_none());
        let (done, answer) = tokio::sync::oneshot::channel();
        site.commands.send(MembershipCommand::Ask(StoreQuery::Look(done))).await.unwrap();
        assert_eq!(answer.await.unwrap().unwrap().nodes.len(), 17);
        let (done, answer) = tokio::sync::oneshot::channel();
        let ask = StoreQuery::Remove { name: "n5".try_into().unwrap(), force: true, done };
        site.commands.send(MembershipCommand::Ask(ask)).await.unwrap();
        assert_eq!(answer.await.unwrap().unwrap().len(), 2);
        site.until(|site| site.blocks().is_ok() && !has(site, types::Code::BlocksExhausted)).await;
        task.abort();
    });
}

/// Records that a newer version wrote are never removed.
#[test]
fn a1_a_damaged_record_is_reported_with_the_command_that_removes_it() {
    run(async {
        let mut site = Site::new(&[]);
        let key = |name: &str| site.registry.layout.node(&name.try_into().unwrap());
        let (bad, newer) = (key("bad"), key("newer"));
        put(&site.registry, &bad, b"junk").await;
        put(&site.registry, &newer, br#"{"schema":7,"node":{}}"#).await;
        let task = site.start();
        let message = |site: &Site, key: &str| {
            let object = format!("key {key}");
            let found = site.agent_status.conditions().into_iter().find(|one| one.object == object);
            found.map(|one| one.message)
        };
        site.until(|site| message(site, &bad).is_some() && message(site, &newer).is_some()).await;
        let text = message(&site, &bad).unwrap();
        assert!(text.contains("'podwire node rm --force bad'"), "{text}");
        let text = message(&site, &newer).unwrap();
        assert!(!text.contains("node rm") && text.contains("update podwire"), "{text}");
        task.abort();
    });
}

#[test]
fn a4_a_store_with_another_network_is_reachable() {
    run(async {
        let mut site = Site::new(&[]);
        let mut other = candidate("n2", 2);
        other.spec.vni += 1;
        join(&site.registry, &other).await.unwrap();
        let task = site.start();
        site.until(|site| {
            site.agent_status.conditions().iter().any(|one| one.code == types::Code::NetworkMismatch)
        })
        .await;
        assert!(site.shared.contact.is_reachable() && site.shared.contact.failure().is_none());
        task.abort();
    });
}

#[test]
fn of_two_wishes_for_a_block_one_is_granted() {
    run(async {
        let mut site = Site::new(&[]);
        let task = site.start();
        site.until(|site| site.blocks().is_ok()).await;
        let before = site.blocks().unwrap();
        for pending_request in [PendingBlockRequest::default(), PendingBlockRequest::default()] {
            pending_request.want(Asker { like: before[0], observed: &before, commands: &site.commands });
        }
        site.until(|site| site.blocks().is_ok_and(|blocks| blocks != before)).await;
        let (done, answer) = tokio::sync::oneshot::channel();
        site.commands.send(MembershipCommand::Ask(StoreQuery::Look(done))).await.unwrap();
        assert_eq!(answer.await.unwrap().unwrap().claims.len(), 3);
        assert_eq!(site.blocks().unwrap().len(), 3);
        task.abort();
    });
}

#[test]
fn a1_no_free_block_ends_when_no_block_is_needed_any_more() {
    run(async {
        let mut site = Site::new(&[]);
        for n in 2..17 {
            join(&site.registry, &candidate(&format!("n{n}"), n)).await.unwrap();
        }
        let task = site.start();
        site.until(|site| site.blocks().is_ok()).await;
        let before = site.blocks().unwrap();
        let pending_request = PendingBlockRequest::default();
        pending_request.want(Asker { like: before[0], observed: &before, commands: &site.commands });
        let lacks_free_block = |site: &Site| {
            site.agent_status.conditions().iter().any(|one| one.code == types::Code::BlocksExhausted)
        };
        site.until(lacks_free_block).await;
        // No reconcile round asks again: pods went.
        site.until(|site| !lacks_free_block(site)).await;
        task.abort();
        let failed = JoinError::from(store::Error::Config { problem: "no right to write".to_owned() });
        assert_ne!(
            failed.finding().code,
            types::Code::BlocksExhausted,
            "a store that failed says nothing of blocks"
        );
    });
}

#[test]
fn a_node_without_a_block_says_who_is_asked_for_one() {
    run(async {
        let site = Site::new(&[]);
        site.shared.explain_asking("etcd at http://a:2379");
        assert!(site.blocks().unwrap_err().contains("yet: etcd at http://a:2379 is asked"));
        // A record without blocks is no news for whoever had none.
        let (entered, _) = site.registry.enter(&candidate("n1", 1)).await.unwrap();
        site.shared.accept(&entered).await;
        assert!(site.blocks().unwrap_err().contains("yet: etcd at http://a:2379 is asked"));
    });
}

/// A disk that was full, or read-only.
#[test]
fn what_could_not_be_written_down_is_told_and_written_later() {
    run(async {
        let mut site = Site::new(&[]);
        let state = site.dir.path().join("state");
        std::fs::write(&state, "in the way of the directory").unwrap();
        let task = site.start();
        site.until(|site| site.blocks().is_ok()).await;
        let is_told = |site: &Site| {
            site.agent_status.conditions().iter().any(|one| {
                one.code == types::Code::StateDirUnwritable
                    && one.fix.as_deref().is_some_and(|fix| fix.starts_with("df -h /"))
            })
        };
        site.until(is_told).await;
        assert!(site.written().is_empty());
        std::fs::remove_file(&state).unwrap();
        site.until(|site| !is_told(site)).await;
        assert_eq!(site.written(), site.blocks().unwrap());
        task.abort();
    });
}

/// What the peers thread reports reaches the disk, without a wait of that thread.
#[test]
fn peers_that_could_not_be_saved_are_reported_and_saved_later() {
    run(async {
        let site = Site::new(&[]);
        let state = site.dir.path().join("state");
        std::fs::write(&state, "in the way of the directory").unwrap();
        let (reports, received) = reports();
        let shared = Arc::clone(&site.shared);
        let task = tokio::spawn(async move { shared.save_peers(received.records).await });
        let peer = NodeRecord {
            blocks: nets(&["10.2.7.0/24", "fd00:2:0:0:7000::/68"]),
            ..candidate("n2", 2).record
        };
        let awaited = vec!["n3".try_into().unwrap()];
        reports.records.send_replace(PeerRecords { records: Arc::new(vec![peer.clone()]), awaited });
        let has = |site: &Site, code| site.agent_status.conditions().iter().any(|one| one.code == code);
        site.until(|site| has(site, types::Code::StateDirUnwritable)).await;
        assert!(has(&site, types::Code::PeerNotRegistered) && site.shared.peers_blocks() == peer.blocks);
        std::fs::remove_file(&state).unwrap();
        site.until(|site| !has(site, types::Code::StateDirUnwritable)).await;
        assert_eq!(site.shared.node_state.peers(), [peer]);
        task.abort();
    });
}

#[test]
fn the_mtu_and_lost_addresses_of_this_node_are_followed() {
    run(async {
        let site = Site::new(&OURS);
        let (reports, received) = reports();
        let shared = Arc::clone(&site.shared);
        let task = tokio::spawn(async move { shared.follow_position(received.position).await });
        reports.position.send_replace(NodePosition { mtu: Some(1380), ..NodePosition::default() });
        let mtu = |site: &Site| site.allocations.default_network().unwrap().mtu();
        site.until(|site| mtu(site) == Some(1380) && site.shared.node_state.mtu() == Some(1380)).await;
        // A link that is away for a moment comes back as it was.
        let lost = vec!["2001:db8::5".parse().unwrap()];
        reports.position.send_replace(NodePosition { mtu: None, lost });
        site.shared.contact.stopped("no answer");
        let is_named = |site: &Site| {
            site.shared.tell();
            site.agent_status
                .conditions()
                .iter()
                .any(|one| one.message.contains("lost its address 2001:db8::5"))
        };
        site.until(is_named).await;
        assert_eq!(mtu(&site), Some(1380));
        task.abort();
    });
}

#[test]
fn not_all_nodes_come_back_in_the_same_moment() {
    let wait = Duration::from_secs(5);
    let waits: BTreeSet<Duration> =
        (0..100).map(|n| spread(wait, &NodeUid::from_random([n; 16]), 1)).collect();
    assert!(waits.len() > 50, "{waits:?}");
    assert!(waits.iter().all(|one| (wait / 2..wait * 3 / 2).contains(one)), "{waits:?}");
}
