//! Hears from the kernel what happens to nftables, so that the agent looks only when there is a reason. Nothing is
//! looked up here: a few bytes of each message tell whose it is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink::wire::{attribute, read_text, read_u32};
use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, connect, recv, socket_with, sockopt,
};

use crate::desired::{NetworkTable, TABLE};
use crate::error::Error;
use crate::number;

/// `NFNLGRP_NFTABLES`, the seventh group, as a bit.
const GROUP: u32 = 1 << 6;
/// The kernel puts at most a page or two of messages into one datagram.
const BUFFER: usize = 32 * 1024;
/// For bursts; memory is used only while messages wait.
const ROOM: usize = 2 << 20;
/// So many datagrams at a time; what is left keeps the socket readable.
const AT_ONCE: usize = 256;

const HEADER: usize = 16;
/// `struct nfgenmsg`
const GENERAL: usize = 4;

const OPEN: &str = "listen for changes of the firewall";
const READ: &str = "read what changed in the firewall";

/// What happened since the last [`RulesetMonitor::read`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RulesetChange {
    pub ours: Ours,
    /// A table, chain or rule of others, at the IP layer, came, went or changed: look at [`unmanaged_drops`](crate::foreign_drops) again.
    pub unmanaged: bool,
    /// A table of peers changed, or elements of one were deleted: [`PeerTable::keep`](crate::PeerTable::keep) again.
    pub peers: bool,
}

/// What happened to our own tables; the larger one counts. Our own work looks the same as that of others: these
/// are reasons to look, not findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Ours {
    #[default]
    Nothing,
    /// Elements were deleted. Where the kernel lets elements expire (Linux 6.12), our own `remove_pod` does not look like this.
    Elements,
    /// A table, chain, rule or set was added, changed or removed, or the kernel had more to say than we could hear:
    /// [`Firewall::drift`](crate::Firewall::drift) finds what is wrong. The first pod of a network and `prune` look like this too.
    Structure,
}

impl RulesetChange {
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }

    fn and(self, other: Self) -> Self {
        Self {
            ours: self.ours.max(other.ours),
            unmanaged: self.unmanaged || other.unmanaged,
            peers: self.peers || other.peers,
        }
    }
}

const EVERYTHING: RulesetChange = RulesetChange { ours: Ours::Structure, unmanaged: true, peers: true };

/// Readable (poll) when something happened.
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
    /// For the network namespace of the calling thread; any thread may read.
    pub fn open() -> Result<Self, Error> {
        let socket = subscribe().map_err(|errno| Error::io(OPEN, errno))?;
        Ok(Self { socket, buffer: vec![0; BUFFER] })
    }

    /// Does not wait.
    pub fn read(&mut self) -> Result<RulesetChange, Error> {
        let mut change = RulesetChange::default();
        for _ in 0..AT_ONCE {
            match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::TRUNC) {
                Ok((heard, length)) if length <= BUFFER => {
                    change = change.and(of_datagram(self.buffer.get(..heard).unwrap_or_default()));
                }
                // Part of it is lost, as is what did not find room.
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
    sockopt::set_socket_recv_buffer_size_force(&socket, ROOM)?;
    bind(&socket, &SocketAddrNetlink::new(0, GROUP))?;
    // Only the kernel has port 0: from now on it lets nobody else send to us.
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

/// The type and body of the first message, and what follows it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = read_u32(bytes)? as usize;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(HEADER..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// What a message is about.
#[derive(PartialEq, Eq)]
enum About {
    TableChainOrRule,
    Set,
    ElementGone,
    Other,
}

/// New, deleted, and since Linux 6.3 destroyed, which is deleted if it was there.
fn about(kind: u16) -> About {
    match kind.checked_sub(number::SUBSYS_NFTABLES) {
        Some(0 | 2 | 26 | 3 | 5 | 27 | 6 | 8 | 28) => About::TableChainOrRule,
        Some(9 | 11 | 29) => About::Set,
        Some(14 | 30) => About::ElementGone,
        Some(_) | None => About::Other,
    }
}

fn of_message(kind: u16, body: &[u8]) -> RulesetChange {
    let about = about(kind);
    if about == About::Other {
        return RulesetChange::default();
    }
    let family = body.first().map(|family| i32::from(*family));
    // The table's name has the same number in all of these.
    let table = body.get(GENERAL..).and_then(|attributes| attribute(attributes, number::TABLE_NAME));
    let table = table.map(read_text).unwrap_or_default();
    let kind = NetworkTable::of(&table).map(|(kind, _)| kind);
    let of_ours = |ours| RulesetChange { ours, ..RulesetChange::default() };
    match (family, about) {
        (Some(libc::NFPROTO_INET | libc::NFPROTO_BRIDGE), about) if table == TABLE => match about {
            About::TableChainOrRule | About::Set => of_ours(Ours::Structure),
            About::ElementGone => of_ours(Ours::Elements),
            About::Other => RulesetChange::default(),
        },
        (Some(libc::NFPROTO_INET), about) if kind.is_some() => match (kind, about) {
            (Some(NetworkTable::Peers), _) => RulesetChange { peers: true, ..RulesetChange::default() },
            // Deleted counters begin again at zero.
            (Some(NetworkTable::Limit), About::ElementGone) => RulesetChange::default(),
            (_, _) => of_ours(Ours::Structure),
        },
        (Some(libc::NFPROTO_INET | libc::NFPROTO_IPV4 | libc::NFPROTO_IPV6), About::TableChainOrRule) => {
            RulesetChange { unmanaged: true, ..RulesetChange::default() }
        }
        (_, _) => RulesetChange::default(),
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
    fn a_message_is_ours_by_family_and_table() {
        let (inet, bridge, ip) = (libc::NFPROTO_INET, libc::NFPROTO_BRIDGE, libc::NFPROTO_IPV4);
        let (ours, unmanaged) = (
            |ours| RulesetChange { ours, ..RulesetChange::default() },
            RulesetChange { unmanaged: true, ..RulesetChange::default() },
        );
        let peers = RulesetChange { peers: true, ..RulesetChange::default() };
        for (messages, want) in [
            (&[(2, inet, "podwire")][..], ours(Ours::Structure)),
            (&[(14, inet, "podwire"), (8, bridge, "podwire")], ours(Ours::Structure)),
            (&[(12, inet, "podwire"), (14, bridge, "podwire"), (15, 0, "x")], ours(Ours::Elements)),
            (&[(12, inet, "podwire")], ours(Ours::Nothing)),
            (&[(6, ip, "podwire")], unmanaged),
            (&[(6, inet, "podwire2")], unmanaged),
            (&[(14, inet, "firewalld"), (6, bridge, "other")], ours(Ours::Nothing)),
            (&[(3, ip, "filter"), (27, inet, "podwire")], RulesetChange { peers: false, ..EVERYTHING }),
            (&[(2, inet, "podwire-peers-blue"), (14, inet, "podwire-peers-blue")], peers),
            (&[(12, inet, "podwire-peers-blue")], RulesetChange::default()),
            (&[(8, inet, "podwire-limit-blue"), (0, inet, "podwire-limit-blue")], ours(Ours::Structure)),
            (&[(11, inet, "podwire-limit-blue")], ours(Ours::Structure)),
            (&[(14, inet, "podwire-limit-blue"), (12, inet, "podwire-limit-blue")], RulesetChange::default()),
            (&[(6, ip, "podwire-limit-blue")], unmanaged),
        ] {
            assert_eq!(of_datagram(&datagram(messages)), want, "{messages:?}");
        }
    }

    #[test]
    fn a_datagram_that_is_cut_off_is_read_as_far_as_it_goes() {
        let whole = datagram(&[(2, libc::NFPROTO_INET, "podwire"), (3, libc::NFPROTO_IPV4, "filter")]);
        for length in 0..whole.len() {
            assert!(!of_datagram(&whole[..length]).unmanaged);
        }
    }
}
