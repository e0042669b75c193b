//! Sends the first packet of a flow and waits until it arrives or a counter of the table shows that it was denied.

use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use netlink::{Op, RtSocket};
use nft::desired::Table;
use nft::desired::policy::{PolicyOptions, table};
use nft::{AttachMode, DeniedPackets, Firewall, Surplus};
use policy::{PolicyElement, ProfileId};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use types::{Family, IfName};

use crate::common::Sample;
use crate::lab::{At, Lab};

/// The limit of a wait for a packet, which only ends a test that fails.
const DEADLINE: Duration = Duration::from_secs(20);

/// Two routed pods and an outside host with a table of policies.
pub(crate) struct Testbed {
    pub(crate) lab: Lab,
    pub(crate) table: Table,
}

/// A packet is sent to `target`. It arrives at `receiver`, which differs if its destination is changed on the way.
#[derive(Clone, Copy)]
pub(crate) struct PacketPath {
    pub(crate) from: At,
    pub(crate) target: SocketAddr,
    pub(crate) at: At,
    pub(crate) receiver: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    Udp,
    Tcp,
    /// Another IP protocol.
    Raw(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judged {
    Accepted,
    DeniedIngress,
    DeniedEgress,
    DeniedInvalid,
    Forbidden,
}

impl Testbed {
    /// Pod 2 has profile `groups[0]`, pod 3 has `groups[1]`.
    pub(crate) fn new(options: &PolicyOptions, groups: [u32; 2], elements: &[PolicyElement]) -> Self {
        let testbed = Self { lab: Lab::new(AttachMode::Routed), table: table(options) };
        testbed.lab.ip(At::Outside, "route add 10.77.0.0/24 via 192.0.2.1");
        testbed.lab.ip(At::Outside, "route add fd77::/64 via 2001:db8::1");
        for (n, group) in [2, 3].into_iter().zip(groups) {
            testbed.set_group(n, group);
        }
        testbed.apply(elements);
        testbed
    }

    pub(crate) fn set_group(&self, pod: u16, group: u32) {
        let name: IfName = Sample::new(AttachMode::Routed, pod).link;
        self.lab.inside(At::Host, || {
            let mut socket = RtSocket::open().unwrap();
            let link = socket.link(&name).unwrap().unwrap().index;
            socket.run(&Op::SetLinkGroup { link, group }).unwrap();
            assert_eq!(socket.link(&name).unwrap().unwrap().group, group);
        });
    }

    pub(crate) fn apply(&self, elements: &[PolicyElement]) {
        self.with_firewall(|firewall| {
            firewall.reconcile_policies(&self.table, elements, Surplus::Remove).unwrap();
        });
    }

    pub(crate) fn with_firewall<T: Send>(&self, act: impl FnOnce(&mut Firewall) -> T + Send) -> T {
        self.lab.inside(At::Host, || act(&mut Firewall::open().unwrap()))
    }

    pub(crate) fn denied(&self) -> DeniedPackets {
        self.with_firewall(|firewall| firewall.denied_packets().unwrap())
    }

    /// The decision about the first packet from `from` to `target`.
    pub(crate) fn judge(&self, from: At, probe: Probe, (at, target): (At, &str)) -> Judged {
        let target: SocketAddr = target.parse().unwrap();
        self.judge_path(probe, PacketPath { from, target, at, receiver: target })
    }

    pub(crate) fn judge_path(&self, probe: Probe, path: PacketPath) -> Judged {
        let target = path.target;
        let before = self.denied();
        let mut arrived = match probe {
            Probe::Udp => self.send_udp(path),
            Probe::Tcp => self.connect(path),
            Probe::Raw(number) => self.send_raw(number, path),
        };
        let deadline = Instant::now() + DEADLINE;
        loop {
            if arrived() {
                assert_eq!(self.denied(), before, "{target}: arrived and denied");
                return Judged::Accepted;
            }
            if let Some(denied) = increased(before, self.denied()) {
                assert!(!arrived(), "{target}: denied and arrived");
                return denied;
            }
            assert!(Instant::now() < deadline, "no packet to {target} ({probe:?})");
            std::thread::yield_now();
        }
    }

    fn send_udp(&self, path: PacketPath) -> Box<dyn FnMut() -> bool> {
        let PacketPath { from, target, at, receiver } = path;
        let server = self.lab.inside(at, || bind_when_free(|| UdpSocket::bind(receiver)));
        server.set_nonblocking(true).unwrap();
        let sender = self.lab.inside(from, || UdpSocket::bind(any(target)).unwrap());
        sender.send_to(b"probe", target).unwrap();
        Box::new(move || {
            // Keeps the sender open until the packet was judged.
            let _ = &sender;
            is_received(server.recv(&mut [0; 100]))
        })
    }

    fn connect(&self, path: PacketPath) -> Box<dyn FnMut() -> bool> {
        let PacketPath { from, target, at, receiver } = path;
        let server = self.lab.inside(at, || bind_when_free(|| TcpListener::bind(receiver)));
        server.set_nonblocking(true).unwrap();
        let mut socket = Some(self.lab.inside(from, || tcp(target)));
        Box::new(move || {
            let accepted = server.accept();
            if let (Ok((accepted, _)), Some(socket)) = (&accepted, socket.take_if(|_| accepted.is_ok())) {
                reset(socket, accepted);
            }
            is_received(accepted)
        })
    }

    fn send_raw(&self, number: u8, path: PacketPath) -> Box<dyn FnMut() -> bool> {
        // Packets without ports of an earlier probe would belong to the same flow.
        self.lab.inside(At::Host, || {
            [Family::V4, Family::V6].map(|of| nft::conntrack::sweep(of, &|_| true).unwrap())
        });
        let target = path.target.ip();
        let [sender, server] = [path.from, path.at].map(|at| self.lab.inside(at, || raw(target, number)));
        rustix::net::sendto(&sender, b"probe", SendFlags::empty(), &SocketAddr::new(target, 0)).unwrap();
        Box::new(move || {
            let received = rustix::net::recv(&server, &mut [0; 100], RecvFlags::DONTWAIT);
            is_received(received.map_err(Into::into))
        })
    }
}

/// Retries: a child process of another test has a copy of the previous socket until it executes its program.
fn bind_when_free<T>(bind: impl Fn() -> std::io::Result<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match bind() {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::yield_now();
            }
            other => return other.unwrap(),
        }
    }
}

/// Any local address and port of the same family.
pub(crate) fn any(like: SocketAddr) -> SocketAddr {
    if like.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap()
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// A socket that connects without waiting.
fn tcp(target: SocketAddr) -> TcpStream {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family(target.ip()), SocketType::STREAM, flags, None).unwrap();
    match rustix::net::connect(&socket, &target) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => TcpStream::from(socket),
        Err(errno) => panic!("connect to {target}: {errno}"),
    }
}

/// Ends a connection with a reset, which gets no reply, and waits until it arrived. A later packet of the connection would be judged
/// as the first one of a flow if connections are swept meanwhile.
fn reset(socket: TcpStream, mut accepted: &TcpStream) {
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    drop(socket);
    accepted.set_nonblocking(false).unwrap();
    accepted.set_read_timeout(Some(DEADLINE)).unwrap();
    let error = accepted.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

pub(crate) fn raw(like: IpAddr, number: u8) -> OwnedFd {
    let protocol = NonZeroU32::new(number.into()).map(rustix::net::Protocol::from_raw);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(family(like), SocketType::RAW, flags, protocol).unwrap()
}

fn is_received<T>(result: std::io::Result<T>) -> bool {
    match result {
        Ok(_) => true,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => false,
        Err(error) => panic!("receive: {error}"),
    }
}

fn increased(before: DeniedPackets, now: DeniedPackets) -> Option<Judged> {
    let parts = [
        (before.ingress, now.ingress, Judged::DeniedIngress),
        (before.egress, now.egress, Judged::DeniedEgress),
        (before.invalid, now.invalid, Judged::DeniedInvalid),
        (before.forbidden, now.forbidden, Judged::Forbidden),
    ];
    parts.into_iter().find(|(before, now, _)| now > before).map(|(_, _, judged)| judged)
}

/// The link group of pods with this profile.
pub(crate) fn group(profile: ProfileId) -> u32 {
    profile.0
}
