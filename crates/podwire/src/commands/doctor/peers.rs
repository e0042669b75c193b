//! The other nodes, where there are some: does a packet as large as this node sends it arrive there in one piece?

use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use api::NodeView;
use netlink::{RouteLookup, RtSocket};

use super::finding::Finding;
use super::node::Node;

const CHECK: &str = "other nodes";
const PATIENCE: Duration = Duration::from_secs(5);
/// So many are asked at a time, and so many at all.
const AT_ONCE: usize = 16;
const MOST: usize = 512;
/// Of an echo request, without the IP header.
const ICMP: u32 = 8;

pub(super) fn reached(node: &Node) -> Vec<Finding> {
    let peers = match peers(node) {
        Ok(peers) => peers,
        Err(why) => return vec![Finding::problem(CHECK, why)],
    };
    if peers.is_empty() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for some in peers.chunks(AT_ONCE) {
        let asked: Vec<Option<Finding>> = std::thread::scope(|scope| {
            let asking: Vec<_> =
                some.iter().map(|(name, address)| scope.spawn(move || look(node, name, *address))).collect();
            asking.into_iter().map(|asked| asked.join().unwrap_or(None)).collect()
        });
        findings.extend(asked.into_iter().flatten());
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, format!("{} addresses take packets of full size", peers.len())));
    }
    findings
}

/// Names and addresses of those that live. An agent without other nodes, or of an older version, has none.
fn peers(node: &Node) -> Result<Vec<(String, IpAddr)>, String> {
    if node.status().is_none() {
        return Ok(Vec::new());
    }
    let answer = node.client.get(api::NODES, PATIENCE).map_err(|error| error.to_string())?;
    if answer.status != 200 {
        return Ok(Vec::new());
    }
    let nodes: Vec<NodeView> = serde_json::from_slice(&answer.body)
        .map_err(|error| format!("the agent is of another version: {error}"))?;
    let alive = nodes.into_iter().filter(|peer| !peer.here && peer.alive_since.is_some());
    let addresses = alive.flat_map(|peer| {
        let name = peer.name;
        peer.addresses.into_iter().map(move |address| (name.clone(), address))
    });
    Ok(addresses.take(MOST).collect())
}

fn look(node: &Node, name: &str, address: IpAddr) -> Option<Finding> {
    let mtu = mtu_to(node, address)?;
    let command = |size: u32| format!("ping -c 1 -W 1 -M do -s {size} {address}");
    let header = if address.is_ipv4() { 20 } else { 40 };
    let full = mtu.saturating_sub(header + ICMP);
    let what = match (echo(&command(full)), echo(&command(0))) {
        (Echo::Answered, _) => return None,
        (Echo::Silence, Echo::Answered) => format!(
            "node {name} at {address} is reached, but not by packets of {mtu} bytes: the way there carries less"
        ),
        (Echo::Silence, Echo::Silence) => format!("node {name} at {address} does not answer"),
        (Echo::NotAsked, _) | (_, Echo::NotAsked) => {
            let what = format!("node {name} at {address} cannot be asked: there is no `ping` program");
            return Some(Finding::problem(CHECK, what).helps("apt-get install iputils-ping".to_owned()));
        }
    };
    Some(Finding::problem(CHECK, what).helps(command(full)))
}

/// What the link carries that leads there.
fn mtu_to(node: &Node, address: IpAddr) -> Option<u32> {
    let RouteLookup { link, .. } = RtSocket::open().and_then(|mut host| host.route_to(address)).ok()?;
    node.links.iter().find(|known| known.index == link).map(|known| known.mtu)
}

enum Echo {
    Answered,
    Silence,
    /// Without the program nobody was asked.
    NotAsked,
}

fn echo(command: &str) -> Echo {
    let mut words = command.split(' ');
    let Some(program) = words.next() else { return Echo::NotAsked };
    let quiet = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match quiet {
        Ok(status) if status.success() => Echo::Answered,
        Ok(_) => Echo::Silence,
        Err(_) => Echo::NotAsked,
    }
}
