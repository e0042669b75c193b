//! Faults of the store. No packet depends on it: whatever becomes of it, streams of pings between running pods lose nothing.

mod access;
mod away;
mod contents;
mod held;
mod joining;
mod leases;
mod members;
mod records;
mod taken;
mod wiped;

use std::collections::BTreeMap;

use ::store::{Change, CommitOutcome, EtcdConfig, Store, StoreConfig};
use ipnet::IpNet;
use model::{KeyLayout, NodeRecord, Object as _};
use serde_json::{Value, json};
use testkit::inspect::{self, Family};
use testkit::{Agent, Cluster, Node, Plan};

use crate::common::{SOON, TIMEOUT, await_that};

/// The directory of a cluster's keys, if nothing else is said.
const PREFIX: &str = "/podwire";

/// The nodes are there, the agents of these run, and each has a pod: `p1` on `n1` and so on.
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

/// Two subnets: `n1` and `n3` are on-link for each other, `n2` is behind a router.
fn mixed() -> Plan {
    Plan { subnets: 2, ..Plan::default() }
}

/// What stands in etcd, and ways to change it, as any of its clients has them.
pub(crate) struct Desk<'a> {
    host: &'a Node,
    config: EtcdConfig,
    layout: KeyLayout,
}

/// Where the record of a node is.
pub(crate) fn node_key(name: &str) -> String {
    format!("{PREFIX}/nodes/{name}")
}

impl<'a> Desk<'a> {
    pub(crate) fn of(cluster: &'a Cluster) -> Self {
        let config = EtcdConfig { endpoints: cluster.etcd.endpoints(), ..EtcdConfig::default() };
        Self { host: cluster.etcd.members[0].node(), config, layout: KeyLayout::new(PREFIX, None) }
    }

    fn with<T: Send>(&self, work: impl AsyncFnOnce(Store) -> T + Send) -> T {
        let config = StoreConfig::Etcd(self.config.clone());
        let inside = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { work(Store::open(&config).unwrap().with_deadline(TIMEOUT)).await })
        };
        self.host.enter(inside).unwrap()
    }

    /// All of our keys, with their values.
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

    fn put(&self, key: &str, value: &[u8]) {
        self.commit(&[put(key, value)]);
    }

    fn delete(&self, key: &str) {
        self.commit(&[Change::Delete(key.to_owned())]);
    }

    /// The blocks of each node, as the records say. Every block is claimed by whoever says to have it, every claim has a
    /// record that names it, and no block is named twice.
    #[track_caller]
    fn blocks(&self) -> BTreeMap<String, Vec<IpNet>> {
        let all = self.all();
        let mut named = BTreeMap::new();
        let mut blocks = BTreeMap::new();
        for (key, value) in &all {
            let Some(node) = self.layout.node_of(key) else { continue };
            let record = NodeRecord::decode(value.as_bytes()).unwrap();
            for block in &record.blocks {
                let other = named.insert(self.layout.block(block), node.clone());
                assert_eq!(other, None, "{block} is named by {node} as well: {all:#?}");
            }
            blocks.insert(node.to_string(), record.blocks);
        }
        let claims = all.iter().filter(|(key, _)| self.layout.block_of(key).is_some());
        let claims: BTreeMap<String, String> =
            claims.map(|(key, value)| (key.clone(), claimant(value))).collect();
        let named: BTreeMap<String, String> =
            named.into_iter().map(|(key, node)| (key, node.to_string())).collect();
        assert_eq!(claims, named, "claims beside what the records name");
        blocks
    }
}

fn claimant(value: &str) -> String {
    model::BlockClaim::decode(value.as_bytes()).unwrap().node.to_string()
}

fn put(key: &str, value: &[u8]) -> Change {
    Change::Put { key: key.to_owned(), value: value.to_vec(), lease: None }
}

/// The record of a node that nobody runs, on the subnet of `n1`: with number 7 at 10.199.1.107, with 10.42.107.0/24.
fn ghost(number: u8) -> (String, Vec<u8>) {
    ghost_at(number, 100 + number)
}

/// The same with the claims of its blocks.
fn ghost_joins(number: u8) -> Vec<Change> {
    let (key, value) = ghost(number);
    let owner = format!("ghost{number}");
    ghost_blocks(number).iter().map(|block| claim(block, &owner)).chain([put(&key, &value)]).collect()
}

fn ghost_leaves(number: u8) -> Vec<Change> {
    let layout = KeyLayout::new(PREFIX, None);
    let claims = ghost_blocks(number).into_iter().map(|block| Change::Delete(layout.block(&block)));
    claims.chain([Change::Delete(ghost(number).0)]).collect()
}

fn claim(block: &IpNet, node: &str) -> Change {
    let claim = model::BlockClaim { node: node.try_into().unwrap() };
    put(&KeyLayout::new(PREFIX, None).block(block), &claim.encode())
}

/// The same at another address.
fn ghost_at(number: u8, host: u8) -> (String, Vec<u8>) {
    let record = json!({ "schema": 1, "node": {
        "name": format!("ghost{number}"), "uid": format!("{:032x}", 0xabcd_0000 + u32::from(number)),
        "addresses": [format!("10.199.1.{host}"), format!("fd99:1::{host}")],
        "blocks": ghost_blocks(number), "tunnel_mac": format!("02:00:00:00:01:{number:02x}"), "version": "0",
    }});
    (format!("{PREFIX}/nodes/ghost{number}"), record.to_string().into_bytes())
}

fn ghost_blocks(number: u8) -> Vec<IpNet> {
    let number = 100 + number;
    vec![
        format!("10.42.{number}.0/24").parse().unwrap(),
        format!("fd42::{number:x}00:0:0:0/72").parse().unwrap(),
    ]
}

/// Whether the kernel of a node has routes to all of these.
fn leads_to(node: &Node, blocks: &[IpNet]) -> bool {
    let routes = [Family::V4, Family::V6].map(|family| inspect::routes(node, family).unwrap()).concat();
    blocks.iter().all(|block| routes.iter().any(|route| route.dst == block.to_string()))
}

/// Waits until these nodes have routes to all of these blocks.
#[track_caller]
fn await_routes(cluster: &Cluster, nodes: &[&str], blocks: &[IpNet]) {
    for node in nodes {
        let place = cluster.node(node).unwrap();
        await_that(&format!("routes of {node} to {blocks:?}"), TIMEOUT, || leads_to(place, blocks));
    }
}

/// Waits until all that an agent says of its routes is that they are as they should be, this many of them.
#[track_caller]
fn await_good_routes(agent: &Agent, count: usize) {
    let look = || agent.get(api::ROUTES).unwrap_or_default();
    let good = || {
        let routes = look();
        let routes = routes["routes"].as_array().map(Vec::as_slice).unwrap_or_default();
        routes.len() == count && routes.iter().all(|route| route["state"] == "ok")
    };
    let waited = testkit::wait_until("good routes", TIMEOUT, || Ok(good()));
    assert!(waited.is_ok(), "{count} good routes are wanted: {:#}", look());
}

/// What an agent asks a person to look at.
fn problems(agent: &Agent) -> Vec<String> {
    let status = agent.get(api::STATUS).unwrap();
    let all = status["conditions"].as_array().unwrap();
    let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
    all.iter().map(|one| format!("{}; since {}", text(one, "message"), text(one, "since"))).collect()
}

#[track_caller]
fn await_problem(agent: &Agent, words: &[&str]) -> String {
    let find = || {
        let fits = |what: &String| words.iter().all(|word| what.contains(word));
        problems(agent).into_iter().find(fits)
    };
    let waited = testkit::wait_until("a problem", TIMEOUT, || Ok(find().is_some()));
    assert!(waited.is_ok(), "a problem with {words:?} is wanted: {:#?}", problems(agent));
    find().unwrap()
}

#[track_caller]
fn await_no_problem(agent: &Agent) {
    let waited = testkit::wait_until("no problem", TIMEOUT, || Ok(problems(agent).is_empty()));
    assert!(waited.is_ok(), "{:#?}", problems(agent));
}

/// The blocks that an agent gives addresses of.
fn blocks_of(agent: &Agent) -> Vec<IpNet> {
    let status = agent.get(api::STATUS).unwrap();
    let all = status["network"]["blocks"].as_array().unwrap();
    all.iter().map(|block| block["block"].as_str().unwrap().parse().unwrap()).collect()
}

/// Others are written down soon after a change, so that they are known when power goes.
#[track_caller]
fn await_saved_peers(cluster: &Cluster, node: &str, count: usize) {
    let file = cluster.node(node).unwrap().dir().join("lib/podwire/peers.json");
    let lines = || std::fs::read_to_string(&file).unwrap_or_default().lines().count();
    await_that("the peers to be written down", SOON, || lines() >= count);
}
