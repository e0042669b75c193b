//! Listeners in pods and nodes. A hostile datagram or message that reaches one of them is a finding. Legal datagrams are
//! counted to prove that the listener works.

use std::net::UdpSocket;
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread::Scope;

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SocketType, ipproto, recv, socket};
use testkit::Ns;

use crate::Soak;
use crate::options::Attack;

pub(crate) const PORT: u16 = 7777;
pub(crate) const LEGAL: &str = "legal";
pub(crate) const HOSTILE: &str = "hostile";
/// Marker in hostile ICMP messages.
pub(crate) const MARK: &[u8; 14] = b"podwire-soak!!";
const POLL_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

pub(crate) struct VictimListener {
    name: String,
    datagrams: UdpSocket,
    messages: Vec<OwnedFd>,
}

impl VictimListener {
    pub(crate) fn open(ns: &Ns, name: &str) -> Result<Self> {
        let opened = ns.enter(|| -> std::io::Result<_> {
            // A dual-stack socket.
            let datagrams = UdpSocket::bind(("::", PORT))?;
            datagrams.set_nonblocking(true)?;
            let raw = |family, protocol| socket(family, SocketType::RAW, Some(protocol));
            let messages =
                vec![raw(AddressFamily::INET, ipproto::ICMP)?, raw(AddressFamily::INET6, ipproto::ICMPV6)?];
            Ok((datagrams, messages))
        })?;
        let (datagrams, messages) = opened.with_context(|| format!("cannot listen in {}", ns.name()))?;
        Ok(Self { name: name.to_owned(), datagrams, messages })
    }

    /// Listens in a thread until the end of the run.
    pub(crate) fn start<'scope>(self, scope: &'scope Scope<'scope, '_>, soak: &'scope Soak) {
        scope.spawn(move || {
            while !soak.is_over() {
                self.receive(soak);
            }
            self.receive(soak);
        });
    }

    fn receive(&self, soak: &Soak) {
        let mut fds = vec![PollFd::new(&self.datagrams, PollFlags::IN)];
        fds.extend(self.messages.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        // Pending messages are read below, also after EINTR.
        let _ = poll(&mut fds, Some(&POLL_TIMEOUT));
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = self.datagrams.recv_from(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            match text.split_once(' ') {
                Some((LEGAL, _)) => soak.ledger.count(&received(&self.name)),
                Some((HOSTILE, rest)) => {
                    let kind = rest.split(' ').next().unwrap_or_default();
                    soak.ledger.find(
                        &format!("hostile datagram delivered: {kind}"),
                        format!("to {} from {from}: {rest}", self.name),
                    );
                }
                _ => {}
            }
        }
        for message in &self.messages {
            while let Ok((_, length)) = recv(message.as_fd(), &mut buffer[..], RecvFlags::DONTWAIT) {
                if buffer[..length.min(buffer.len())].windows(MARK.len()).any(|window| window == MARK) {
                    soak.ledger.find(
                        "hostile ICMP message delivered",
                        format!("to {}, type {}", self.name, buffer[0]),
                    );
                }
            }
        }
    }
}

/// Name of the counter of legal datagrams of a listener.
pub(crate) fn received(name: &str) -> String {
    format!("legal datagrams at {name}")
}

/// Payload of a hostile datagram. The listener that receives it reports attack and details.
pub(crate) fn payload(attack: Attack, details: &str) -> Vec<u8> {
    format!("{HOSTILE} {attack:?} {details}").into_bytes()
}
