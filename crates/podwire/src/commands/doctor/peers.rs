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
use super::node::CheckedNode;
use super::paths::{self, Path};
use super::ping::{Ping, PingResult};
use super::size::{self, NarrowPath};
use crate::commands::nodes::ask;
use crate::print;

const CHECK: &str = "peers";
/// This many probes run at a time, and none begins later than the deadline.
const AT_ONCE: usize = 32;
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// Targets that were not probed are named up to this number.
const MOST_NAMED: usize = 3;
/// An agent that does not know the question.
const NOT_FOUND: u16 = 404;

pub(super) fn reached(node: &CheckedNode) -> Vec<Check> {
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
    let deadline = Instant::now() + DEADLINE;
    let observed = in_parallel(&probes, deadline, |probe| probe.run(node));
    let observed = observed.into_iter().map(|observed| observed.unwrap_or(PeerProbe::Late)).collect();
    findings(&probes, measured(observed, deadline)).into_iter().chain(unknown).collect()
}

/// How large packets may be on narrow paths. That takes seconds, and is done after all nodes were probed.
fn measured(observed: Vec<PeerProbe>, deadline: Instant) -> Vec<PeerProbe> {
    let narrow: Vec<NarrowPath> = (observed.iter())
        .filter_map(|observed| match observed {
            PeerProbe::Narrow(path) => Some(path.clone()),
            PeerProbe::Fine(_)
            | PeerProbe::Wrong(_)
            | PeerProbe::Measured(_)
            | PeerProbe::NotAsked(_)
            | PeerProbe::Late => None,
        })
        .collect();
    let mut measured = in_parallel(&narrow, deadline, |path| path.measure(deadline)).into_iter();
    let measure = |observed| match observed {
        PeerProbe::Narrow(path) => match measured.next().flatten() {
            Some(Ok(found)) => PeerProbe::Measured(Check::problem(CHECK, found)),
            Some(Err(why)) => PeerProbe::NotAsked(why),
            None => PeerProbe::Measured(Check::problem(CHECK, path.unmeasured())),
        },
        other => other,
    };
    observed.into_iter().map(measure).collect()
}

/// One address of a node, or the path to its pod network.
enum Probe<'a> {
    Address(&'a PeerAddress),
    Path(&'a Path),
}

impl Probe<'_> {
    fn peer(&self) -> &str {
        match self {
            Self::Address(peer) => &peer.name,
            Self::Path(path) => &path.peer,
        }
    }

    /// In a list of targets.
    fn target(&self) -> String {
        match self {
            Self::Address(peer) => format!("node {} at {}", peer.name, peer.address),
            Self::Path(path) => format!("the pod network of node {}", path.peer),
        }
    }

    fn run(&self, node: &CheckedNode) -> PeerProbe {
        match self {
            Self::Address(peer) => probe_address(node, peer),
            Self::Path(path) => match path.probe(node) {
                Ok(None) => PeerProbe::Fine(Sizes::Small),
                Ok(Some(found)) => PeerProbe::Wrong(Check::problem(CHECK, found)),
                Err(why) => PeerProbe::NotAsked(why),
            },
        }
    }
}

/// The results are in the order of the items. None: the deadline was over before.
fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    deadline: Instant,
    run: impl Fn(&T) -> R + Sync,
) -> Vec<Option<R>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((index, item)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            items.get(index).map(|item| (index, item))
        } {
            let is_late = Instant::now() > deadline;
            done.push((index, (!is_late).then(|| run(item))));
        }
        done
    };
    let mut all: Vec<(usize, Option<R>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE.min(items.len())).map(|_| scope.spawn(work)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).flatten().collect()
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, result)| result).collect()
}

/// A cause that is the same for many is reported once. The path to a node that does not answer at all is not reported.
fn findings(probes: &[Probe<'_>], observed: Vec<PeerProbe>) -> Vec<Check> {
    let (mut findings, mut unasked, mut late) = (Vec::new(), Vec::new(), Vec::new());
    let mut fine = Reached::default();
    let answering: Vec<&str> = (probes.iter().zip(&observed))
        .filter(|(probe, observed)| {
            matches!((probe, observed), (Probe::Address(_), PeerProbe::Fine(_) | PeerProbe::Measured(_)))
        })
        .map(|(probe, _)| probe.peer())
        .collect();
    for (probe, observed) in probes.iter().zip(observed) {
        let is_path = matches!(probe, Probe::Path(_));
        match observed {
            PeerProbe::Fine(sizes) => fine.add(probe, sizes),
            PeerProbe::Wrong(_) if is_path && !answering.contains(&probe.peer()) => {}
            PeerProbe::Wrong(finding) | PeerProbe::Measured(finding) => findings.push(finding),
            PeerProbe::Narrow(path) => findings.push(Check::problem(CHECK, path.unmeasured())),
            PeerProbe::NotAsked(why) => unasked.push(why),
            PeerProbe::Late => late.push(probe.target()),
        }
    }
    if let Some(why) = unasked.first() {
        findings.push(not_asked(why, unasked.len() as u64));
    }
    if !late.is_empty() {
        findings.push(Check::unknown(CHECK, not_probed(&late)));
    }
    if findings.is_empty() && fine != Reached::default() {
        findings.push(Check::ok(CHECK, fine.sentence()));
    }
    findings
}

fn not_probed(late: &[String]) -> String {
    let named = late[..late.len().min(MOST_NAMED)].join(", ");
    let more = match late.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("not probed within {} s: {named}{more}", DEADLINE.as_secs())
}

/// What answered.
#[derive(Default, PartialEq, Eq)]
struct Reached {
    addresses: u64,
    by_full_size: u64,
    paths: u64,
}

impl Reached {
    fn add(&mut self, probe: &Probe<'_>, sizes: Sizes) {
        match probe {
            Probe::Address(_) => self.addresses += 1,
            Probe::Path(_) => self.paths += 1,
        }
        self.by_full_size += u64::from(sizes == Sizes::Full);
    }

    fn sentence(&self) -> String {
        let Self { addresses, by_full_size, paths } = self;
        let plural = if *addresses == 1 { "address" } else { "addresses" };
        let paths = print::count(*paths, "path");
        format!(
            "{addresses} {plural} reached, {by_full_size} by packets as large as those of pods; {paths} to pod \
             networks answered"
        )
    }
}

fn not_asked(why: &io::Error, number: u64) -> Check {
    let targets = print::count(number, "target");
    match why.kind() {
        ErrorKind::NotFound => {
            let what = format!("{targets} cannot be pinged: there is no `ping` program");
            let found = Finding::new(Code::ProgramMissing, "program ping", what);
            Check::problem(CHECK, found.fix("apt install iputils-ping"))
        }
        // In a container without CAP_NET_RAW. That is no fault of the node, nor of the others.
        ErrorKind::PermissionDenied => Check::unknown(
            CHECK,
            format!("{targets} cannot be pinged from here: {why}; run it on the node itself"),
        ),
        _ => Check::unknown(CHECK, format!("{targets} could not be probed: {why}")),
    }
}

/// Another node, at one of its addresses.
struct PeerAddress {
    name: String,
    address: IpAddr,
    /// Bytes that a tunnel adds to the packets that pods send to this address. None if they are sent to another one.
    header: Option<u32>,
}

/// All others, also those whose agents are away: their pods keep their network. Without an agent no node is known.
fn peers(node: &CheckedNode) -> Result<Vec<PeerAddress>, String> {
    if node.status().is_none() {
        return Ok(Vec::new());
    }
    let answer = node.client.get(api::NODES, ask::TIMEOUT).map_err(|error| error.to_string())?;
    listed(&answer)
}

fn listed(answer: &HttpAnswer) -> Result<Vec<PeerAddress>, String> {
    // An agent of an older version, which has no other nodes.
    if answer.status == NOT_FOUND {
        return Ok(Vec::new());
    }
    let view: NodesView = ask::read(answer)
        .map_err(|error| format!("the other nodes are not known: {}", print::causes(&error)))?;
    let others = view.nodes.into_iter().filter(|peer| !peer.local);
    let addresses = others.flat_map(|NodeView { name, addresses, .. }| {
        addresses.into_iter().map(move |address| PeerAddress { name: name.clone(), address, header: None })
    });
    Ok(addresses.collect())
}

/// The result of a probe.
enum PeerProbe {
    Fine(Sizes),
    Wrong(Check),
    /// It answers, but not to packets of full size.
    Narrow(NarrowPath),
    /// The same, and it is known which sizes it carries.
    Measured(Check),
    NotAsked(io::Error),
    /// The deadline was over before.
    Late,
}

/// The packets that were answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sizes {
    Small,
    Full,
}

fn probe_address(node: &CheckedNode, peer: &PeerAddress) -> PeerProbe {
    let PeerAddress { name, address, header } = peer;
    let problem = |code: Code, what: String| Finding::new(code, format_args!("node {name}"), what);
    let link = match mtu_to(node, *address) {
        Ok(mtu) => mtu,
        Err(why) => {
            let found =
                problem(Code::PeerUnrouted, format!("there is no route to node {name} at {address}: {why}"));
            let fix = Fix::words(["ip", "route", "get", &address.to_string()]);
            return PeerProbe::Wrong(Check::problem(CHECK, found.fix(fix)));
        }
    };
    let small = Ping { target: *address, source: None, size: None };
    match small.echo() {
        PingResult::NotAsked(why) => return PeerProbe::NotAsked(why),
        PingResult::Silence => {
            let found = problem(Code::PeerUnreachable, format!("node {name} at {address} does not answer"));
            return PeerProbe::Wrong(Check::problem(CHECK, found.fix(small.command())));
        }
        PingResult::NotSent(why) => {
            let what = format!("this node cannot send packets to node {name} at {address}: {why}");
            return PeerProbe::Wrong(Check::problem(
                CHECK,
                problem(Code::PeerUnreachable, what).fix(small.command()),
            ));
        }
        PingResult::Answered => {}
    }
    let Some(header) = *header else { return PeerProbe::Fine(Sizes::Small) };
    let wanted = size::largest(sent_by_pods(node), header, link);
    let has_ipv6 = node.blocks().any(|block| block.addr().is_ipv6());
    let path = NarrowPath { node: name.clone(), address: *address, header, wanted, has_ipv6 };
    match size::ping_of(*address, wanted).echo() {
        PingResult::Answered => PeerProbe::Fine(Sizes::Full),
        PingResult::Silence => PeerProbe::Narrow(path),
        PingResult::NotSent(why) => PeerProbe::NotAsked(path.not_sent(wanted, &why)),
        PingResult::NotAsked(why) => PeerProbe::NotAsked(why),
    }
}

/// The MTU of the pods in the agent's network: of those that run, and of those that start next.
fn sent_by_pods(node: &CheckedNode) -> Option<u32> {
    let network = &node.status()?.network;
    let is_own = |pod: &&Attachment| pod.key.network.as_str() == network.name;
    node.attachments.iter().filter(is_own).map(|pod| pod.mtu).chain(network.mtu).max()
}

/// What the link carries that leads there, or why there is none.
fn mtu_to(node: &CheckedNode, address: IpAddr) -> Result<u32, String> {
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
        let peer = PeerAddress { name: "b".to_owned(), address: IpAddr::from([192, 0, 2, 2]), header: None };
        let probes: Vec<Probe<'_>> = (0..40).map(|_| Probe::Address(&peer)).collect();
        let unasked =
            |kind: ErrorKind| findings(&probes, (0..40).map(|_| PeerProbe::NotAsked(kind.into())).collect());
        let [refused] = &unasked(ErrorKind::PermissionDenied)[..] else { panic!() };
        assert_eq!((refused.verdict, &refused.fix), (Verdict::Unknown, &None));
        assert!(
            refused.message.starts_with("40 targets") && refused.message.contains("denied"),
            "{refused:?}"
        );
        let [missing] = &unasked(ErrorKind::NotFound)[..] else { panic!() };
        assert_eq!(missing.verdict, Verdict::Problem);
        assert!(missing.message.contains("no `ping` program"), "{missing:?}");
        let [late] = &findings(&probes[..1], vec![PeerProbe::Late])[..] else { panic!() };
        assert_eq!(late.verdict, Verdict::Unknown);
        assert_eq!(late.message, "not probed within 10 s: node b at 192.0.2.2");
        let [late] = &findings(&probes, (0..40).map(|_| PeerProbe::Late).collect())[..] else { panic!() };
        assert!(late.message.ends_with("node b at 192.0.2.2 and 37 more"), "{late:?}");
        assert!(findings(&[], Vec::new()).is_empty());
        assert_eq!(findings(&probes[..1], vec![PeerProbe::Fine(Sizes::Small)])[0].verdict, Verdict::Ok);
    }

    #[test]
    fn the_path_to_a_node_that_does_not_answer_at_all_is_not_reported() {
        let peer = PeerAddress { name: "b".to_owned(), address: IpAddr::from([192, 0, 2, 2]), header: None };
        let path = paths::sample("b");
        let probes = [Probe::Address(&peer), Probe::Path(&path)];
        let wrong = |what: &str| {
            PeerProbe::Wrong(Check::problem(CHECK, Finding::new(Code::PeerUnreachable, "node b", what)))
        };
        let messages = |observed| -> Vec<String> {
            findings(&probes, observed).into_iter().map(|check| check.message).collect()
        };
        assert_eq!(messages(vec![PeerProbe::Fine(Sizes::Full), wrong("tunnel")]), ["tunnel"]);
        assert_eq!(messages(vec![wrong("node"), wrong("tunnel")]), ["node"]);
        assert_eq!(
            messages(vec![PeerProbe::Fine(Sizes::Full), PeerProbe::Fine(Sizes::Small)]),
            ["1 address reached, 1 by packets as large as those of pods; 1 path to pod networks answered"]
        );
    }
}
