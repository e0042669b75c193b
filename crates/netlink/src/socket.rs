//! A netlink socket of any protocol: send, receive, sequence numbers, acknowledgements.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK_TLVS, NLM_F_CAPPED, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NetlinkBuffer};
use netlink_sys::SocketAddr;
use rustix::io::Errno;
use rustix::net::sockopt::{
    Timeout, set_socket_recv_buffer_size_force, set_socket_send_buffer_size_force, set_socket_timeout,
};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags};
use types::cause;

use crate::error::Error;
use crate::kernel::NLMSGERR_ATTR_MSG;
use crate::monitor::EventNamespace;
use crate::wire::{attribute, read_text, read_u32};

/// The timeout for an answer. Several seconds are possible, because all requests wait for the rtnl lock.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// The kernel's maximum size of a dump datagram. Single answers are far smaller.
const BUFFER: usize = 32 * 1024;

/// The number of requests in one send that fit, with their answers, into the default buffers.
const MAX_DEFAULT_REQUESTS: usize = 32;
const LARGE_BUFFER: usize = 8 << 20;
/// The number of bytes in one send that fit into the default buffer, which has 208 KiB.
const DEFAULT_SEND: usize = 128 * 1024;

const HEADER: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetlinkProtocol {
    Route,
    Netfilter,
    Generic,
}

/// A netlink socket of the namespace in which it was opened. Any thread in any namespace can use it afterwards.
pub struct Socket {
    inner: Arc<netlink_sys::Socket>,
    buffer: Vec<u8>,
    sequence: u32,
    has_large_buffers: bool,
    /// The number of bytes that fit into one send.
    send_buffer: usize,
}

impl Socket {
    pub fn open(protocol: NetlinkProtocol) -> Result<Self, Error> {
        let failed = |error: &io::Error| socket_error("open a netlink socket", errno_of(error));
        let number = match protocol {
            NetlinkProtocol::Route => netlink_sys::protocols::NETLINK_ROUTE,
            NetlinkProtocol::Netfilter => netlink_sys::protocols::NETLINK_NETFILTER,
            NetlinkProtocol::Generic => netlink_sys::protocols::NETLINK_GENERIC,
        };
        let inner = netlink_sys::Socket::new(number).map_err(|e| failed(&e))?;
        // Port 0 is the kernel. After connect, no other process can send to this socket.
        inner.connect(&SocketAddr::new(0, 0)).map_err(|e| failed(&e))?;
        inner.set_ext_ack(true).map_err(|e| failed(&e))?;
        // Answers do not repeat the request, so that the answers to a whole batch fit into the receive buffer.
        inner.set_cap_ack(true).map_err(|e| failed(&e))?;
        if protocol == NetlinkProtocol::Route {
            // Otherwise the kernel ignores dump filters.
            inner.set_netlink_get_strict_chk(true).map_err(|e| failed(&e))?;
        }
        set_socket_timeout(&inner, Timeout::Recv, Some(TIMEOUT)).map_err(|e| failed(&e.into()))?;
        let inner = Arc::new(inner);
        Ok(Self {
            inner,
            buffer: Vec::with_capacity(BUFFER),
            sequence: 0,
            has_large_buffers: false,
            send_buffer: DEFAULT_SEND,
        })
    }

    /// Subscribes to the events of these groups (`RTNLGRP_*`).
    pub(crate) fn listen(&self, groups: &[u32]) -> Result<(), Error> {
        let failed = |error: &io::Error| socket_error("subscribe to kernel events", errno_of(error));
        groups.iter().try_for_each(|group| self.inner.add_membership(*group).map_err(|e| failed(&e)))
    }

    pub(crate) fn stop_listening(&self, groups: &[u32]) -> Result<(), Error> {
        let failed = |error: &io::Error| socket_error("unsubscribe from kernel events", errno_of(error));
        groups.iter().try_for_each(|group| self.inner.drop_membership(*group).map_err(|e| failed(&e)))
    }

    /// Also receives events of all namespaces that have an ID in this one.
    pub(crate) fn listen_to_other_namespaces(&self) -> Result<(), Error> {
        let failed = |error: &io::Error| socket_error("subscribe to kernel events of pods", errno_of(error));
        self.inner.set_listen_all_namespaces(true).map_err(|e| failed(&e))
    }

    /// Reserves consecutive sequence numbers. Never 0, which notifications have.
    pub fn take_sequences(&mut self, count: usize) -> Range<u32> {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let first = self.sequence.wrapping_add(1);
        let first = if first == 0 || first.checked_add(count).is_none() { 1 } else { first };
        let end = first.saturating_add(count);
        self.sequence = end - 1;
        first..end
    }

    /// Enlarges the buffers for this number of requests in one send: the kernel queues all answers before the first can be
    /// read. Needs `CAP_NET_ADMIN` for more than a few requests.
    pub fn reserve_buffers(&mut self, requests: usize) -> Result<(), Error> {
        if requests > MAX_DEFAULT_REQUESTS && !self.has_large_buffers {
            self.grow_event_buffer()?;
            self.has_large_buffers = true;
            self.reserve_send_buffer(LARGE_BUFFER)?;
        }
        Ok(())
    }

    /// Enlarges the buffer for one send of this many bytes. The kernel's limit is 1 GiB. Needs `CAP_NET_ADMIN`.
    pub fn reserve_send_buffer(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes > self.send_buffer {
            let failed = |errno| socket_error("enlarge a netlink socket", errno);
            let size = bytes.max(LARGE_BUFFER);
            set_socket_send_buffer_size_force(&*self.inner, size).map_err(failed)?;
            self.send_buffer = size;
        }
        Ok(())
    }

    /// Enlarges the receive buffer for the events of several hundred pods that are created or removed at once.
    pub(crate) fn grow_event_buffer(&self) -> Result<(), Error> {
        let failed = |errno| socket_error("enlarge a netlink socket", errno);
        set_socket_recv_buffer_size_force(&*self.inner, LARGE_BUFFER).map_err(failed)
    }

    /// Sends requests to the kernel. When this returns, the kernel has processed all of them, and the answers are queued.
    pub(crate) fn send(&self, requests: &[u8]) -> Result<(), Error> {
        send_on(&self.inner, requests)
    }

    /// A sender for another thread, which blocks while the kernel processes the request. This thread receives meanwhile.
    pub(crate) fn sender(&self) -> Sender {
        Sender { inner: Arc::clone(&self.inner) }
    }

    /// Waits for one datagram. It may contain several answers, or none with the caller's sequence numbers.
    pub(crate) fn receive(&mut self) -> Result<Replies<'_>, Error> {
        let operation = "receive the kernel's answer";
        loop {
            self.buffer.clear();
            match self.inner.recv(&mut self.buffer, libc::MSG_TRUNC) {
                Ok(length) if length > self.buffer.len() => {
                    return Err(Error::Malformed {
                        operation: operation.to_owned(),
                        what: "it is longer than the receive buffer",
                    });
                }
                Ok(_) => return Ok(Replies { remaining: &self.buffer }),
                Err(error) => match errno_of(&error) {
                    Errno::INTR => {}
                    Errno::AGAIN => return Err(Error::Timeout { operation: operation.to_owned() }),
                    errno => return Err(socket_error(operation, errno)),
                },
            }
        }
    }

    /// Receives one datagram of events without waiting.
    pub(crate) fn try_receive(&mut self) -> Result<Received<'_>, Error> {
        self.buffer.resize(BUFFER, 0);
        let received = loop {
            // No space for ancillary data: events of other namespaces carry the namespace ID, and the kernel reports that
            // it was truncated. The ID itself is not needed.
            let mut no_ancillary = RecvAncillaryBuffer::default();
            let mut buffers = [IoSliceMut::new(&mut self.buffer)];
            match rustix::net::recvmsg(&*self.inner, &mut buffers, &mut no_ancillary, RecvFlags::DONTWAIT) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::NOBUFS) => return Ok(Received::Overrun),
                Err(errno) => return Err(socket_error("receive kernel events", errno)),
            }
        };
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Ok(Received::Overrun);
        }
        let namespace = if received.flags.contains(ReturnFlags::CTRUNC) {
            EventNamespace::Pod
        } else {
            EventNamespace::Own
        };
        let replies = Replies { remaining: self.buffer.get(..received.bytes).unwrap_or_default() };
        Ok(Received::Events(replies, namespace))
    }
}

/// See `Socket::sender`. The socket is closed when both are dropped.
pub(crate) struct Sender {
    inner: Arc<netlink_sys::Socket>,
}

impl Sender {
    pub(crate) fn send(&self, requests: &[u8]) -> Result<(), Error> {
        send_on(&self.inner, requests)
    }
}

fn send_on(socket: &netlink_sys::Socket, requests: &[u8]) -> Result<(), Error> {
    loop {
        match socket.send(requests, 0) {
            Ok(sent) if sent == requests.len() => return Ok(()),
            Ok(_) => return Err(socket_error("send to the kernel", Errno::MSGSIZE)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(socket_error("send to the kernel", errno_of(&error))),
        }
    }
}

/// The result of `Socket::try_receive`.
pub(crate) enum Received<'a> {
    Nothing,
    /// The receive buffer overran.
    Overrun,
    Events(Replies<'a>, EventNamespace),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn socket_error(operation: &str, errno: Errno) -> Error {
    Error::Socket { operation: operation.to_owned(), errno }
}

/// One answer of the kernel.
#[derive(Debug)]
pub struct Reply<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub content: Content<'a>,
}

#[derive(Debug)]
pub enum Content<'a> {
    /// The request was carried out.
    Ack,
    /// The request was refused, or a dump ended with an error.
    Refused(Refusal),
    /// A dump is complete.
    Done,
    /// A requested object: the family header and attributes.
    Data(&'a [u8]),
}

/// The answers of one datagram. Invalid bytes end the iteration.
#[derive(Debug)]
pub(crate) struct Replies<'a> {
    remaining: &'a [u8],
}

impl<'a> Iterator for Replies<'a> {
    type Item = Reply<'a>;

    fn next(&mut self) -> Option<Reply<'a>> {
        // `new_checked` would also reject an empty slice, but allocates an error message.
        while !self.remaining.is_empty() {
            let message = NetlinkBuffer::new_checked(self.remaining).ok()?;
            let length = (message.length() as usize).next_multiple_of(4);
            let body = self.remaining.get(HEADER..message.length() as usize)?;
            self.remaining = self.remaining.get(length..).unwrap_or_default();
            let flags = message.flags();
            let content = match message.message_type() {
                NLMSG_NOOP => continue,
                NLMSG_ERROR => acknowledgement(body, flags)?,
                NLMSG_DONE => done(body, flags),
                _ => Content::Data(body),
            };
            let (kind, sequence) = (message.message_type(), message.sequence_number());
            return Some(Reply { kind, flags, sequence, content });
        }
        None
    }
}

/// `struct nlmsgerr`: the error, the request's header, the request itself unless capped, then attributes.
fn acknowledgement(body: &[u8], flags: u16) -> Option<Content<'_>> {
    let code = i32::from_ne_bytes(*body.first_chunk()?);
    if code == 0 {
        return Some(Content::Ack);
    }
    let request = body.get(4..).unwrap_or_default();
    let echoed = match read_u32(request) {
        Some(length) if flags & NLM_F_CAPPED == 0 => (length as usize).max(HEADER).next_multiple_of(4),
        _ => HEADER,
    };
    Some(Content::Refused(Refusal::new(code, flags, request.get(echoed..).unwrap_or_default())))
}

fn done(body: &[u8], flags: u16) -> Content<'_> {
    match body.first_chunk().copied().map(i32::from_ne_bytes) {
        Some(code) if code < 0 => Content::Refused(Refusal::new(code, flags, &body[4..])),
        Some(_) | None => Content::Done,
    }
}

/// The kernel's negative answer: the errno and, if present, the message of the extended acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub errno: Errno,
    pub message: Option<String>,
}

impl Refusal {
    fn new(code: i32, flags: u16, extended: &[u8]) -> Self {
        // Kernel errors are 1..=4095. `Errno` panics on other values.
        let number = code.checked_neg().filter(|n| (1..4096).contains(n)).unwrap_or(libc::EIO);
        let message = attribute(extended, NLMSGERR_ATTR_MSG).filter(|_| flags & NLM_F_ACK_TLVS != 0);
        Self { errno: Errno::from_raw_os_error(number), message: message.map(read_text) }
    }

    pub fn during(self, operation: impl fmt::Display) -> Error {
        Error::Refused { operation: operation.to_string(), refusal: self }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&cause(self.errno))?;
        self.message.as_ref().map_or(Ok(()), |text| write!(f, ", kernel message: {text}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{Batch, Head};

    #[test]
    fn sequences_are_consecutive_and_never_zero() {
        let mut socket = Socket::open(NetlinkProtocol::Route).unwrap();
        assert_eq!(socket.take_sequences(3), 1..4);
        assert_eq!(socket.take_sequences(1), 4..5);
        socket.sequence = u32::MAX - 1;
        assert_eq!(socket.take_sequences(5), 1..6);
        assert_eq!(socket.take_sequences(1), 6..7);
    }

    #[test]
    fn only_the_kernel_can_send_to_the_socket() {
        let socket = Socket::open(NetlinkProtocol::Route).unwrap();
        let mut own = SocketAddr::new(0, 0);
        socket.inner.get_address(&mut own).unwrap();
        assert_ne!(own.port_number(), 0);
        let other = netlink_sys::Socket::new(netlink_sys::protocols::NETLINK_ROUTE).unwrap();
        let sent = other.send_to(&[0; HEADER], &own, 0).unwrap_err();
        assert_eq!(errno_of(&sent), Errno::CONNREFUSED);
    }

    #[test]
    fn a_missing_answer_is_a_timeout() {
        let mut socket = Socket::open(NetlinkProtocol::Netfilter).unwrap();
        let short = Some(Duration::from_millis(5));
        set_socket_timeout(&socket, Timeout::Recv, short).unwrap();
        assert!(matches!(socket.receive(), Err(Error::Timeout { .. })));
    }

    #[test]
    fn a_capped_refusal_has_errno_and_message() {
        let mut batch = Batch::new();
        let flags = NLM_F_CAPPED | NLM_F_ACK_TLVS;
        batch
            .message(Head { kind: NLMSG_ERROR, flags, sequence: 9 }, |body| {
                body.raw(&(-libc::EEXIST).to_ne_bytes());
                body.raw(&[0; HEADER]);
                body.str(NLMSGERR_ATTR_MSG, "bridge exists");
            })
            .unwrap();
        let reply = Replies { remaining: batch.as_bytes() }.next().unwrap();
        assert_eq!(reply.sequence, 9);
        let Content::Refused(refusal) = reply.content else { panic!("no refusal") };
        assert_eq!(refusal.errno, Errno::EXIST);
        assert_eq!(refusal.message.as_deref(), Some("bridge exists"));
        let error = refusal.during("create bridge br0");
        assert_eq!(error.to_string(), "cannot create bridge br0: File exists, kernel message: bridge exists");
    }

    proptest! {
        #[test]
        fn arbitrary_datagrams_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            Replies { remaining: &bytes }.count();
        }

        #[test]
        fn arbitrary_acknowledgements_never_panic(
            code in any::<i32>(), flags in any::<u16>(), kind in 1u16..5,
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut batch = Batch::new();
            batch.message(Head { kind, flags, sequence: 1 }, |body| {
                body.raw(&code.to_ne_bytes());
                body.raw(&bytes);
            }).unwrap();
            for reply in (Replies { remaining: batch.as_bytes() }) {
                if let Content::Refused(refusal) = reply.content {
                    prop_assert!(!refusal.to_string().is_empty());
                }
            }
        }
    }
}
