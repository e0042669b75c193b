//! Probes other nodes: with packets of the size that pods send, including the tunnel header, and through their pod networks.
//! The second probe finds firewalls that drop the tunnel or the pod subnets, without evaluating their rules.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api::{HttpAnswer, NodeView, NodesView};
use engine::state::Attachment;
use netlink::RtSocket;
use types::{Code, Finding, Fix};

use super::check::Check;
use super::node::CheckedNode;
use super::paths::{self, Path};
use super::ping::{Ping, PingResult};
use super::size::{self, NarrowPath};
use crate::commands::nodes::client;
use crate::print;

const CHECK: &str = "peers";
/// Number of parallel probes. No probe starts after the deadline.
const PARALLEL_PROBES: usize = 32;
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// Number of targets that are named if they were not probed.
const MAX_NAMED: usize = 3;
/// The answer of an agent that does not know the path.
const NOT_FOUND: u16 = 404;

pub(super) fn check_peers(node: &CheckedNode) -> Vec<Check> {
    let mut peers = match peers(node) {
        Ok(peers) => peers,
        Err(error) => {
            // The conditions of the agent have the reason.
            return vec![Check::unknown(CHECK, error)];
        }
    };
    let names: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
    let (paths, failed) = match paths::to(node, &names) {
        Ok(paths) => (paths, None),
        Err(error) => {
            let message = format!("paths to pods of other nodes are unknown: {}", print::causes(&error));
            (Vec::new(), Some(Check::unknown(CHECK, message)))
        }
    };
    for peer in &mut peers {
        let own = paths.iter().filter(|path| path.peer == peer.name);
        peer.header = own.filter_map(|path| path.header_to(peer.address)).max();
    }
    let probes: Vec<Probe<'_>> =
        peers.iter().map(Probe::Address).chain(paths.iter().map(Probe::Path)).collect();
    let deadline = Instant::now() + DEADLINE;
    let results = in_parallel(&probes, deadline, |probe| probe.run(node));
    let results = results.into_iter().map(|result| result.unwrap_or(PeerProbeResult::Late)).collect();
    checks(&probes, measured(results, deadline)).into_iter().chain(failed).collect()
}

/// Measures the largest packet on narrow paths. This takes seconds, so it is done after all nodes were probed.
fn measured(results: Vec<PeerProbeResult>, deadline: Instant) -> Vec<PeerProbeResult> {
    let narrow: Vec<NarrowPath> = (results.iter())
        .filter_map(|result| match result {
            PeerProbeResult::Narrow(path) => Some(path.clone()),
            PeerProbeResult::Reached(_)
            | PeerProbeResult::Problem(_)
            | PeerProbeResult::Measured(_)
            | PeerProbeResult::NotRun(_)
            | PeerProbeResult::Late => None,
        })
        .collect();
    let mut measured = in_parallel(&narrow, deadline, |path| path.measure(deadline)).into_iter();
    let measure = |result| match result {
        PeerProbeResult::Narrow(path) => match measured.next().flatten() {
            Some(Ok(found)) => PeerProbeResult::Measured(Check::problem(CHECK, found)),
            Some(Err(error)) => PeerProbeResult::NotRun(error),
            None => PeerProbeResult::Measured(Check::problem(CHECK, path.unmeasured())),
        },
        other => other,
    };
    results.into_iter().map(measure).collect()
}

/// A target: an address of a node, or the path to its pod network.
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

    /// For messages.
    fn target(&self) -> String {
        match self {
            Self::Address(peer) => format!("node {} at {}", peer.name, peer.address),
            Self::Path(path) => format!("the pod network of node {}", path.peer),
        }
    }

    fn run(&self, node: &CheckedNode) -> PeerProbeResult {
        match self {
            Self::Address(peer) => probe_address(node, peer),
            Self::Path(path) => match path.probe(node) {
                Ok(None) => PeerProbeResult::Reached(Sizes::Small),
                Ok(Some(found)) => PeerProbeResult::Problem(Check::problem(CHECK, found)),
                Err(error) => PeerProbeResult::NotRun(error),
            },
        }
    }
}

/// The results are in the order of the items. None if the deadline had passed.
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
        let workers: Vec<_> = (0..PARALLEL_PROBES.min(items.len())).map(|_| scope.spawn(work)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).flatten().collect()
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, result)| result).collect()
}

/// A common cause is reported once. Paths to a node that does not reply at all are not reported.
fn checks(probes: &[Probe<'_>], results: Vec<PeerProbeResult>) -> Vec<Check> {
    let (mut checks, mut errors, mut late) = (Vec::new(), Vec::new(), Vec::new());
    let mut reached = ReachedTargets::default();
    let replying: Vec<&str> = (probes.iter().zip(&results))
        .filter(|(probe, result)| {
            matches!(
                (probe, result),
                (Probe::Address(_), PeerProbeResult::Reached(_) | PeerProbeResult::Measured(_))
            )
        })
        .map(|(probe, _)| probe.peer())
        .collect();
    for (probe, result) in probes.iter().zip(results) {
        let is_path = matches!(probe, Probe::Path(_));
        match result {
            PeerProbeResult::Reached(sizes) => reached.add(probe, sizes),
            PeerProbeResult::Problem(_) if is_path && !replying.contains(&probe.peer()) => {}
            PeerProbeResult::Problem(check) | PeerProbeResult::Measured(check) => checks.push(check),
            PeerProbeResult::Narrow(path) => checks.push(Check::problem(CHECK, path.unmeasured())),
            PeerProbeResult::NotRun(error) => errors.push(error),
            PeerProbeResult::Late => late.push(probe.target()),
        }
    }
    if let Some(error) = errors.first() {
        checks.push(probe_error(error, errors.len() as u64));
    }
    if !late.is_empty() {
        checks.push(Check::unknown(CHECK, not_probed(&late)));
    }
    if checks.is_empty() && reached != ReachedTargets::default() {
        checks.push(Check::ok(CHECK, reached.sentence()));
    }
    checks
}

fn not_probed(late: &[String]) -> String {
    let named = late[..late.len().min(MAX_NAMED)].join(", ");
    let more = match late.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("not probed within {} s: {named}{more}", DEADLINE.as_secs())
}

/// Numbers of targets that replied.
#[derive(Default, PartialEq, Eq)]
struct ReachedTargets {
    addresses: u64,
    by_full_size: u64,
    paths: u64,
}

impl ReachedTargets {
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
        let full_size = match by_full_size {
            0 => String::new(),
            number => format!(", the {number} that pods use also with packets of full size"),
        };
        format!("{addresses} {plural} reachable{full_size}; {paths} to pod networks reachable")
    }
}

fn probe_error(error: &io::Error, number: u64) -> Check {
    let targets = print::count(number, "target");
    match error.kind() {
        ErrorKind::NotFound => {
            let message = format!("{targets} cannot be pinged: the program `ping` is missing");
            let found = Finding::new(Code::ProgramMissing, "program ping", message);
            Check::problem(CHECK, found.fix("apt install iputils-ping"))
        }
        // In a container without CAP_NET_RAW. It is not a problem of this node or of a peer.
        ErrorKind::PermissionDenied => Check::unknown(
            CHECK,
            format!(
                "{targets} cannot be pinged from this process: {error}; run the command on the node itself"
            ),
        ),
        _ => Check::unknown(CHECK, format!("{targets} could not be probed: {error}")),
    }
}

/// An address of another node.
struct PeerAddress {
    name: String,
    address: IpAddr,
    /// Bytes that the tunnel to this address adds to packets of pods. None if another address is used.
    header: Option<u32>,
}

/// All peers, also with offline agents, because their pods keep their network. Without an agent no peer is known.
fn peers(node: &CheckedNode) -> Result<Vec<PeerAddress>, String> {
    if node.status().is_none() {
        return Ok(Vec::new());
    }
    let answer = node.client.get(api::NODES, client::TIMEOUT).map_err(|error| error.to_string())?;
    listed(&answer)
}

fn listed(answer: &HttpAnswer) -> Result<Vec<PeerAddress>, String> {
    // An agent of an older version has no peers.
    if answer.status == NOT_FOUND {
        return Ok(Vec::new());
    }
    let view: NodesView =
        client::read(answer).map_err(|error| format!("the peers are unknown: {}", print::causes(&error)))?;
    let peers = view.nodes.into_iter().filter(|peer| !peer.local);
    let addresses = peers.flat_map(|NodeView { name, addresses, .. }| {
        addresses.into_iter().map(move |address| PeerAddress { name: name.clone(), address, header: None })
    });
    Ok(addresses.collect())
}

/// The result of a probe.
enum PeerProbeResult {
    Reached(Sizes),
    Problem(Check),
    /// It replies only to small packets.
    Narrow(NarrowPath),
    /// A narrow path with its measured size.
    Measured(Check),
    NotRun(io::Error),
    /// The deadline had passed.
    Late,
}

/// The size of packets that were replied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sizes {
    Small,
    Full,
}

fn probe_address(node: &CheckedNode, peer: &PeerAddress) -> PeerProbeResult {
    let PeerAddress { name, address, header } = peer;
    let problem = |code: Code, message: String| Finding::new(code, format_args!("node {name}"), message);
    let link = match mtu_to(node, *address) {
        Ok(mtu) => mtu,
        Err(error) => {
            let found = problem(
                Code::PeerUnrouted,
                format!("there is no route to node {name} at {address}: {error}"),
            );
            let fix = Fix::words(["ip", "route", "get", &address.to_string()]);
            return PeerProbeResult::Problem(Check::problem(CHECK, found.fix(fix)));
        }
    };
    let small = Ping { target: *address, source: None, size: None };
    match small.echo() {
        PingResult::NotRun(error) => return PeerProbeResult::NotRun(error),
        PingResult::NoReply => {
            let found = problem(Code::PeerUnreachable, format!("node {name} at {address} does not reply"));
            return PeerProbeResult::Problem(Check::problem(CHECK, found.fix(small.command())));
        }
        PingResult::NotSent(reason) => {
            let message = format!("this node cannot send packets to node {name} at {address}: {reason}");
            return PeerProbeResult::Problem(Check::problem(
                CHECK,
                problem(Code::PeerUnreachable, message).fix(small.command()),
            ));
        }
        PingResult::Replied => {}
    }
    let Some(header) = *header else { return PeerProbeResult::Reached(Sizes::Small) };
    let wanted = size::largest(pod_mtu(node), header, link);
    let has_ipv6 = node.blocks().any(|block| block.addr().is_ipv6());
    let path = NarrowPath { node: name.clone(), address: *address, header, wanted, has_ipv6 };
    match size::ping_of(*address, wanted).echo() {
        PingResult::Replied => PeerProbeResult::Reached(Sizes::Full),
        PingResult::NoReply => PeerProbeResult::Narrow(path),
        PingResult::NotSent(reason) => PeerProbeResult::NotRun(path.not_sent(wanted, &reason)),
        PingResult::NotRun(error) => PeerProbeResult::NotRun(error),
    }
}

/// The largest MTU of pods in the agent's network: of running pods and of new pods.
fn pod_mtu(node: &CheckedNode) -> Option<u32> {
    let network = &node.status()?.network;
    let is_own = |pod: &&Attachment| pod.key.network.as_str() == network.name;
    node.attachments.iter().filter(is_own).map(|pod| pod.mtu).chain(network.mtu).max()
}

/// The MTU of the link that has the route to the address.
fn mtu_to(node: &CheckedNode, address: IpAddr) -> Result<u32, String> {
    let found = RtSocket::open().and_then(|mut host| host.route_to(address));
    let link = found.map_err(|error| error.to_string())?.link;
    let known = node.links.iter().find(|known| known.index == link);
    known.map(|known| known.mtu).ok_or_else(|| "its link does not exist".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn an_error_of_the_agent_is_not_an_empty_list_of_peers() {
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
        assert_eq!(nodes("away", false), Ok(1), "its pods may be running");
        assert_eq!(nodes("alive", true), Ok(1), "the last known state is better than none");
        assert_eq!(nodes("unknown", true), Ok(1));
        assert_eq!(answer(404, r#"{"error": "no such page"}"#), Ok(0));
        let error = answer(503, r#"{"error": "etcd is unreachable"}"#).unwrap_err();
        assert_eq!(error, "the peers are unknown: etcd is unreachable");
        assert!(answer(200, "{}").is_err() && answer(500, "oops").is_err());
    }

    #[test]
    fn a_common_cause_of_many_probes_is_reported_once() {
        let peer = PeerAddress { name: "b".to_owned(), address: IpAddr::from([192, 0, 2, 2]), header: None };
        let probes: Vec<Probe<'_>> = (0..40).map(|_| Probe::Address(&peer)).collect();
        let failed = |kind: ErrorKind| {
            checks(&probes, (0..40).map(|_| PeerProbeResult::NotRun(kind.into())).collect())
        };
        let [refused] = &failed(ErrorKind::PermissionDenied)[..] else { panic!() };
        assert_eq!((refused.verdict, &refused.fix), (Verdict::Unknown, &None));
        assert!(
            refused.message.starts_with("40 targets") && refused.message.contains("denied"),
            "{refused:?}"
        );
        let [missing] = &failed(ErrorKind::NotFound)[..] else { panic!() };
        assert_eq!(missing.verdict, Verdict::Problem);
        assert!(missing.message.contains("program `ping` is missing"), "{missing:?}");
        let [late] = &checks(&probes[..1], vec![PeerProbeResult::Late])[..] else { panic!() };
        assert_eq!(late.verdict, Verdict::Unknown);
        assert_eq!(late.message, "not probed within 10 s: node b at 192.0.2.2");
        let [late] = &checks(&probes, (0..40).map(|_| PeerProbeResult::Late).collect())[..] else { panic!() };
        assert!(late.message.ends_with("node b at 192.0.2.2 and 37 more"), "{late:?}");
        assert!(checks(&[], Vec::new()).is_empty());
        assert_eq!(
            checks(&probes[..1], vec![PeerProbeResult::Reached(Sizes::Small)])[0].verdict,
            Verdict::Ok
        );
    }

    #[test]
    fn paths_to_a_node_that_does_not_reply_are_not_reported() {
        let peer = PeerAddress { name: "b".to_owned(), address: IpAddr::from([192, 0, 2, 2]), header: None };
        let path = paths::sample("b");
        let probes = [Probe::Address(&peer), Probe::Path(&path)];
        let problem = |message: &str| {
            PeerProbeResult::Problem(Check::problem(
                CHECK,
                Finding::new(Code::PeerUnreachable, "node b", message),
            ))
        };
        let messages = |results| -> Vec<String> {
            checks(&probes, results).into_iter().map(|check| check.message).collect()
        };
        assert_eq!(messages(vec![PeerProbeResult::Reached(Sizes::Full), problem("tunnel")]), ["tunnel"]);
        assert_eq!(messages(vec![problem("node"), problem("tunnel")]), ["node"]);
        assert_eq!(
            messages(vec![PeerProbeResult::Reached(Sizes::Full), PeerProbeResult::Reached(Sizes::Small)]),
            [
                "1 address reachable, the 1 that pods use also with packets of full size; 1 path to pod networks reachable"
            ]
        );
    }
}
