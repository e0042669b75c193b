//! Faults of the store. No packet depends on it: in all cases, streams of pings between running pods lose nothing.

mod access;
mod hanging_peers_thread;
mod invalid_objects;
mod joining;
mod leases;
mod lost_name;
mod members;
mod outages;
mod records;
mod unreadable_values;
mod wiped;

use std::collections::BTreeMap;

use ::store::{Change, CommitOutcome, EtcdConfig, Store, StoreConfig};
use ipnet::IpNet;
use model::{KeyLayout, NodeRecord, Object as _};
use serde_json::{Value, json};
use testkit::inspect::{self, Family};
use testkit::{Agent, Cluster, Node, Plan};

use crate::common::{TIMEOUT, await_that};

/// The default prefix of a cluster's keys.
const PREFIX: &str = "/podwire";

/// A cluster with all nodes, in which these nodes have an agent and a pod: `p1` on `n1` and so on.
fn up_with(label: &str, plan: &Plan, nodes: &[&str]) -> Cluster {
    let mut cluster = Cluster::hosts(label, plan).unwrap();
    cluster.start_etcd().unwrap();
    for node in nodes {
        cluster.agent_mut(node).unwrap().launch().unwrap();
    }
    for node in nodes {
        cluster.agent_mut(node).unwrap().wait_ready().unwrap();
        cluster.pod(node, &node.replace('n', "p")).unwrap();
    }
    crate::common::expect_reach(&cluster, TIMEOUT);
    cluster
}

/// Two subnets: `n1` and `n3` are on-link, `n2` is behind a router.
fn mixed() -> Plan {
    Plan { subnets: 2, ..Plan::default() }
}

/// A client of the cluster's etcd.
pub(crate) struct StoreClient<'a> {
    host: &'a Node,
    config: EtcdConfig,
    layout: KeyLayout,
}

/// The key of a node's record.
pub(crate) fn node_key(name: &str) -> String {
    format!("{PREFIX}/nodes/{name}")
}

impl<'a> StoreClient<'a> {
    pub(crate) fn of(cluster: &'a Cluster) -> Self {
        let config = EtcdConfig { endpoints: cluster.etcd.endpoints(), ..EtcdConfig::default() };
        Self { host: cluster.etcd.members[0].node(), config, layout: KeyLayout::new(PREFIX, None) }
    }

    fn with<T: Send>(&self, work: impl AsyncFnOnce(Store) -> T + Send) -> T {
        let config = StoreConfig::Etcd(self.config.clone());
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { work(Store::open(&config).unwrap().with_deadline(TIMEOUT)).await })
        };
        self.host.enter(run).unwrap()
    }

    /// All keys and values of the cluster.
    pub(crate) fn all(&self) -> BTreeMap<String, String> {
        let directory = format!("{PREFIX}/");
        let listing = self.with(async |store| store.list(&directory).await.unwrap());
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        listing.entries.into_iter().map(|entry| (entry.key, text(entry.value))).collect()
    }

    fn has(&self, key: &str) -> bool {
        self.with(async |store| store.get(key).await.unwrap()).is_some()
    }

    fn revoke_lease_of(&self, key: &str) {
        self.with(async |store| {
            let lease = store.get(key).await.unwrap().and_then(|entry| entry.lease).unwrap();
            store.revoke(lease).await.unwrap();
        });
    }

    fn commit(&self, changes: &[Change]) {
        let done = self.with(async |store| store.commit(&[], changes).await.unwrap());
        assert!(matches!(done, CommitOutcome::Done { .. }), "{done:?}");
    }

    pub(crate) fn put(&self, key: &str, value: &[u8]) {
        self.commit(&[put(key, value)]);
    }

    pub(crate) fn delete(&self, key: &str) {
        self.commit(&[Change::Delete(key.to_owned())]);
    }

    /// The blocks of each record. Checks that every block has a claim of its node, that every claim has a record, and that no
    /// block occurs twice.
    #[track_caller]
    fn blocks(&self) -> BTreeMap<String, Vec<IpNet>> {
        let all = self.all();
        let mut in_records = BTreeMap::new();
        let mut blocks = BTreeMap::new();
        for (key, value) in &all {
            let Some(node) = self.layout.node_of(key) else { continue };
            let record = NodeRecord::decode(value.as_bytes()).unwrap();
            for block in record.blocks.iter() {
                let other = in_records.insert(self.layout.default_block(block), node.clone());
                assert_eq!(other, None, "{block} is named by {node} as well: {all:#?}");
            }
            blocks.insert(node.to_string(), record.blocks.to_vec());
        }
        let claims = all.iter().filter(|(key, _)| self.layout.network_block_of(key).is_some());
        let claims: BTreeMap<String, String> =
            claims.map(|(key, value)| (key.clone(), claim_owner(value))).collect();
        let in_records: BTreeMap<String, String> =
            in_records.into_iter().map(|(key, node)| (key, node.to_string())).collect();
        assert_eq!(claims, in_records, "claims and records differ");
        blocks
    }
}

fn claim_owner(value: &str) -> String {
    model::BlockClaim::decode(value.as_bytes()).unwrap().node.to_string()
}

fn put(key: &str, value: &[u8]) -> Change {
    Change::Put { key: key.to_owned(), value: value.to_vec(), lease: None }
}

/// The record of a node without an agent on the subnet of `n1`. Number 7 is at 10.199.1.107 and has 10.42.107.0/24.
fn fake_node(number: u8) -> (String, Vec<u8>) {
    fake_node_at(number, 100 + number)
}

/// The record of a fake node and the claims of its blocks.
fn join_fake_node(number: u8) -> Vec<Change> {
    let (key, value) = fake_node(number);
    let owner = format!("fake{number}");
    fake_node_blocks(number).iter().map(|block| claim(block, &owner)).chain([put(&key, &value)]).collect()
}

fn remove_fake_node(number: u8) -> Vec<Change> {
    let layout = KeyLayout::new(PREFIX, None);
    let claims =
        fake_node_blocks(number).into_iter().map(|block| Change::Delete(layout.default_block(&block)));
    claims.chain([Change::Delete(fake_node(number).0)]).collect()
}

fn claim(block: &IpNet, node: &str) -> Change {
    let claim = model::BlockClaim { node: node.try_into().unwrap() };
    put(&KeyLayout::new(PREFIX, None).default_block(block), &claim.encode())
}

/// A fake node at another address.
fn fake_node_at(number: u8, host: u8) -> (String, Vec<u8>) {
    let record = json!({ "schema": 2, "node": {
        "name": format!("fake{number}"), "uid": format!("{:032x}", 0xabcd_0000 + u32::from(number)),
        "addresses": [format!("10.199.1.{host}"), format!("fd99:1::{host}")],
        "blocks": { "default.default-net": fake_node_blocks(number) }, "tunnel_mac": format!("02:00:00:00:01:{number:02x}"), "version": "0",
    }});
    (format!("{PREFIX}/nodes/fake{number}"), record.to_string().into_bytes())
}

fn fake_node_blocks(number: u8) -> Vec<IpNet> {
    let number = 100 + number;
    vec![
        format!("10.42.{number}.0/24").parse().unwrap(),
        format!("fd42::{number:x}00:0:0:0/72").parse().unwrap(),
    ]
}

/// Whether the kernel of a node has routes to all of these blocks.
fn has_routes_to(node: &Node, blocks: &[IpNet]) -> bool {
    let routes = [Family::V4, Family::V6].map(|family| inspect::routes(node, family).unwrap()).concat();
    blocks.iter().all(|block| routes.iter().any(|route| route.dst == block.to_string()))
}

/// Waits until these nodes have routes to all of these blocks.
#[track_caller]
fn await_routes(cluster: &Cluster, nodes: &[&str], blocks: &[IpNet]) {
    for node in nodes {
        let ns = cluster.node(node).unwrap();
        await_that(&format!("routes of {node} to {blocks:?}"), TIMEOUT, || has_routes_to(ns, blocks));
    }
}

/// Waits until an agent reports exactly this number of routes, all of them in state ok.
#[track_caller]
fn await_ok_routes(agent: &Agent, count: usize) {
    let read = || agent.get(api::ROUTES).unwrap_or_default();
    let all_ok = || {
        let routes = read();
        let routes = routes["routes"].as_array().map(Vec::as_slice).unwrap_or_default();
        routes.len() == count && routes.iter().all(|route| route["state"] == "ok")
    };
    let waited = testkit::wait_until("all routes in state ok", TIMEOUT, || Ok(all_ok()));
    assert!(waited.is_ok(), "expected {count} routes in state ok: {:#}", read());
}

/// Message and start of each condition of an agent.
fn problems(agent: &Agent) -> Vec<String> {
    let status = agent.get(api::STATUS).unwrap();
    let all = status["conditions"].as_array().unwrap();
    let text = |condition: &Value, key: &str| condition[key].as_str().unwrap().to_owned();
    all.iter()
        .map(|condition| format!("{}; since {}", text(condition, "message"), text(condition, "since")))
        .collect()
}

#[track_caller]
fn await_problem(agent: &Agent, words: &[&str]) -> String {
    let find = || {
        let matches = |message: &String| words.iter().all(|word| message.contains(word));
        problems(agent).into_iter().find(matches)
    };
    let waited = testkit::wait_until("a condition", TIMEOUT, || Ok(find().is_some()));
    assert!(waited.is_ok(), "expected a condition with {words:?}: {:#?}", problems(agent));
    find().unwrap()
}

#[track_caller]
fn await_no_problem(agent: &Agent) {
    let waited = testkit::wait_until("no condition", TIMEOUT, || Ok(problems(agent).is_empty()));
    assert!(waited.is_ok(), "{:#?}", problems(agent));
}

/// The blocks from which an agent allocates addresses.
fn blocks_of(agent: &Agent) -> Vec<IpNet> {
    let status = agent.get(api::STATUS).unwrap();
    let all = status["network"]["blocks"].as_array().unwrap();
    all.iter().map(|block| block["block"].as_str().unwrap().parse().unwrap()).collect()
}

/// Peers are saved to disk soon after a change, for a power failure.
#[track_caller]
fn await_saved_peers(cluster: &Cluster, node: &str, count: usize) {
    let file = cluster.node(node).unwrap().dir().join("lib/podwire/peers.json");
    let lines = || std::fs::read_to_string(&file).unwrap_or_default().lines().count();
    await_that("the peers to be saved", TIMEOUT, || lines() >= count);
}
