//! First packets of TCP and UDP flows, and what became of them: an arrival, or a logged denial. Neither is decided by a timeout.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use model::objects::Direction;
use nft::DeniedLog;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, sendto, socket_with};
use types::Protocol;

use crate::site::{At, PORTS, Site};

/// The limit of a wait for packets, which only ends a test that fails.
const DEADLINE: Duration = Duration::from_secs(60);

/// The first packet to `target`, which a node may translate to `receiver`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) from: At,
    pub(crate) to: At,
    pub(crate) source: IpAddr,
    pub(crate) target: SocketAddr,
    pub(crate) receiver: SocketAddr,
    /// TCP or UDP.
    pub(crate) protocol: Protocol,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Arrived,
    /// At this node.
    Denied(usize, Direction),
}

/// The source of a packet, which identifies a probe.
type Sender = (u8, SocketAddr);

/// Servers in all namespaces, and the logs of denied packets.
pub(crate) struct Observers {
    tcp: Vec<(u16, TcpListener)>,
    udp: Vec<(u16, UdpSocket)>,
    logs: Vec<DeniedLog>,
    /// The source port of the next probe. A late packet or log entry of an earlier world has another one.
    next_port: u16,
}

const SOURCE_PORTS: std::ops::Range<u16> = 20_000..60_000;

impl Observers {
    pub(crate) fn new(site: &Site) -> Self {
        let (mut tcp, mut udp) = (Vec::new(), Vec::new());
        for at in site.all() {
            for port in PORTS {
                let any = SocketAddr::from(([0_u16; 8], port));
                let (listener, socket) =
                    site.inside(at, || (TcpListener::bind(any).unwrap(), UdpSocket::bind(any).unwrap()));
                listener.set_nonblocking(true).unwrap();
                socket.set_nonblocking(true).unwrap();
                tcp.push((port, listener));
                udp.push((port, socket));
            }
        }
        let log = |node| site.inside(At::Node(node), || DeniedLog::open().unwrap());
        Self { tcp, udp, logs: (0..site.nodes()).map(log).collect(), next_port: SOURCE_PORTS.start }
    }

    /// Sends all probes and waits until each is decided.
    pub(crate) fn decide(&mut self, site: &Site, probes: &[Probe]) -> Vec<Decision> {
        let mut sent: Vec<(Sender, OwnedFd)> = Vec::new();
        for probe in probes {
            sent.push(send(site, probe, self.next_port));
            self.next_port += 1;
            if !SOURCE_PORTS.contains(&self.next_port) {
                self.next_port = SOURCE_PORTS.start;
            }
        }
        let receivers: BTreeMap<Sender, u16> =
            sent.iter().zip(probes).map(|((sender, _), probe)| (*sender, probe.receiver.port())).collect();
        assert_eq!(receivers.len(), probes.len(), "two probes have the same source");
        let (deadline, mut decided) = (Instant::now() + DEADLINE, BTreeMap::new());
        loop {
            for (sender, port, decision) in self.observed() {
                let Some(wanted) = receivers.get(&sender) else { continue };
                assert!(port.is_none_or(|port| port == *wanted), "{sender:?} arrived at {port:?}");
                let earlier = decided.insert(sender, decision);
                assert!(
                    earlier.is_none_or(|earlier| earlier == decision),
                    "{sender:?}: {earlier:?}, {decision:?}"
                );
            }
            if decided.len() == probes.len() {
                break;
            }
            let undecided = || sent.iter().zip(probes).find(|((sender, _), _)| !decided.contains_key(sender));
            assert!(Instant::now() < deadline, "neither arrived nor denied: {:?}", undecided());
            self.wait();
        }
        sent.iter().map(|(sender, _)| decided[sender]).collect()
    }

    /// Arrivals with their port, and denials. Repeated packets are decided like the first.
    fn observed(&mut self) -> Vec<(Sender, Option<u16>, Decision)> {
        let mut found = Vec::new();
        for (port, listener) in &self.tcp {
            while let Some((_, peer)) = ready(listener.accept()) {
                found.push((sender(6, peer), Some(*port), Decision::Arrived));
            }
        }
        for (port, socket) in &self.udp {
            while let Some((_, peer)) = ready(socket.recv_from(&mut [0; 16])) {
                found.push((sender(17, peer), Some(*port), Decision::Arrived));
            }
        }
        for (node, log) in self.logs.iter_mut().enumerate() {
            for denied in log.read().unwrap().packets {
                if let Some(sender) = sender_of(&denied.packet) {
                    found.push((sender, None, Decision::Denied(node, denied.direction)));
                }
            }
        }
        found
    }

    fn wait(&self) {
        let sockets =
            self.tcp.iter().map(|(_, tcp)| tcp.as_fd()).chain(self.udp.iter().map(|(_, udp)| udp.as_fd()));
        let all: Vec<BorrowedFd<'_>> = sockets.chain(self.logs.iter().map(|log| log.as_fd())).collect();
        let mut polled: Vec<PollFd<'_>> = all.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(Duration::from_millis(500)).unwrap();
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("poll: {errno}"),
        }
    }
}

fn sender(protocol: u8, peer: SocketAddr) -> Sender {
    (protocol, SocketAddr::new(peer.ip().to_canonical(), peer.port()))
}

fn ready<T>(result: std::io::Result<T>) -> Option<T> {
    match result {
        Ok(found) => Some(found),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => None,
        Err(error) => panic!("receive: {error}"),
    }
}

/// Sends the first packet. The flow exists until the socket is closed.
fn send(site: &Site, probe: &Probe, port: u16) -> (Sender, OwnedFd) {
    let family = if probe.source.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let kind = if probe.protocol == Protocol::Tcp { SocketType::STREAM } else { SocketType::DGRAM };
    let socket = site.inside(probe.from, || socket_with(family, kind, flags, None).unwrap());
    let source = SocketAddr::new(probe.source, port);
    bind(&socket, &source).unwrap();
    let sent = match probe.protocol {
        Protocol::Tcp => connect(&socket, &probe.target),
        Protocol::Udp | Protocol::Sctp => {
            sendto(&socket, b"probe", rustix::net::SendFlags::empty(), &probe.target).map(drop)
        }
    };
    match sent {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(errno) => panic!("{probe:?}: {errno}"),
    }
    (sender(probe.protocol.number(), source), socket)
}

/// None if the packet is neither TCP nor UDP.
fn sender_of(packet: &[u8]) -> Option<Sender> {
    let (protocol, source, rest): (u8, IpAddr, &[u8]) = match packet.first()? >> 4 {
        4 => {
            let source: [u8; 4] = *packet.get(12..)?.first_chunk()?;
            (*packet.get(9)?, source.into(), packet.get(usize::from(packet[0] & 15) * 4..)?)
        }
        6 => {
            let source: [u8; 16] = *packet.get(8..)?.first_chunk()?;
            (*packet.get(6)?, source.into(), packet.get(40..)?)
        }
        _ => return None,
    };
    let port = u16::from_be_bytes(*rest.first_chunk()?);
    [6, 17].contains(&protocol).then(|| (protocol, SocketAddr::new(source, port)))
}
