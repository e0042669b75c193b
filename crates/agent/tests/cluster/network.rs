//! The network between nodes and its faults: drift is repaired, changes are followed, and unmanaged objects are not touched.

mod injection;
mod leftovers;
mod many_peers;
mod mtu;
mod nodes;
mod repair;
mod topology;
mod transports;
mod underlay;

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::{Agent, AttachedPod, Cluster, Ns, PodPath, inspect, uninterrupted};

use crate::common::{TIMEOUT, await_that};

/// The VXLAN device between IPv4 addresses.
const TUNNEL: &str = "pwvx4";

/// The managed routes to peers in the kernel, one line each.
pub(crate) fn peer_routes(ns: &Ns) -> BTreeSet<String> {
    let mut routes = BTreeSet::new();
    for family in ["-4", "-6"] {
        let text = ns.sh(&["ip", family, "route", "show", "proto", "113"]).unwrap();
        // The flags `dead` and `linkdown` are part of a line, so that it differs while the link is not usable.
        routes.extend(text.lines().map(|line| line.trim().to_owned()));
    }
    routes
}

/// The routes to a pod's block.
fn routes_to(ns: &Ns, cluster: &Cluster, pod: &str) -> Vec<String> {
    let addresses = &crate::common::pod(cluster, pod).addresses;
    let covers_pod = |line: &&String| {
        let net: Option<ipnet::IpNet> = line.split(' ').next().and_then(|dst| dst.parse().ok());
        net.is_some_and(|net| addresses.iter().any(|address| net.contains(address)))
    };
    peer_routes(ns).iter().filter(covers_pod).cloned().collect()
}

/// The kernel objects for peers, as `ip` and `bridge` show them. Without the index of the tunnel, which may change.
#[derive(Debug, PartialEq, Eq)]
struct PeerObjects {
    routes: BTreeSet<String>,
    tunnel: Value,
    neighbours: BTreeSet<String>,
    fdb: BTreeSet<String>,
    addresses: Vec<inspect::ListedAddress>,
    rp_filter: String,
}

impl PeerObjects {
    fn of(ns: &Ns) -> Option<Self> {
        let lines = |text: String| text.lines().map(|line| line.trim().to_owned()).collect();
        let tunnel = ns.json(&["ip", "-d", "-j", "link", "show", "dev", TUNNEL]).ok()?[0].take();
        let is_up = tunnel["flags"].as_array()?.iter().any(|flag| flag == "UP");
        let data = &tunnel["linkinfo"]["info_data"];
        let tunnel = serde_json::json!({
            "mtu": tunnel["mtu"], "mac": tunnel["address"], "alias": tunnel["ifalias"], "up": is_up,
            "id": data["id"], "local": data["local"], "port": data["port"], "learning": data["learning"],
        });
        Some(Self {
            routes: peer_routes(ns),
            tunnel,
            neighbours: lines(ns.sh(&["ip", "neigh", "show", "dev", TUNNEL, "nud", "permanent"]).ok()?),
            fdb: lines(ns.sh(&["bridge", "fdb", "show", "dev", TUNNEL]).ok()?),
            addresses: inspect::addresses(ns, TUNNEL).ok()?,
            rp_filter: ns.sh(&["cat", "/proc/sys/net/ipv4/conf/pwvx4/rp_filter"]).ok()?,
        })
    }
}

/// Waits until the objects have their initial state.
#[track_caller]
fn await_peer_objects(ns: &Ns, before: &PeerObjects, after: &str, within: Duration) {
    let started = Instant::now();
    let mut last = None;
    while last.as_ref() != Some(before) {
        assert!(started.elapsed() < within, "after {after}: {last:#?}\ninstead of {before:#?}");
        last = PeerObjects::of(ns);
    }
}

/// Runs an `ip` command.
#[track_caller]
fn ip(ns: &Ns, words: &str) {
    let argv: Vec<&str> = ["ip"].into_iter().chain(words.split(' ')).collect();
    ns.sh(&argv).unwrap();
}

#[track_caller]
fn set_sysctl(ns: &Ns, key: &str, value: &str) {
    let path = format!("/proc/sys/net/{key}");
    ns.enter(|| std::fs::write(&path, value)).unwrap().unwrap();
}

/// The path between two pods, from the routing table of the first pod's node.
#[track_caller]
fn path(cluster: &Cluster, from: &str, to: &str) -> PodPath {
    let matrix = cluster.reach(Duration::ZERO).unwrap();
    matrix.cell(from, to).unwrap().path
}

#[track_caller]
fn await_path(cluster: &Cluster, (from, to): (&str, &str), expected: PodPath, within: Duration) {
    await_that(&format!("{from} → {to} by {expected:?}"), within, || path(cluster, from, to) == expected);
}

/// The messages of the agent's conditions.
fn problems(agent: &Agent) -> Vec<String> {
    let status = agent.get(api::STATUS).unwrap();
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    all.iter().filter_map(|problem| problem["message"].as_str().map(str::to_owned)).collect()
}

fn mtu_of(ns: &Ns, dev: &str) -> u32 {
    inspect::link(ns, dev).unwrap().mtu
}

/// Transfers 2 MiB over TCP.
#[track_caller]
fn transfer(from: &AttachedPod, (to, address): (&AttachedPod, IpAddr)) {
    const SIZE: usize = 2 << 20;
    let listener = to.pod.enter(|| TcpListener::bind((address, 0))).unwrap().unwrap();
    let at = listener.local_addr().unwrap();
    let mut sender = from.pod.enter(|| TcpStream::connect_timeout(&at, TIMEOUT)).unwrap().unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    let received = std::thread::scope(|scope| {
        scope.spawn(move || {
            sender.set_write_timeout(Some(TIMEOUT)).unwrap();
            sender.write_all(&vec![7; SIZE])
        });
        receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut bytes = Vec::with_capacity(SIZE);
        uninterrupted(|| receiver.read_to_end(&mut bytes)).map(|_| bytes.len())
    });
    assert_eq!(received.unwrap(), SIZE, "{} to {address}", from.name);
}
