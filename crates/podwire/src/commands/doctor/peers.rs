//! The other nodes, where there are some: does a packet as large as this node sends it arrive there in one piece?

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use api::{Answer, NodeView, NodesView};
use netlink::RtSocket;
use types::{Code, Finding, Fix};

use super::finding::Check;
use super::node::Node;
use crate::commands::nodes::ask;
use crate::print;

const CHECK: &str = "other nodes";
/// So many are asked at a time, and so many at all.
const AT_ONCE: usize = 16;
const MOST: usize = 512;
/// Of an echo request, without the IP header.
const ICMP: u32 = 8;
/// An agent that does not know the question.
const NOT_FOUND: u16 = 404;

pub(super) fn reached(node: &Node) -> Vec<Check> {
    let peers = match peers(node) {
        Ok(peers) => peers,
        Err(why) => {
            // The agent's own conditions say why, and are listed below.
            return vec![Check::unknown(CHECK, why)];
        }
    };
    let mut seen = Vec::new();
    for some in peers.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let asking: Vec<_> = some.iter().map(|peer| scope.spawn(move || look(node, peer))).collect();
            seen.extend(asking.into_iter().filter_map(|asked| asked.join().ok()));
        });
    }
    findings(seen)
}

/// Where nobody can be asked, that is told once and not for each.
fn findings(seen: Vec<Seen>) -> Vec<Check> {
    let (mut findings, mut fine, mut unasked) = (Vec::new(), 0, Vec::new());
    for seen in seen {
        match seen {
            Seen::Fine => fine += 1,
            Seen::Wrong(finding) => findings.push(finding),
            Seen::NotAsked(why) => unasked.push(why),
        }
    }
    if let Some(why) = unasked.first() {
        let number = unasked.len();
        findings.push(match why.kind() {
            ErrorKind::NotFound => {
                let what = format!("{number} addresses cannot be asked: there is no `ping` program");
                let found = Finding::new(Code::ProgramMissing, "program ping", what);
                Check::problem(CHECK, found.fix("apt install iputils-ping"))
            }
            // In a container without CAP_NET_RAW. That is no fault of the node, nor of the others.
            _ => Check::unknown(
                CHECK,
                format!(
                    "{number} addresses cannot be asked from here: `ping`: {why}; ask on the node itself"
                ),
            ),
        });
    }
    if findings.is_empty() && fine > 0 {
        findings.push(Check::ok(CHECK, format!("{fine} addresses take packets of full size")));
    }
    findings
}

/// Another node, at one of its addresses.
struct Peer {
    name: String,
    address: IpAddr,
}

/// All others, also those whose agents are away: their pods keep their network. Without an agent no node is known.
fn peers(node: &Node) -> Result<Vec<Peer>, String> {
    if node.status().is_none() {
        return Ok(Vec::new());
    }
    let answer = node.client.get(api::NODES, ask::PATIENCE).map_err(|error| error.to_string())?;
    listed(&answer)
}

fn listed(answer: &Answer) -> Result<Vec<Peer>, String> {
    // An agent of an older version, which has no other nodes.
    if answer.status == NOT_FOUND {
        return Ok(Vec::new());
    }
    let view: NodesView = ask::read(answer)
        .map_err(|error| format!("the other nodes are not known: {}", print::causes(&error)))?;
    let others = view.nodes.into_iter().filter(|peer| !peer.local);
    let addresses = others.flat_map(|NodeView { name, addresses, .. }| {
        addresses.into_iter().map(move |address| Peer { name: name.clone(), address })
    });
    Ok(addresses.take(MOST).collect())
}

/// What a look at another node gave.
enum Seen {
    Fine,
    Wrong(Check),
    NotAsked(io::Error),
}

fn look(node: &Node, peer: &Peer) -> Seen {
    let Peer { name, address } = peer;
    let mtu = match mtu_to(node, *address) {
        Ok(mtu) => mtu,
        Err(why) => {
            let what = format!("there is no route to node {name} at {address}: {why}");
            let found = Finding::new(Code::PeerUnrouted, format_args!("node {name}"), what);
            let fix = Fix::words(["ip", "route", "get", &address.to_string()]);
            return Seen::Wrong(Check::problem(CHECK, found.fix(fix)));
        }
    };
    let command = |size: u32| {
        let (size, address) = (size.to_string(), address.to_string());
        ["ping", "-c", "1", "-W", "1", "-M", "do", "-s", &size, &address].map(str::to_owned)
    };
    let header = if address.is_ipv4() { 20 } else { 40 };
    let full = mtu.saturating_sub(header + ICMP);
    let (code, what) = match (echo(&command(full)), echo(&command(0))) {
        (Echo::Answered, _) => return Seen::Fine,
        (Echo::NotAsked(why), _) | (_, Echo::NotAsked(why)) => return Seen::NotAsked(why),
        (Echo::Silence, Echo::Answered) => (
            Code::PathMtuTooSmall,
            format!(
                "node {name} at {address} is reached, but not by packets of {mtu} bytes: the path carries less"
            ),
        ),
        (Echo::Silence, Echo::Silence) => {
            (Code::PeerUnreachable, format!("node {name} at {address} does not answer"))
        }
    };
    let found = Finding::new(code, format_args!("node {name}"), what);
    Seen::Wrong(Check::problem(CHECK, found.fix(Fix::words(command(full)))))
}

/// What the link carries that leads there, or why there is none.
fn mtu_to(node: &Node, address: IpAddr) -> Result<u32, String> {
    let found = RtSocket::open().and_then(|mut host| host.route_to(address));
    let link = found.map_err(|error| error.to_string())?.link;
    let known = node.links.iter().find(|known| known.index == link);
    known.map(|known| known.mtu).ok_or_else(|| "its link is gone".to_owned())
}

enum Echo {
    Answered,
    Silence,
    /// Nobody was asked: the program is not there, or may not do it.
    NotAsked(io::Error),
}

fn echo([program, words @ ..]: &[String; 10]) -> Echo {
    let asked = Command::new(program).args(words).env("LC_ALL", "C").stdin(Stdio::null()).output();
    match asked {
        Ok(output) if output.status.success() => Echo::Answered,
        // It runs, and gets no socket.
        Ok(output) if String::from_utf8_lossy(&output.stderr).contains("socket: Operation not permitted") => {
            Echo::NotAsked(ErrorKind::PermissionDenied.into())
        }
        Ok(_) => Echo::Silence,
        Err(error) => Echo::NotAsked(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn an_agent_that_cannot_tell_is_not_one_without_other_nodes() {
        let answer = |status, body: &str| {
            listed(&Answer { status, body: body.as_bytes().to_vec() }).map(|all| all.len())
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
    fn who_cannot_be_asked_is_told_once_and_not_as_ill() {
        let unasked = |kind: ErrorKind| findings((0..40).map(|_| Seen::NotAsked(kind.into())).collect());
        let [refused] = &unasked(ErrorKind::PermissionDenied)[..] else { panic!() };
        assert_eq!((refused.verdict, &refused.fix), (Verdict::Unknown, &None));
        assert!(
            refused.message.starts_with("40 addresses") && refused.message.contains("denied"),
            "{refused:?}"
        );
        let [missing] = &unasked(ErrorKind::NotFound)[..] else { panic!() };
        assert_eq!(missing.verdict, Verdict::Problem);
        assert!(missing.message.contains("no `ping` program"), "{missing:?}");
        assert!(findings(Vec::new()).is_empty());
        assert_eq!(findings(vec![Seen::Fine])[0].verdict, Verdict::Ok);
    }
}
