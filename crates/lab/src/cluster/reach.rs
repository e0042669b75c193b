//! Reachability of pods: every pod sends a UDP request to every other pod, in every family that both have. One thread serves
//! all sockets, because a socket stays in the namespace where it was created.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::AttachedPod;
use super::paths::PodPath;

/// Interval of retransmissions.
const RESEND: Duration = Duration::from_millis(100);
/// Reserve for files that are open briefly.
const SPARE: usize = 16;
const MARK: &[u8; 4] = b"pwrc";
const SIZE: usize = 9;

/// Result of probing one pod from another, in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reachability {
    /// The round-trip time in microseconds.
    Yes { micros: u64 },
    /// The request arrived with this source address instead of the pod's own.
    Rewritten { source: IpAddr },
    /// The socket error, if there was one.
    No { why: Option<String> },
}

/// Results from one pod to another. `None` if the pods do not both have an address of the family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatrixCell {
    pub from: String,
    pub to: String,
    pub v4: Option<Reachability>,
    pub v6: Option<Reachability>,
    pub path: PodPath,
}

/// Results of all pairs of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    pub pods: Vec<MatrixPod>,
    /// In row order.
    pub cells: Vec<MatrixCell>,
    pub took: Duration,
}

/// A pod and the name of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatrixPod {
    pub name: String,
    pub node: String,
}

impl Reachability {
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Yes { .. })
    }
}

impl MatrixCell {
    /// True if the pods share a family and all shared families are reachable.
    pub fn is_ok(&self) -> bool {
        let all = [&self.v4, &self.v6];
        all.iter().any(|family| family.is_some())
            && all.iter().all(|family| family.as_ref().is_none_or(Reachability::is_ok))
    }
}

impl Matrix {
    /// True if all pods reach each other.
    pub fn all(&self) -> bool {
        self.cells.iter().all(MatrixCell::is_ok)
    }

    pub fn cell(&self, from: &str, to: &str) -> Option<&MatrixCell> {
        self.cells.iter().find(|cell| cell.from == from && cell.to == to)
    }

    /// One line per unreachable pair.
    pub fn failures(&self) -> Vec<String> {
        let failed = self.cells.iter().filter(|cell| !cell.is_ok());
        failed
            .map(|cell| {
                let families = [("IPv4", &cell.v4), ("IPv6", &cell.v6)];
                let failures = families.iter().filter_map(|(name, reach)| failure(name, reach.as_ref()?));
                format!("{} → {}: {}", cell.from, cell.to, failures.collect::<Vec<_>>().join(", "))
            })
            .collect()
    }
}

fn failure(family: &str, reach: &Reachability) -> Option<String> {
    match reach {
        Reachability::Yes { .. } => None,
        Reachability::Rewritten { source } => Some(format!("{family} arrives with source {source}")),
        Reachability::No { why: Some(why) } => Some(format!("{family} {why}")),
        Reachability::No { why: None } => Some(format!("{family} timed out")),
    }
}

/// A pod's address and a socket that is bound to it.
struct ProbeSocket {
    pod: usize,
    address: IpAddr,
    socket: Result<UdpSocket, String>,
}

struct PairProbe {
    result: Option<Reachability>,
    sent: Instant,
    why: Option<String>,
}

struct ProbeRound {
    sockets: Vec<ProbeSocket>,
    /// By the indexes of the source and destination socket.
    probes: BTreeMap<(usize, usize), PairProbe>,
}

/// Results by the indexes of the source and destination pod: IPv4, then IPv6.
pub(super) type PairResults = BTreeMap<(usize, usize), [Option<Reachability>; 2]>;

/// Sends requests until all pairs have a result, for at most `within`.
pub(super) fn probe(pods: &[&AttachedPod], within: Duration) -> Result<PairResults> {
    raise_open_file_limit(pods.iter().map(|attached| attached.addresses.len()).sum())?;
    let mut round = ProbeRound::new(pods)?;
    let end = Instant::now() + within;
    while round.is_pending() && Instant::now() < end {
        for from in 0..round.sockets.len() {
            if Instant::now() >= end {
                break;
            }
            round.send_requests(from);
            round.receive()?;
        }
        let resend_at = (Instant::now() + RESEND).min(end);
        while round.is_pending() && Instant::now() < resend_at {
            round.wait(resend_at)?;
            round.receive()?;
        }
    }
    Ok(round.results())
}

impl ProbeRound {
    fn new(pods: &[&AttachedPod]) -> Result<Self> {
        let mut sockets = Vec::new();
        for (number, attached) in pods.iter().enumerate() {
            for &address in &attached.addresses {
                let socket = match attached.pod.enter(|| open(address)) {
                    Ok(opened) => opened.map_err(|e| format!("cannot use {address}: {e}")),
                    Err(e) => Err(format!("{e:#}")),
                };
                sockets.push(ProbeSocket { pod: number, address, socket });
            }
        }
        let mut probes = BTreeMap::new();
        let sent = Instant::now();
        for (i, from) in sockets.iter().enumerate() {
            for (j, to) in sockets.iter().enumerate() {
                if from.pod == to.pod || from.address.is_ipv4() != to.address.is_ipv4() {
                    continue;
                }
                let why = from.socket.as_ref().err().or(to.socket.as_ref().err()).cloned();
                let result = why.is_some().then(|| Reachability::No { why: why.clone() });
                probes.insert((i, j), PairProbe { result, sent, why });
            }
        }
        Ok(Self { sockets, probes })
    }

    fn is_pending(&self) -> bool {
        self.probes.values().any(|probe| probe.result.is_none())
    }

    fn send_requests(&mut self, from: usize) {
        let Ok(socket) = &self.sockets[from].socket else { return };
        for (&(_, to), probe) in self.probes.range_mut((from, 0)..(from + 1, 0)) {
            if probe.result.is_some() {
                continue;
            }
            let Ok(port) = port(&self.sockets[to]) else { continue };
            probe.sent = Instant::now();
            if let Err(e) = socket.send_to(&message(b'?', (from, to)), (self.sockets[to].address, port)) {
                probe.why = Some(e.to_string());
            }
        }
    }

    /// Reads all pending messages and replies to requests.
    fn receive(&mut self) -> Result<()> {
        let mut buffer = [0; 64];
        for here in 0..self.sockets.len() {
            while let Ok(socket) = &self.sockets[here].socket {
                let (count, peer) = match socket.recv_from(&mut buffer) {
                    Ok(got) => got,
                    Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => return Err(e).context("cannot receive in a pod's namespace"),
                };
                if let Some((kind, pair)) = parse(&buffer[..count]) {
                    self.handle(here, (kind, pair), peer);
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, here: usize, (kind, pair): (u8, (usize, usize)), peer: SocketAddr) {
        let (from, to) = pair;
        let Some(probe) = self.probes.get_mut(&pair) else { return };
        if kind == b'?' && to == here {
            if peer.ip() != self.sockets[from].address {
                probe.result = Some(Reachability::Rewritten { source: peer.ip() });
            }
            if let Ok(socket) = &self.sockets[here].socket
                && let Err(e) = socket.send_to(&message(b'!', pair), peer)
            {
                probe.why = Some(format!("cannot send the reply: {e}"));
            }
        } else if kind == b'!' && from == here && probe.result.is_none() {
            let micros = u64::try_from(probe.sent.elapsed().as_micros()).unwrap_or(u64::MAX);
            probe.result = Some(Reachability::Yes { micros });
        }
    }

    fn wait(&self, until: Instant) -> Result<()> {
        let sockets = self.sockets.iter().filter_map(|end| end.socket.as_ref().ok());
        let mut fds: Vec<PollFd<'_>> = sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).context("the deadline is too far away")?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e).context("cannot wait for replies"),
        }
    }

    fn results(self) -> PairResults {
        let mut results = PairResults::new();
        for ((from, to), probe) in self.probes {
            let (a, b) = (&self.sockets[from], &self.sockets[to]);
            let family = usize::from(a.address.is_ipv6());
            let reach = probe.result.unwrap_or(Reachability::No { why: probe.why });
            results.entry((a.pod, b.pod)).or_default()[family] = Some(reach);
        }
        results
    }
}

/// Raises the soft limit of open files to the hard limit, and fails if that is not enough for this many sockets.
fn raise_open_file_limit(sockets: usize) -> Result<()> {
    let limits = getrlimit(Resource::Nofile);
    let Some(maximum) = limits.maximum else { return raise(Rlimit { current: None, maximum: None }) };
    let open_files = std::fs::read_dir("/proc/self/fd").context("cannot list /proc/self/fd")?.count();
    let needed = (sockets + open_files + SPARE) as u64;
    ensure!(
        needed <= maximum,
        "the probe needs {needed} open files and the limit is {maximum}: raise it with `ulimit -n {needed}`"
    );
    raise(Rlimit { current: Some(maximum), ..limits })
}

fn raise(limit: Rlimit) -> Result<()> {
    setrlimit(Resource::Nofile, limit).context("cannot raise the limit of open files")
}

fn open(address: IpAddr) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address, 0))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn port(end: &ProbeSocket) -> std::io::Result<u16> {
    let socket = end.socket.as_ref().map_err(|_| std::io::Error::from(ErrorKind::NotConnected))?;
    Ok(socket.local_addr()?.port())
}

fn message(kind: u8, (from, to): (usize, usize)) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    bytes[..4].copy_from_slice(MARK);
    bytes[4] = kind;
    bytes[5..7].copy_from_slice(&(from as u16).to_be_bytes());
    bytes[7..].copy_from_slice(&(to as u16).to_be_bytes());
    bytes
}

fn parse(bytes: &[u8]) -> Option<(u8, (usize, usize))> {
    let rest = bytes.strip_prefix(MARK)?;
    let [kind, a, b, c, d] = rest.try_into().ok()?;
    let number = |high, low| usize::from(u16::from_be_bytes([high, low]));
    Some((kind, (number(a, b), number(c, d))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(v4: Option<Reachability>, v6: Option<Reachability>) -> MatrixCell {
        MatrixCell { from: "a".into(), to: "b".into(), v4, v6, path: PodPath::Direct }
    }

    #[test]
    fn messages_survive_encoding_and_parsing() {
        assert_eq!(parse(&message(b'?', (3, 700))), Some((b'?', (3, 700))));
        assert_eq!(parse(b"pwrc?"), None);
        assert_eq!(parse(b"an unrelated datagram"), None);
    }

    #[test]
    fn a_pair_is_ok_if_every_shared_family_is() {
        let yes = || Some(Reachability::Yes { micros: 1 });
        let no = || Some(Reachability::No { why: Some("no route".into()) });
        assert!(cell(yes(), yes()).is_ok() && cell(yes(), None).is_ok());
        assert!(!cell(yes(), no()).is_ok() && !cell(None, None).is_ok());
        let matrix = Matrix { pods: vec![], cells: vec![cell(yes(), no())], took: Duration::ZERO };
        assert_eq!(matrix.failures(), ["a → b: IPv6 no route"]);
    }
}
