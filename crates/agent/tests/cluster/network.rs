//! The network between nodes and its faults: what is broken by hand comes back, what changes is followed, and nobody
//! else's things are touched.

mod injection;
mod left;
mod many;
mod nodes;
mod repair;
mod size;
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

/// The device of tunnels between IPv4 addresses.
const TUNNEL: &str = "pwvx4";

/// The routes to other nodes that the kernel has, a line each.
pub(crate) fn peer_routes(ns: &Ns) -> BTreeSet<String> {
    let mut routes = BTreeSet::new();
    for family in ["-4", "-6"] {
        let text = ns.sh(&["ip", family, "route", "show", "proto", "113"]).unwrap();
        // What is not up yet or has no carrier is not as it should be.
        routes.extend(text.lines().map(|line| line.trim().to_owned()));
    }
    routes
}

/// Those of them that lead to a pod's block.
fn routes_to(ns: &Ns, cluster: &Cluster, pod: &str) -> Vec<String> {
    let addresses = &crate::common::pod(cluster, pod).addresses;
    let leads = |line: &&String| {
        let net: Option<ipnet::IpNet> = line.split(' ').next().and_then(|dst| dst.parse().ok());
        net.is_some_and(|net| addresses.iter().any(|address| net.contains(address)))
    };
    peer_routes(ns).iter().filter(leads).cloned().collect()
}

/// Everything that leads to other nodes, as other programs show it; without the tunnel's number, which may change.
#[derive(Debug, PartialEq, Eq)]
struct Wiring {
    routes: BTreeSet<String>,
    tunnel: Value,
    neighbours: BTreeSet<String>,
    fdb: BTreeSet<String>,
    addresses: Vec<inspect::ListedAddress>,
    rp_filter: String,
}

impl Wiring {
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

/// Waits until the wiring is what it was.
#[track_caller]
fn await_wiring(ns: &Ns, before: &Wiring, after: &str, within: Duration) {
    let begun = Instant::now();
    let mut last = None;
    while last.as_ref() != Some(before) {
        assert!(begun.elapsed() < within, "after {after}: {last:#?}\ninstead of {before:#?}");
        last = Wiring::of(ns);
    }
}

/// Runs a line of `ip` words.
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

/// Between two pods of the cluster, as the kernel of the first one's node says.
#[track_caller]
fn way(cluster: &Cluster, from: &str, to: &str) -> PodPath {
    let matrix = cluster.reach(Duration::ZERO).unwrap();
    matrix.cell(from, to).unwrap().way
}

#[track_caller]
fn await_way(cluster: &Cluster, (from, to): (&str, &str), wanted: PodPath, within: Duration) {
    await_that(&format!("{from} → {to} by {wanted:?}"), within, || way(cluster, from, to) == wanted);
}

/// What the agent says is wrong.
fn problems(agent: &Agent) -> Vec<String> {
    let status = agent.get(api::STATUS).unwrap();
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    all.iter().filter_map(|problem| problem["message"].as_str().map(str::to_owned)).collect()
}

fn mtu_of(ns: &Ns, dev: &str) -> u32 {
    inspect::link(ns, dev).unwrap().mtu
}

/// Many bytes over TCP, of which all arrive.
#[track_caller]
fn transfer(from: &AttachedPod, (to, address): (&AttachedPod, IpAddr)) {
    const SIZE: usize = 2 << 20;
    let listener = to.pod.enter(|| TcpListener::bind((address, 0))).unwrap().unwrap();
    let at = listener.local_addr().unwrap();
    let mut sender = from.pod.enter(|| TcpStream::connect_timeout(&at, TIMEOUT)).unwrap().unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    let arrived = std::thread::scope(|scope| {
        scope.spawn(move || {
            sender.set_write_timeout(Some(TIMEOUT)).unwrap();
            sender.write_all(&vec![7; SIZE])
        });
        receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut bytes = Vec::with_capacity(SIZE);
        uninterrupted(|| receiver.read_to_end(&mut bytes)).map(|_| bytes.len())
    });
    assert_eq!(arrived.unwrap(), SIZE, "{} to {address}", from.name);
}
