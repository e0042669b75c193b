//! Other nodes of the cluster: does a packet as large as pods send it, with the header of the tunnel, arrive there in one piece,
//! and does the pod network of each answer? The second finds firewalls that drop the tunnel or the subnets of pods, whatever
//! their rules look like.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api::{HttpAnswer, NodeView, NodesView};
use engine::state::Attachment;
use netlink::RtSocket;
use types::{Code, Finding, Fix};

use super::finding::Check;
use super::node::Node;
use super::paths::{self, Path};
use super::ping::{Echo, Ping};
use crate::commands::nodes::ask;
use crate::print;

const CHECK: &str = "peers";
/// This many probes run at a time, and none begins later than the deadline.
const AT_ONCE: usize = 32;
const DEADLINE: Duration = Duration::from_secs(10);
/// Of an echo request, without the IP header.
const ICMP: u32 = 8;
/// Bytes of data in an echo request of which `ping` chooses the size.
const SMALL: u32 = 56;
/// An agent that does not know the question.
const NOT_FOUND: u16 = 404;

pub(super) fn reached(node: &Node) -> Vec<Check> {
    let mut peers = match peers(node) {
        Ok(peers) => peers,
        Err(why) => {
            // The agent's own conditions say why, and are listed below.
            return vec![Check::unknown(CHECK, why)];
        }
    };
    let names: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
    let (paths, unknown) = match paths::to(node, &names) {
        Ok(paths) => (paths, None),
        Err(error) => {
            let what = format!("paths to the pods of other nodes are not known: {}", print::causes(&error));
            (Vec::new(), Some(Check::unknown(CHECK, what)))
        }
    };
    for peer in &mut peers {
        let own = paths.iter().filter(|path| path.peer == peer.name);
        peer.header = own.filter_map(|path| path.header_to(peer.address)).max();
    }
    let probes: Vec<Probe<'_>> =
        peers.iter().map(Probe::Address).chain(paths.iter().map(Probe::Path)).collect();
    findings(&probes, probe_all(node, &probes)).into_iter().chain(unknown).collect()
}

/// One address of a node, or the path to its pod network.
enum Probe<'a> {
    Address(&'a Peer),
    Path(&'a Path),
}

impl Probe<'_> {
    fn peer(&self) -> &str {
        match self {
            Self::Address(peer) => &peer.name,
            Self::Path(path) => &path.peer,
        }
    }

    fn run(&self, node: &Node) -> Observed {
        match self {
            Self::Address(peer) => probe_address(node, peer),
            Self::Path(path) => match path.probe(node) {
                Ok(None) => Observed::Fine,
                Ok(Some(found)) => Observed::Wrong(Check::problem(CHECK, found)),
                Err(why) => Observed::NotAsked(why),
            },
        }
    }
}

/// In parallel, with one deadline for all. The results are in the order of the probes.
fn probe_all(node: &Node, probes: &[Probe<'_>]) -> Vec<Observed> {
    let (next, deadline) = (AtomicUsize::new(0), Instant::now() + DEADLINE);
    let work = || {
        let mut done = Vec::new();
        while let Some((index, probe)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            probes.get(index).map(|probe| (index, probe))
        } {
            let is_late = Instant::now() > deadline;
            done.push((index, if is_late { Observed::Late } else { probe.run(node) }));
        }
        done
    };
    let mut all: Vec<(usize, Observed)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE.min(probes.len())).map(|_| scope.spawn(work)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).flatten().collect()
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, observed)| observed).collect()
}

/// A cause that is the same for many is reported once. The path to a node that does not answer at all is not reported.
fn findings(probes: &[Probe<'_>], observed: Vec<Observed>) -> Vec<Check> {
    let (mut findings, mut fine, mut unasked, mut late) = (Vec::new(), [0u64; 2], Vec::new(), 0);
    let answering: Vec<&str> = (probes.iter().zip(&observed))
        .filter(|(probe, observed)| {
            matches!((probe, observed), (Probe::Address(_), Observed::Fine | Observed::Narrow(_)))
        })
        .map(|(probe, _)| probe.peer())
        .collect();
    for (probe, observed) in probes.iter().zip(observed) {
        let is_path = matches!(probe, Probe::Path(_));
        match observed {
            Observed::Fine => fine[usize::from(is_path)] += 1,
            Observed::Wrong(_) if is_path && !answering.contains(&probe.peer()) => {}
            Observed::Wrong(finding) | Observed::Narrow(finding) => findings.push(finding),
            Observed::NotAsked(why) => unasked.push(why),
            Observed::Late => late += 1,
        }
    }
    if let Some(why) = unasked.first() {
        findings.push(not_asked(why, unasked.len()));
    }
    if late > 0 {
        let what = format!("{late} probes were not made within {} s", DEADLINE.as_secs());
        findings.push(Check::unknown(CHECK, what));
    }
    if findings.is_empty() && fine != [0, 0] {
        let [addresses, paths] = fine;
        let plural = if addresses == 1 { "address" } else { "addresses" };
        let paths = print::count(paths, "path");
        let what = format!("{addresses} {plural} reached, {paths} to pods by packets of full size");
        findings.push(Check::ok(CHECK, what));
    }
    findings
}

fn not_asked(why: &io::Error, number: usize) -> Check {
    match why.kind() {
        ErrorKind::NotFound => {
            let what = format!("{number} targets cannot be pinged: there is no `ping` program");
            let found = Finding::new(Code::ProgramMissing, "program ping", what);
            Check::problem(CHECK, found.fix("apt install iputils-ping"))
        }
        // In a container without CAP_NET_RAW. That is no fault of the node, nor of the others.
        _ => Check::unknown(
            CHECK,
            format!("{number} targets cannot be pinged from here: {why}; run it on the node itself"),
        ),
    }
}

/// Another node, at one of its addresses.
struct Peer {
    name: String,
    address: IpAddr,
    /// Bytes that a tunnel adds to the packets that pods send to this address. None if they are sent to another one.
    header: Option<u32>,
}

/// All others, also those whose agents are away: their pods keep their network. Without an agent no node is known.
fn peers(node: &Node) -> Result<Vec<Peer>, String> {
    if node.status().is_none() {
        return Ok(Vec::new());
    }
    let answer = node.client.get(api::NODES, ask::PATIENCE).map_err(|error| error.to_string())?;
    listed(&answer)
}

fn listed(answer: &HttpAnswer) -> Result<Vec<Peer>, String> {
    // An agent of an older version, which has no other nodes.
    if answer.status == NOT_FOUND {
        return Ok(Vec::new());
    }
    let view: NodesView = ask::read(answer)
        .map_err(|error| format!("the other nodes are not known: {}", print::causes(&error)))?;
    let others = view.nodes.into_iter().filter(|peer| !peer.local);
    let addresses = others.flat_map(|NodeView { name, addresses, .. }| {
        addresses.into_iter().map(move |address| Peer { name: name.clone(), address, header: None })
    });
    Ok(addresses.collect())
}

/// The result of a probe.
enum Observed {
    Fine,
    Wrong(Check),
    /// It answers, but not to packets of full size.
    Narrow(Check),
    NotAsked(io::Error),
    /// The deadline was over before.
    Late,
}

fn probe_address(node: &Node, peer: &Peer) -> Observed {
    let Peer { name, address, header } = peer;
    let problem = |code: Code, what: String| Finding::new(code, format_args!("node {name}"), what);
    let link = match mtu_to(node, *address) {
        Ok(mtu) => mtu,
        Err(why) => {
            let found =
                problem(Code::PeerUnrouted, format!("there is no route to node {name} at {address}: {why}"));
            let fix = Fix::words(["ip", "route", "get", &address.to_string()]);
            return Observed::Wrong(Check::problem(CHECK, found.fix(fix)));
        }
    };
    let small = Ping { target: *address, source: None, size: None };
    match small.echo() {
        Echo::NotAsked(why) => return Observed::NotAsked(why),
        Echo::Silence => {
            let found = problem(Code::PeerUnreachable, format!("node {name} at {address} does not answer"));
            return Observed::Wrong(Check::problem(CHECK, found.fix(small.command())));
        }
        Echo::Answered => {}
    }
    let Some(header) = *header else { return Observed::Fine };
    let wanted = largest(sent_by_pods(node), header, link);
    let is_carried = |size| matches!(echo_of(&small, size), Echo::Answered);
    if is_carried(wanted) {
        return Observed::Fine;
    }
    let carried = largest_carried(SMALL + headers(*address), wanted, is_carried);
    let what = narrow(peer, header, (wanted, carried));
    Observed::Narrow(Check::problem(CHECK, problem(Code::PathMtuTooSmall, what)))
}

/// The MTU of the pods in the agent's network: of those that run, and of those that start next.
fn sent_by_pods(node: &Node) -> Option<u32> {
    let network = &node.status()?.network;
    let is_own = |pod: &&Attachment| pod.key.network.as_str() == network.name;
    node.attachments.iter().filter(is_own).map(|pod| pod.mtu).chain(network.mtu).max()
}

/// The largest packet to a node. Packets that are larger than the link are reported by the check of the MTU.
fn largest(pods: Option<u32>, header: u32, link: u32) -> u32 {
    pods.map_or(link, |pods| link.min(pods.saturating_add(header)))
}

fn headers(address: IpAddr) -> u32 {
    ICMP + if address.is_ipv4() { 20 } else { 40 }
}

/// An echo request that is one packet of `size` bytes.
fn echo_of(ping: &Ping, size: u32) -> Echo {
    Ping { size: Some(size.saturating_sub(headers(ping.target))), ..*ping }.echo()
}

/// The largest size that is carried, if `least` is and `too_large` is not.
fn largest_carried(least: u32, too_large: u32, is_carried: impl Fn(u32) -> bool) -> u32 {
    let (mut carried, mut lost) = (least, too_large);
    while carried + 1 < lost {
        let middle = carried.midpoint(lost);
        if is_carried(middle) {
            carried = middle;
        } else {
            lost = middle;
        }
    }
    carried
}

fn narrow(peer: &Peer, header: u32, (wanted, carried): (u32, u32)) -> String {
    let Peer { name, address, .. } = peer;
    let (pods, most) = (wanted.saturating_sub(header), carried.saturating_sub(header));
    let tunnel = if header > 0 { format!(", {wanted} in the tunnel,") } else { String::new() };
    format!(
        "node {name} at {address} is reached, but pods send up to {pods} bytes{tunnel} and the path carries {carried}: \
         pods may send {most} at most"
    )
}

/// What the link carries that leads there, or why there is none.
fn mtu_to(node: &Node, address: IpAddr) -> Result<u32, String> {
    let found = RtSocket::open().and_then(|mut host| host.route_to(address));
    let link = found.map_err(|error| error.to_string())?.link;
    let known = node.links.iter().find(|known| known.index == link);
    known.map(|known| known.mtu).ok_or_else(|| "its link is gone".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn an_agent_that_cannot_tell_is_not_one_without_other_nodes() {
        let answer = |status, body: &str| {
            listed(&HttpAnswer { status, body: body.as_bytes().to_vec() }).map(|all| all.len())
        };
        let nodes = |agent: &str, is_stale: bool| {
            let node = serde_json::json!({ "name": "b", "uid": "", "addresses": ["192.0.2.2"], "blocks": [],
                "tunnelMac": "", "version": "", "agent": agent, "refused": [], "local": false });
            let view = serde_json::json!({ "asOf": "2026-11-15T21:13:04Z", "ageSeconds": 90, "stale": is_stale,
                "reason": is_stale.then_some("etcd is not reachable"), "nodes": [node] });
            answer(200, &view.to_string())
        };
        assert_eq!(nodes("alive", false), Ok(1));
        assert_eq!(nodes("away", false), Ok(1), "its pods may run");
        assert_eq!(nodes("alive", true), Ok(1), "the last known state is better than none");
        assert_eq!(nodes("unknown", true), Ok(1));
        assert_eq!(answer(404, r#"{"error": "no such page"}"#), Ok(0));
        let error = answer(503, r#"{"error": "etcd is away"}"#).unwrap_err();
        assert_eq!(error, "the other nodes are not known: etcd is away");
        assert!(answer(200, "{}").is_err() && answer(500, "oops").is_err());
    }

    #[test]
    fn a_cause_that_many_probes_share_is_reported_once() {
        let peer = Peer { name: "b".to_owned(), address: IpAddr::from([192, 0, 2, 2]), header: None };
        let probes: Vec<Probe<'_>> = (0..40).map(|_| Probe::Address(&peer)).collect();
        let unasked =
            |kind: ErrorKind| findings(&probes, (0..40).map(|_| Observed::NotAsked(kind.into())).collect());
        let [refused] = &unasked(ErrorKind::PermissionDenied)[..] else { panic!() };
        assert_eq!((refused.verdict, &refused.fix), (Verdict::Unknown, &None));
        assert!(
            refused.message.starts_with("40 targets") && refused.message.contains("denied"),
            "{refused:?}"
        );
        let [missing] = &unasked(ErrorKind::NotFound)[..] else { panic!() };
        assert_eq!(missing.verdict, Verdict::Problem);
        assert!(missing.message.contains("no `ping` program"), "{missing:?}");
        let [late] = &findings(&probes[..1], vec![Observed::Late])[..] else { panic!() };
        assert_eq!(late.verdict, Verdict::Unknown);
        assert!(findings(&[], Vec::new()).is_empty());
        assert_eq!(findings(&probes[..1], vec![Observed::Fine])[0].verdict, Verdict::Ok);
    }

    #[test]
    fn the_path_to_a_node_that_does_not_answer_at_all_is_not_reported() {
        let peer = Peer { name: "b".to_owned(), address: IpAddr::from([192, 0, 2, 2]), header: None };
        let path = paths::sample("b");
        let probes = [Probe::Address(&peer), Probe::Path(&path)];
        let wrong = |what: &str| {
            Observed::Wrong(Check::problem(CHECK, Finding::new(Code::PeerUnreachable, "node b", what)))
        };
        let messages = |observed| -> Vec<String> {
            findings(&probes, observed).into_iter().map(|check| check.message).collect()
        };
        assert_eq!(messages(vec![Observed::Fine, wrong("tunnel")]), ["tunnel"]);
        assert_eq!(messages(vec![wrong("node"), wrong("tunnel")]), ["node"]);
        assert_eq!(
            messages(vec![Observed::Fine, Observed::Fine]),
            ["1 address reached, 1 path to pods by packets of full size"]
        );
    }

    #[test]
    fn f3_packets_are_as_large_as_those_of_pods_with_the_header_of_the_tunnel() {
        assert_eq!(largest(Some(1450), 50, 1500), 1500);
        assert_eq!(largest(Some(1340), 50, 1500), 1390, "network.mtu makes them smaller");
        assert_eq!(largest(Some(1340), 0, 1500), 1340, "direct routes add nothing");
        assert_eq!((largest(Some(9000), 50, 1500), largest(None, 50, 1500)), (1500, 1500));
        for path in [84, 85, 576, 1390, 1498, 1499] {
            assert_eq!(largest_carried(84, 1500, |size| size <= path), path);
        }
        let peer = Peer { name: "b".to_owned(), address: IpAddr::from([192, 0, 2, 2]), header: None };
        assert_eq!(
            narrow(&peer, 50, (1500, 1390)),
            "node b at 192.0.2.2 is reached, but pods send up to 1450 bytes, 1500 in the tunnel, and the path carries \
             1390: pods may send 1340 at most"
        );
        assert!(narrow(&peer, 0, (1500, 1390)).ends_with("carries 1390: pods may send 1390 at most"));
    }
}
