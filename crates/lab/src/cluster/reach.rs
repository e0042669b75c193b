//! Who reaches whom: every pod asks every other pod over UDP, in every family both have, from one thread: a socket stays
//! in the namespace it was made in.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::AttachedPod;
use super::ways::PodPath;

/// How often an unanswered question is asked again.
const RESEND: Duration = Duration::from_millis(100);
/// Files that are open for a moment only.
const SPARE: usize = 16;
const MARK: &[u8; 4] = b"pwrc";
const SIZE: usize = 9;

/// What came of the questions of one pod to another, in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reachability {
    /// Answered after so many microseconds.
    Yes { micros: u64 },
    /// It arrived, but from this address instead of the pod's own.
    Rewritten { source: IpAddr },
    /// Why, where anybody said so.
    No { why: Option<String> },
}

/// From one pod to another. None: they do not both have an address of the family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    pub from: String,
    pub to: String,
    pub v4: Option<Reachability>,
    pub v6: Option<Reachability>,
    pub way: PodPath,
}

/// Every pod to every other pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    pub pods: Vec<Spot>,
    /// Row by row.
    pub cells: Vec<Cell>,
    pub took: Duration,
}

/// A pod, and the name of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    pub name: String,
    pub node: String,
}

impl Reachability {
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Yes { .. })
    }
}

impl Cell {
    /// There is a family they share, and in none of them anything is wrong.
    pub fn is_ok(&self) -> bool {
        let all = [&self.v4, &self.v6];
        all.iter().any(|family| family.is_some())
            && all.iter().all(|family| family.as_ref().is_none_or(Reachability::is_ok))
    }
}

impl Matrix {
    /// Everybody reaches everybody.
    pub fn all(&self) -> bool {
        self.cells.iter().all(Cell::is_ok)
    }

    pub fn cell(&self, from: &str, to: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.from == from && cell.to == to)
    }

    /// What is wrong, one a line; empty if nothing is.
    pub fn complaints(&self) -> Vec<String> {
        let bad = self.cells.iter().filter(|cell| !cell.is_ok());
        bad.map(|cell| {
            let families = [("IPv4", &cell.v4), ("IPv6", &cell.v6)];
            let said = families.iter().filter_map(|(name, reach)| complaint(name, reach.as_ref()?));
            format!("{} → {}: {}", cell.from, cell.to, said.collect::<Vec<_>>().join(", "))
        })
        .collect()
    }
}

fn complaint(family: &str, reach: &Reachability) -> Option<String> {
    match reach {
        Reachability::Yes { .. } => None,
        Reachability::Rewritten { source } => Some(format!("{family} arrives from {source}")),
        Reachability::No { why: Some(why) } => Some(format!("{family} {why}")),
        Reachability::No { why: None } => Some(format!("{family} not answered")),
    }
}

/// An address of a pod, and a socket on it.
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
    ends: Vec<ProbeSocket>,
    /// By the numbers of two ends.
    asked: BTreeMap<(usize, usize), PairProbe>,
}

/// For each pair of pods what came of it, in the two families, by their numbers.
pub(super) type PairResults = BTreeMap<(usize, usize), [Option<Reachability>; 2]>;

/// Asks until everything is answered, and not longer than this.
pub(super) fn probe(pods: &[&AttachedPod], within: Duration) -> Result<PairResults> {
    make_room(pods.iter().map(|wired| wired.addresses.len()).sum())?;
    let mut round = ProbeRound::new(pods)?;
    let end = Instant::now() + within;
    while round.is_open() && Instant::now() < end {
        for from in 0..round.ends.len() {
            if Instant::now() >= end {
                break;
            }
            round.ask(from);
            round.listen()?;
        }
        let again = (Instant::now() + RESEND).min(end);
        while round.is_open() && Instant::now() < again {
            round.wait(again)?;
            round.listen()?;
        }
    }
    Ok(round.found())
}

impl ProbeRound {
    fn new(pods: &[&AttachedPod]) -> Result<Self> {
        let mut ends = Vec::new();
        for (number, wired) in pods.iter().enumerate() {
            for &address in &wired.addresses {
                let socket = match wired.pod.enter(|| open(address)) {
                    Ok(opened) => opened.map_err(|e| format!("cannot use {address}: {e}")),
                    Err(e) => Err(format!("{e:#}")),
                };
                ends.push(ProbeSocket { pod: number, address, socket });
            }
        }
        let mut asked = BTreeMap::new();
        let sent = Instant::now();
        for (i, from) in ends.iter().enumerate() {
            for (j, to) in ends.iter().enumerate() {
                if from.pod == to.pod || from.address.is_ipv4() != to.address.is_ipv4() {
                    continue;
                }
                let why = from.socket.as_ref().err().or(to.socket.as_ref().err()).cloned();
                let result = why.is_some().then(|| Reachability::No { why: why.clone() });
                asked.insert((i, j), PairProbe { result, sent, why });
            }
        }
        Ok(Self { ends, asked })
    }

    fn is_open(&self) -> bool {
        self.asked.values().any(|asked| asked.result.is_none())
    }

    fn ask(&mut self, from: usize) {
        let Ok(socket) = &self.ends[from].socket else { return };
        for (&(_, to), asked) in self.asked.range_mut((from, 0)..(from + 1, 0)) {
            if asked.result.is_some() {
                continue;
            }
            let Ok(port) = port(&self.ends[to]) else { continue };
            asked.sent = Instant::now();
            if let Err(e) = socket.send_to(&message(b'?', (from, to)), (self.ends[to].address, port)) {
                asked.why = Some(e.to_string());
            }
        }
    }

    /// Takes in what is there, and answers questions.
    fn listen(&mut self) -> Result<()> {
        let mut buffer = [0; 64];
        for here in 0..self.ends.len() {
            while let Ok(socket) = &self.ends[here].socket {
                let (count, peer) = match socket.recv_from(&mut buffer) {
                    Ok(got) => got,
                    Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => return Err(e).context("cannot receive in a pod"),
                };
                if let Some((kind, pair)) = parse(&buffer[..count]) {
                    self.take(here, (kind, pair), peer);
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, here: usize, (kind, pair): (u8, (usize, usize)), peer: SocketAddr) {
        let (from, to) = pair;
        let Some(asked) = self.asked.get_mut(&pair) else { return };
        if kind == b'?' && to == here {
            if peer.ip() != self.ends[from].address {
                asked.result = Some(Reachability::Rewritten { source: peer.ip() });
            }
            if let Ok(socket) = &self.ends[here].socket
                && let Err(e) = socket.send_to(&message(b'!', pair), peer)
            {
                asked.why = Some(format!("cannot be answered: {e}"));
            }
        } else if kind == b'!' && from == here && asked.result.is_none() {
            let micros = u64::try_from(asked.sent.elapsed().as_micros()).unwrap_or(u64::MAX);
            asked.result = Some(Reachability::Yes { micros });
        }
    }

    fn wait(&self, until: Instant) -> Result<()> {
        let sockets = self.ends.iter().filter_map(|end| end.socket.as_ref().ok());
        let mut fds: Vec<PollFd<'_>> = sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).context("the deadline is too far away")?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e).context("cannot wait for answers"),
        }
    }

    fn found(self) -> PairResults {
        let mut found = PairResults::new();
        for ((from, to), asked) in self.asked {
            let (a, b) = (&self.ends[from], &self.ends[to]);
            let family = usize::from(a.address.is_ipv6());
            let reach = asked.result.unwrap_or(Reachability::No { why: asked.why });
            found.entry((a.pod, b.pod)).or_default()[family] = Some(reach);
        }
        found
    }
}

/// So many sockets more than usual: as far as this process may go, which is far more than it has at first.
fn make_room(sockets: usize) -> Result<()> {
    let may = getrlimit(Resource::Nofile);
    let Some(most) = may.maximum else { return raise(Rlimit { current: None, maximum: None }) };
    let have = std::fs::read_dir("/proc/self/fd").context("cannot list /proc/self/fd")?.count();
    let needed = (sockets + have + SPARE) as u64;
    ensure!(
        needed <= most,
        "this takes {needed} open files, and a process may have {most} here: raise that with `ulimit -n {needed}`"
    );
    raise(Rlimit { current: Some(most), ..may })
}

fn raise(limit: Rlimit) -> Result<()> {
    setrlimit(Resource::Nofile, limit).context("cannot raise the number of open files")
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

    fn cell(v4: Option<Reachability>, v6: Option<Reachability>) -> Cell {
        Cell { from: "a".into(), to: "b".into(), v4, v6, way: PodPath::Direct }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        assert_eq!(parse(&message(b'?', (3, 700))), Some((b'?', (3, 700))));
        assert_eq!(parse(b"pwrc?"), None);
        assert_eq!(parse(b"something else altogether"), None);
    }

    #[test]
    fn a_pair_is_fine_when_every_family_they_share_is() {
        let yes = || Some(Reachability::Yes { micros: 1 });
        let no = || Some(Reachability::No { why: Some("no route".into()) });
        assert!(cell(yes(), yes()).is_ok() && cell(yes(), None).is_ok());
        assert!(!cell(yes(), no()).is_ok() && !cell(None, None).is_ok());
        let matrix = Matrix { pods: vec![], cells: vec![cell(yes(), no())], took: Duration::ZERO };
        assert_eq!(matrix.complaints(), ["a → b: IPv6 no route"]);
    }
}
