//! Receives the packets that the table of policies denied and logged (NFLOG). The rules limit their rate.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use model::objects::Direction;
use netlink::wire::{Batch, Head, NLM_F_ACK, NLM_F_REQUEST, attribute, read_text};
use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv, send, socket_with,
};

use crate::desired::policy::{DIRECTIONS, LOG_GROUP, log_prefix};
use crate::error::Error;
use crate::monitor::message;
use crate::number;

const OPEN: &str = "subscribe to logged packets";
const REFUSED: &str =
    "another process listens to NFLOG group 113, or CAP_NET_ADMIN is missing in this network namespace";
const READ: &str = "read logged packets";
/// The kernel joins logged packets into datagrams of at most this size.
const BUFFER: usize = 64 * 1024;
/// Datagrams per read. If there are more, the socket stays readable.
const AT_ONCE: usize = 64;
/// How long the kernel waits for further packets before it sends a datagram, in hundredths of a second.
const DELAY: u32 = 10;
/// `struct nfgenmsg`
const GENERAL: usize = 4;

/// The first packet of a flow that policies deny.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeniedPacket {
    pub direction: Direction,
    /// The index of the link on which it arrived.
    pub input: Option<u32>,
    /// The index of the link on which it would have left. None: it was for this node.
    pub output: Option<u32>,
    /// The beginning of the packet, from its IP header.
    pub packet: Vec<u8>,
}

/// Its file descriptor is readable when packets were logged. A network namespace has one listener.
#[derive(Debug)]
pub struct DeniedLog {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// The number of the next logged packet. The kernel counts them from 0.
    next: u32,
}

/// The packets of a read, and the number of packets that the kernel dropped before them because the buffer was full.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggedPackets {
    pub packets: Vec<DeniedPacket>,
    pub lost: u32,
}

impl AsFd for DeniedLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl DeniedLog {
    /// For the network namespace of the calling thread. Any thread may read. Fails if another process listens.
    pub fn open() -> Result<Self, Error> {
        let socket = socket().map_err(|e| Error::io(OPEN, e))?;
        let mut log = Self { socket, buffer: vec![0; BUFFER], next: 0 };
        log.subscribe().map_err(|errno| match errno {
            // The kernel does not distinguish the reasons.
            Errno::PERM => Error::Io { operation: OPEN, source: std::io::Error::other(REFUSED) },
            errno => Error::io(OPEN, errno),
        })?;
        Ok(log)
    }

    fn subscribe(&mut self) -> Result<(), Errno> {
        // Copy packets as far as the rules log them. The mode is a struct of a length, a mode and one byte of padding.
        let mode = [0, 0, 0xff, 0xff, number::LOG_COPY_PACKET, 0];
        for (kind, value) in [
            (number::LOG_COMMAND, &[number::LOG_BIND][..]),
            (number::LOG_MODE, &mode),
            (number::LOG_TIMEOUT, &DELAY.to_be_bytes()),
            (number::LOG_FLAGS, &number::LOG_SEQUENCE.to_be_bytes()),
        ] {
            let mut request = Batch::new();
            let flags = NLM_F_REQUEST | NLM_F_ACK;
            let head = Head { kind: number::SUBSYS_LOG | number::LOG_CONFIG, flags, sequence: 1 };
            let written = request.message(head, |body| {
                let [high, low] = LOG_GROUP.to_be_bytes();
                body.raw(&[0, 0, high, low]);
                body.bytes(kind, value);
            });
            written.map_err(|_| Errno::MSGSIZE)?;
            send(&self.socket, request.as_bytes(), SendFlags::empty())?;
            self.acknowledged()?;
        }
        Ok(())
    }

    /// The answer is queued when the send returns. Packets that are logged meanwhile are skipped.
    fn acknowledged(&mut self) -> Result<(), Errno> {
        loop {
            let (length, _) = recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty())?;
            let Some((number::ERROR, body, _)) = message(&self.buffer[..length]) else { continue };
            let code = body.first_chunk().copied().map_or(0, i32::from_ne_bytes);
            return match code.checked_neg() {
                Some(0) | None => Ok(()),
                Some(errno) => Err(Errno::from_raw_os_error(errno)),
            };
        }
    }

    /// Does not wait.
    pub fn read(&mut self) -> Result<LoggedPackets, Error> {
        let mut logged = LoggedPackets::default();
        for _ in 0..AT_ONCE {
            match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((length, _)) => of_datagram(&self.buffer[..length], &mut self.next, &mut logged),
                Err(Errno::INTR | Errno::NOBUFS) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(Error::io(READ, errno)),
            }
        }
        Ok(logged)
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(NETFILTER))?;
    bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    // Port 0 is the kernel: messages from other processes are refused.
    connect(&socket, &SocketAddrNetlink::new(0, 0))?;
    Ok(socket)
}

fn of_datagram(datagram: &[u8], next: &mut u32, logged: &mut LoggedPackets) {
    let mut rest = datagram;
    while let Some((kind, body, remaining)) = message(rest) {
        if let Some(attributes) = body.get(GENERAL..).filter(|_| kind == number::SUBSYS_LOG) {
            if let Some(sequence) = number_of(attributes, number::LOGGED_SEQUENCE) {
                logged.lost = logged.lost.saturating_add(sequence.wrapping_sub(*next));
                *next = sequence.wrapping_add(1);
            }
            logged.packets.extend(packet(attributes));
        }
        rest = remaining;
    }
}

fn number_of(attributes: &[u8], kind: u16) -> Option<u32> {
    attribute(attributes, kind)?.first_chunk().copied().map(u32::from_be_bytes)
}

/// None if another rule logged it.
fn packet(attributes: &[u8]) -> Option<DeniedPacket> {
    let prefix = attribute(attributes, number::LOGGED_PREFIX).map(read_text)?;
    let direction = DIRECTIONS.into_iter().find(|direction| log_prefix(*direction) == prefix)?;
    Some(DeniedPacket {
        direction,
        input: number_of(attributes, number::LOGGED_INPUT),
        output: number_of(attributes, number::LOGGED_OUTPUT),
        packet: attribute(attributes, number::LOGGED_PACKET)?.to_vec(),
    })
}
