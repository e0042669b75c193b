//! Tests whether the interface computes correct checksums of tunnelled packets. Some cards and drivers do not, and then almost
//! only pings pass the tunnel. The test sends a datagram to a closed port of a peer: the peer's kernel refuses it if the
//! checksum is correct, and drops it otherwise.
//!
//! ```text
//! pairs of datagrams at the same moment, one with a checksum by the interface, one with a checksum by the kernel:
//!   the interface's datagram is answered once ──► Sound
//!   in each pair only the kernel's is answered ─► Broken
//!   otherwise ──────────────────────────────────► Unclear: the peer is unreachable, packets are lost, a firewall drops them
//! ```
//!
//! The test changes no setting: the kernel computes the checksum of a datagram that is sent in two parts. A firewall that refuses such
//! datagrams does not verify checksums. Then the test reports a sound interface.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use rustix::net::{SendFlags, send};
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep, timeout_at};
use types::IfName;

use crate::waker::Waker;

/// The discard service. A process that listens there does not reply, and then the result is unclear.
const PORT: u16 = 9;
const PAYLOAD: &[u8] = b"podwire";
/// The ICMP rate limit of a peer's kernel permits six replies in a row, then one per second. With half of all packets lost, a sound
/// interface seems broken once in 250 tests.
const PAIRS: usize = 4;
/// Longer than any round trip.
const TIMEOUT: Duration = Duration::from_millis(400);

/// After this time, the ICMP rate limit of a peer's kernel permits several replies again.
pub(crate) const RATE_LIMIT_PAUSE: Duration = Duration::from_secs(3);

const STACK: usize = 256 << 10;

/// The result of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChecksumVerdict {
    Sound,
    Broken,
    Unclear,
}

/// The component that computes a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChecksumBy {
    Interface,
    Kernel,
}

/// Which of two simultaneous datagrams got a reply.
#[derive(Debug, Clone, Copy)]
struct Answers {
    interface: bool,
    kernel: bool,
}

/// The result after these pairs. None: more pairs are needed.
fn judge(pairs: &[Answers]) -> Option<ChecksumVerdict> {
    match pairs.last() {
        Some(last) if last.interface => Some(ChecksumVerdict::Sound),
        Some(last) if !last.kernel => Some(ChecksumVerdict::Unclear),
        Some(_) if pairs.len() >= PAIRS => Some(ChecksumVerdict::Broken),
        Some(_) | None => None,
    }
}

/// Tests a tunnel with one address per family of a node behind it.
async fn run(tunnel: IfName, addresses: Vec<IpAddr>) -> ChecksumVerdict {
    let mut worst = ChecksumVerdict::Sound;
    for to in addresses {
        match probe_address(&tunnel, to).await {
            Ok(ChecksumVerdict::Sound) => {}
            Ok(ChecksumVerdict::Broken) => return ChecksumVerdict::Broken,
            // A datagram that could not be sent says nothing about the interface.
            Ok(ChecksumVerdict::Unclear) | Err(_) => worst = ChecksumVerdict::Unclear,
        }
    }
    worst
}

/// Runs a test after `delay` on a new thread, and wakes the caller when it has ended.
pub(crate) fn start(
    tunnel: IfName,
    addresses: Vec<IpAddr>,
    delay: Duration,
    waker: Waker,
) -> io::Result<Receiver<ChecksumVerdict>> {
    let (sender, verdict) = sync_channel(1);
    thread::Builder::new().name("podwire-csum".to_owned()).stack_size(STACK).spawn(move || {
        // In this order, so that the sender is dropped before the caller is woken.
        let _woken = WakeAtEnd(waker);
        let sender = sender;
        let found = in_runtime(async {
            sleep(delay).await;
            run(tunnel, addresses).await
        });
        // The caller may be gone.
        let _ = sender.send(found.unwrap_or(ChecksumVerdict::Unclear));
    })?;
    Ok(verdict)
}

fn in_runtime(probe: impl Future<Output = ChecksumVerdict>) -> io::Result<ChecksumVerdict> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(probe))
}

struct WakeAtEnd(Waker);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        self.0.wake();
    }
}

async fn probe_address(tunnel: &IfName, to: IpAddr) -> io::Result<ChecksumVerdict> {
    let mut pairs = Vec::with_capacity(PAIRS);
    loop {
        if let Some(verdict) = judge(&pairs) {
            return Ok(verdict);
        }
        let (interface, kernel) = (socket(tunnel, to).await?, socket(tunnel, to).await?);
        // The order alternates, so that a path that drops the second of two datagrams affects both kinds.
        let order = [(&interface, ChecksumBy::Interface), (&kernel, ChecksumBy::Kernel)];
        let [first, second] = if pairs.len() % 2 == 0 { order } else { [order[1], order[0]] };
        send_datagram(first).await?;
        send_datagram(second).await?;
        let end = Instant::now() + TIMEOUT;
        let (interface, kernel) = tokio::join!(is_answered(&interface, end), is_answered(&kernel, end));
        pairs.push(Answers { interface: interface?, kernel: kernel? });
    }
}

/// Each datagram has its own socket, so that a late reply is not attributed to the next datagram.
async fn socket(tunnel: &IfName, to: IpAddr) -> io::Result<UdpSocket> {
    let any =
        if to.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let socket = UdpSocket::bind((any, 0)).await?;
    // If the route was just removed, the datagram must not leave through another interface.
    socket.bind_device(Some(tunnel.as_str().as_bytes()))?;
    socket.connect((to, PORT)).await?;
    Ok(socket)
}

async fn send_datagram((socket, by): (&UdpSocket, ChecksumBy)) -> io::Result<()> {
    match by {
        ChecksumBy::Interface => socket.send(PAYLOAD).await?,
        ChecksumBy::Kernel => {
            let (first, rest) = PAYLOAD.split_at(PAYLOAD.len() / 2);
            send(socket, first, SendFlags::MORE)?;
            send(socket, rest, SendFlags::empty())?
        }
    };
    Ok(())
}

async fn is_answered(socket: &UdpSocket, end: Instant) -> io::Result<bool> {
    match timeout_at(end, socket.recv(&mut [0; 1])).await {
        Ok(Ok(_)) => Ok(true),
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Ok(true),
        Ok(Err(error)) => Err(error),
        Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use netlink::NetNs;

    use super::*;

    #[test]
    fn pain9_offload_is_broken_if_only_kernel_checksums_are_answered() {
        let answers = |text: &str| -> Vec<Answers> {
            let pairs = text.split_whitespace();
            pairs.map(|pair| Answers { interface: pair.contains('i'), kernel: pair.contains('k') }).collect()
        };
        for (replies, verdict) in [
            ("", None),
            ("i", Some(ChecksumVerdict::Sound)),
            ("-", Some(ChecksumVerdict::Unclear)),
            ("k", None),
            ("k -", Some(ChecksumVerdict::Unclear)),
            ("k k k", None),
            ("k k k k", Some(ChecksumVerdict::Broken)),
            ("k k k -", Some(ChecksumVerdict::Unclear)),
            ("k k k ik", Some(ChecksumVerdict::Sound)),
        ] {
            assert_eq!(judge(&answers(replies)), verdict, "{replies}");
        }
    }

    #[test]
    fn a_closed_port_answers_and_a_send_failure_is_no_result() {
        let in_a_namespace = || {
            let sh = |line: &str| {
                let mut words = line.split(' ');
                std::process::Command::new(words.next().unwrap()).args(words).status().unwrap().success()
            };
            assert!(sh("ip link set lo up"));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let lo = IfName::try_from("lo").unwrap();
            let ask = |to: &[&str]| {
                let addresses = to.iter().map(|to| to.parse().unwrap()).collect();
                runtime.block_on(run(lo.clone(), addresses))
            };
            assert_eq!(ask(&["127.0.0.1", "::1"]), ChecksumVerdict::Sound);
            assert_eq!(ask(&["127.0.0.1", "2001:db8::1"]), ChecksumVerdict::Unclear);
            // The node's own firewall rejects the datagrams. They never leave the node, so this is no reply of a peer.
            assert!(sh(
                "nft table inet t { chain o { type filter hook output priority 0; udp dport 9 reject; }; }"
            ));
            assert_eq!(ask(&["127.0.0.1", "::1"]), ChecksumVerdict::Unclear);
        };
        NetNs::create().unwrap().run(in_a_namespace).unwrap();
    }
}
