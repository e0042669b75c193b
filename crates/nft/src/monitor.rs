//! Receives the kernel's notifications about nftables, so that the agent compares tables only after a change. Nothing is listed
//! here: family and table name of each message identify the owner.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink::wire::{attribute, read_text, read_u32};
use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, connect, recv, socket_with, sockopt,
};

use crate::desired::{NetworkTable, is_managed_table};
use crate::error::Error;
use crate::number;

/// `NFNLGRP_NFTABLES`, the seventh group, as a bit.
const GROUP: u32 = 1 << 6;
/// The kernel sends at most a page or two of messages in one datagram.
const BUFFER: usize = 32 * 1024;
/// Size of the receive buffer, for bursts. Memory is used only while messages wait.
const RECEIVE_BUFFER: usize = 2 << 20;
/// Datagrams per read. If there are more, the socket stays readable.
const AT_ONCE: usize = 256;

const HEADER: usize = 16;
/// `struct nfgenmsg`
const GENERAL: usize = 4;

const OPEN: &str = "subscribe to changes of the firewall";
const READ: &str = "read changes of the firewall";

/// The changes since the last [`RulesetMonitor::read`]. Podwire's own changes are included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RulesetChange {
    /// Managed tables other than those of peers.
    pub managed: ManagedChange,
    /// A table of peers was changed, or elements of one were deleted: see [`PeerTable::keep`](crate::PeerTable::keep).
    pub peers: bool,
    /// An unmanaged table, chain or rule of the IP layer was added, changed or removed: see
    /// [`unmanaged_drops`](crate::unmanaged_drops).
    pub unmanaged: bool,
}

/// The most extensive change of a managed table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ManagedChange {
    #[default]
    None,
    /// Elements were deleted. If the kernel lets elements expire (Linux 6.12), `remove_pod` does not delete any.
    Elements,
    /// A table, chain, rule or set was added, changed or removed, or notifications were lost:
    /// [`Firewall::drift`](crate::Firewall::drift) compares the tables. The first pod of a network and `prune` cause this, too.
    Structure,
}

impl RulesetChange {
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    fn and(self, other: Self) -> Self {
        Self {
            managed: self.managed.max(other.managed),
            peers: self.peers || other.peers,
            unmanaged: self.unmanaged || other.unmanaged,
        }
    }
}

const EVERYTHING: RulesetChange =
    RulesetChange { managed: ManagedChange::Structure, peers: true, unmanaged: true };

/// Its file descriptor is readable after a change.
#[derive(Debug)]
pub struct RulesetMonitor {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl AsFd for RulesetMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl RulesetMonitor {
    /// For the network namespace of the calling thread. Any thread may read.
    pub fn open() -> Result<Self, Error> {
        let socket = subscribe().map_err(|errno| Error::io(OPEN, errno))?;
        Ok(Self { socket, buffer: vec![0; BUFFER] })
    }

    /// Does not wait.
    pub fn read(&mut self) -> Result<RulesetChange, Error> {
        let mut change = RulesetChange::default();
        for _ in 0..AT_ONCE {
            match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::TRUNC) {
                Ok((received, length)) if length <= BUFFER => {
                    change = change.and(of_datagram(self.buffer.get(..received).unwrap_or_default()));
                }
                // A part of the datagram, or whole datagrams, were lost.
                Ok(_) | Err(Errno::NOBUFS) => change = EVERYTHING,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(Error::io(READ, errno)),
            }
        }
        Ok(change)
    }
}

fn subscribe() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(NETFILTER))?;
    sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER)?;
    bind(&socket, &SocketAddrNetlink::new(0, GROUP))?;
    // Port 0 is the kernel: messages from other processes are refused.
    connect(&socket, &SocketAddrNetlink::new(0, 0))?;
    Ok(socket)
}

fn of_datagram(datagram: &[u8]) -> RulesetChange {
    let (mut rest, mut change) = (datagram, RulesetChange::default());
    while let Some((kind, body, next)) = message(rest) {
        change = change.and(of_message(kind, body));
        rest = next;
    }
    change
}

/// The type and body of the first message, and the following messages.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = read_u32(bytes)? as usize;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(HEADER..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The object of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChangedObject {
    TableChainOrRule,
    Set,
    DeletedElement,
    Other,
}

/// Messages `NEW…`, `DEL…` and, since Linux 6.3, `DESTROY…`.
fn changed_object(kind: u16) -> ChangedObject {
    match kind.checked_sub(number::SUBSYS_NFTABLES) {
        Some(0 | 2 | 26 | 3 | 5 | 27 | 6 | 8 | 28) => ChangedObject::TableChainOrRule,
        Some(9 | 11 | 29) => ChangedObject::Set,
        Some(14 | 30) => ChangedObject::DeletedElement,
        Some(_) | None => ChangedObject::Other,
    }
}

fn of_message(kind: u16, body: &[u8]) -> RulesetChange {
    let (object, none) = (changed_object(kind), RulesetChange::default());
    if object == ChangedObject::Other {
        return none;
    }
    let family = body.first().map(|family| i32::from(*family));
    // The attribute with the table's name has the same number in all of these messages.
    let table = body.get(GENERAL..).and_then(|attributes| attribute(attributes, number::TABLE_NAME));
    let table = table.map(read_text).unwrap_or_default();
    match (family, object) {
        (Some(libc::NFPROTO_INET | libc::NFPROTO_BRIDGE), object) if is_managed_table(&table) => {
            of_managed(&table, object)
        }
        (
            Some(libc::NFPROTO_INET | libc::NFPROTO_IPV4 | libc::NFPROTO_IPV6),
            ChangedObject::TableChainOrRule,
        ) => RulesetChange { unmanaged: true, ..none },
        (_, _) => none,
    }
}

fn of_managed(table: &str, object: ChangedObject) -> RulesetChange {
    let (kind, none) = (NetworkTable::of(table).map(|(kind, _)| kind), RulesetChange::default());
    let managed = |managed| RulesetChange { managed, ..none };
    match (kind, object) {
        (_, ChangedObject::Other) => none,
        (Some(NetworkTable::Peers), _) => RulesetChange { peers: true, ..none },
        (_, ChangedObject::TableChainOrRule | ChangedObject::Set) => managed(ManagedChange::Structure),
        // Deleted counters start at zero.
        (Some(NetworkTable::Limit), ChangedObject::DeletedElement) => none,
        (Some(NetworkTable::Clamp) | None, ChangedObject::DeletedElement) => managed(ManagedChange::Elements),
    }
}

#[cfg(test)]
mod tests {
    use netlink::wire::{Batch, Head};

    use super::*;

    fn datagram(messages: &[(u16, i32, &str)]) -> Vec<u8> {
        let mut batch = Batch::new();
        for (kind, family, table) in messages {
            let head = Head { kind: number::SUBSYS_NFTABLES | kind, flags: 0, sequence: 0 };
            let write = |body: &mut netlink::wire::Body<'_>| {
                body.raw(&[u8::try_from(*family).unwrap(), 0, 0, 0]);
                body.str(number::TABLE_NAME, table);
            };
            batch.message(head, write).unwrap();
        }
        batch.as_bytes().to_vec()
    }

    #[test]
    fn family_and_table_decide_whether_a_change_is_managed() {
        let (inet, bridge, ip) = (libc::NFPROTO_INET, libc::NFPROTO_BRIDGE, libc::NFPROTO_IPV4);
        let none = RulesetChange::default();
        let managed = |managed| RulesetChange { managed, ..none };
        let (peers, unmanaged) =
            (RulesetChange { peers: true, ..none }, RulesetChange { unmanaged: true, ..none });
        for (messages, want) in [
            (&[(2, inet, "podwire")][..], managed(ManagedChange::Structure)),
            (&[(14, inet, "podwire"), (8, bridge, "podwire")], managed(ManagedChange::Structure)),
            (
                &[(12, inet, "podwire"), (14, bridge, "podwire"), (15, 0, "x")],
                managed(ManagedChange::Elements),
            ),
            (&[(12, inet, "podwire")], none),
            (&[(6, ip, "podwire")], unmanaged),
            (&[(6, inet, "podwire2")], unmanaged),
            (&[(14, inet, "firewalld"), (6, bridge, "other")], none),
            (&[(3, ip, "filter"), (27, inet, "podwire")], RulesetChange { peers: false, ..EVERYTHING }),
            (&[(2, inet, "podwire-peers-blue"), (14, inet, "podwire-peers-blue")], peers),
            (&[(12, inet, "podwire-peers-blue")], none),
            (
                &[(8, inet, "podwire-limit-blue"), (0, inet, "podwire-limit-blue")],
                managed(ManagedChange::Structure),
            ),
            (&[(11, inet, "podwire-limit-blue")], managed(ManagedChange::Structure)),
            (&[(14, inet, "podwire-limit-blue"), (12, inet, "podwire-limit-blue")], none),
            (&[(6, ip, "podwire-limit-blue")], unmanaged),
            (&[(14, inet, "podwire-clamp-blue")], managed(ManagedChange::Elements)),
            // Any other table with the prefix.
            (&[(8, inet, "podwire-policy")], managed(ManagedChange::Structure)),
            (&[(14, inet, "podwire-policy"), (12, inet, "podwire-policy")], managed(ManagedChange::Elements)),
            (&[(2, bridge, "podwire-policy")], managed(ManagedChange::Structure)),
        ] {
            assert_eq!(of_datagram(&datagram(messages)), want, "{messages:?}");
        }
    }

    #[test]
    fn complete_messages_of_a_truncated_datagram_are_read() {
        let whole = datagram(&[(2, libc::NFPROTO_INET, "podwire"), (3, libc::NFPROTO_IPV4, "filter")]);
        for length in 0..whole.len() {
            assert!(!of_datagram(&whole[..length]).unmanaged);
        }
    }
}
