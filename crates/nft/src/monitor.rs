//! Receives the kernel's notifications about nftables, so that the agent compares tables only after a change. Nothing is listed
//! here: family and table name of each message identify the owner.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink::wire::{attribute, read_text, read_u32};
use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, connect, recv, socket_with, sockopt,
};

use crate::desired::policy::POLICY;
use crate::desired::{NetworkTable, is_managed_table};
use crate::error::Error;
use crate::firewall::Firewall;
use crate::number;

/// `NFNLGRP_NFTABLES`, the seventh group, as a bit.
const GROUP: u32 = 1 << 6;
/// The kernel sends at most a page or two of messages in one datagram.
const BUFFER: usize = 32 * 1024;
/// Size of the receive buffer, for bursts. Memory is used only while messages wait.
const RECEIVE_BUFFER: usize = 2 << 20;
/// Maximum number of datagrams per read. If there are more, the socket stays readable.
const MAX_DATAGRAMS: usize = 256;

/// `struct nlmsghdr`
const NLMSGHDR_SIZE: usize = 16;
/// The port of the socket that requested the change, in the header.
const SENDER: usize = 12;
/// `struct nfgenmsg`
const NFGENMSG_SIZE: usize = 4;

const OPEN: &str = "subscribe to changes of the firewall";
const READ: &str = "read changes of the firewall";

/// The changes since the last [`RulesetMonitor::read`]. Podwire's own changes are included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RulesetChange {
    /// Managed tables other than those of peers.
    pub managed: ManagedChange,
    /// A table of peers was changed, or elements of one were deleted: see [`PeerTable::reconcile`](crate::PeerTable::reconcile).
    pub peers: bool,
    /// The table of policies was changed by another process, or its structure by this one: see
    /// [`Firewall::reconcile_policies`](crate::Firewall::reconcile_policies).
    pub policies: bool,
    /// An unmanaged table, chain or rule of the IP layer was added, changed or removed: see
    /// [`unmanaged_drops`](crate::unmanaged_drops).
    pub unmanaged: bool,
}

/// The most extensive change of a managed table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ManagedChange {
    #[default]
    None,
    /// Elements were deleted. With Linux 6.12, `remove_pod` does not cause this, because it lets the elements expire.
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
            policies: self.policies || other.policies,
            unmanaged: self.unmanaged || other.unmanaged,
        }
    }
}

const EVERYTHING: RulesetChange =
    RulesetChange { managed: ManagedChange::Structure, peers: true, policies: true, unmanaged: true };

/// Its file descriptor is readable after a change.
#[derive(Debug)]
pub struct RulesetMonitor {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// The netlink port of the socket that changes policies.
    policy_port: Option<u32>,
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
        Ok(Self { socket, buffer: vec![0; BUFFER], policy_port: None })
    }

    /// Elements that this firewall's socket changes in the table of policies are not reported: they change with every pod.
    pub fn ignore_policy_elements_of(&mut self, firewall: &Firewall) -> Result<(), Error> {
        self.policy_port = Some(firewall.socket.port()?);
        Ok(())
    }

    /// Does not wait.
    pub fn read(&mut self) -> Result<RulesetChange, Error> {
        let mut change = RulesetChange::default();
        for _ in 0..MAX_DATAGRAMS {
            match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::TRUNC) {
                Ok((received, length)) if length <= BUFFER => {
                    let datagram = self.buffer.get(..received).unwrap_or_default();
                    change = change.and(of_datagram(datagram, self.policy_port));
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

fn of_datagram(datagram: &[u8], policy_port: Option<u32>) -> RulesetChange {
    let (mut rest, mut change) = (datagram, RulesetChange::default());
    while let Some((kind, body, next)) = message(rest) {
        let is_own = policy_port.is_some() && policy_port == rest.get(SENDER..).and_then(read_u32);
        change = change.and(of_message(kind, body, is_own));
        rest = next;
    }
    change
}

/// The type and body of the first message, and the following messages.
pub(crate) fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = read_u32(bytes)? as usize;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(NLMSGHDR_SIZE..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The object of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChangedObject {
    TableChainOrRule,
    Set,
    AddedElement,
    DeletedElement,
    Other,
}

impl ChangedObject {
    fn is_element(self) -> bool {
        matches!(self, Self::AddedElement | Self::DeletedElement)
    }
}

/// By the number of the message: `NEW…`, `DEL…` and, since Linux 6.3, `DESTROY…` of tables, chains and rules, of sets, and of
/// elements (only deletions matter).
fn changed_object(kind: u16) -> ChangedObject {
    match kind.checked_sub(number::SUBSYS_NFTABLES) {
        Some(0 | 2 | 26 | 3 | 5 | 27 | 6 | 8 | 28) => ChangedObject::TableChainOrRule,
        Some(9 | 11 | 29) => ChangedObject::Set,
        Some(12) => ChangedObject::AddedElement,
        Some(14 | 30) => ChangedObject::DeletedElement,
        Some(_) | None => ChangedObject::Other,
    }
}

fn of_message(kind: u16, body: &[u8], is_own: bool) -> RulesetChange {
    let (object, none) = (changed_object(kind), RulesetChange::default());
    if object == ChangedObject::Other {
        return none;
    }
    let family = body.first().map(|family| i32::from(*family));
    // The attribute with the table's name has the same number in all of these messages.
    let table = body.get(NFGENMSG_SIZE..).and_then(|attributes| attribute(attributes, number::TABLE_NAME));
    let table = table.map(read_text).unwrap_or_default();
    match (family, object) {
        (Some(libc::NFPROTO_INET), object) if table == POLICY.name => {
            RulesetChange { policies: !(is_own && object.is_element()), ..none }
        }
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
        (_, ChangedObject::Other | ChangedObject::AddedElement) => none,
        (Some(NetworkTable::Peers), _) => RulesetChange { peers: true, ..none },
        (_, ChangedObject::TableChainOrRule | ChangedObject::Set) => managed(ManagedChange::Structure),
        // Each element counts the connections of a pod. The kernel creates it again, so there is nothing to repair.
        (Some(NetworkTable::Limit), ChangedObject::DeletedElement) => none,
        (Some(NetworkTable::Clamp | NetworkTable::Dscp) | None, ChangedObject::DeletedElement) => {
            managed(ManagedChange::Elements)
        }
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
        let policies = RulesetChange { policies: true, ..none };
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
            (
                &[(3, ip, "filter"), (27, inet, "podwire")],
                RulesetChange { peers: false, policies: false, ..EVERYTHING },
            ),
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
            (&[(8, inet, "podwire-policy")], policies),
            (&[(14, inet, "podwire-policy")], policies),
            (&[(12, inet, "podwire-policy")], policies),
            // Any other table with the prefix.
            (&[(2, bridge, "podwire-policy")], managed(ManagedChange::Structure)),
            (&[(14, inet, "podwire-other"), (12, inet, "podwire-other")], managed(ManagedChange::Elements)),
        ] {
            assert_eq!(of_datagram(&datagram(messages), None), want, "{messages:?}");
        }
    }

    #[test]
    fn complete_messages_of_a_truncated_datagram_are_read() {
        let whole = datagram(&[(2, libc::NFPROTO_INET, "podwire"), (3, libc::NFPROTO_IPV4, "filter")]);
        for length in 0..whole.len() {
            assert!(!of_datagram(&whole[..length], None).unmanaged);
        }
    }
}
