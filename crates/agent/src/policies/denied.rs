//! Reads the packets that the firewall logged because policies denied them, and hands them to the policy thread, which knows the
//! rules.
//!
//! ```text
//! firewall ─► NFLOG group 113 ─► denied thread ─► policy thread: engine ─► DeniedFlows ─► API
//! ```
//!
//! The firewall limits the rate of logged packets. The pause between reads bounds the thread's work even if another program logs to
//! the group.

use std::sync::Arc;
use std::time::{Duration, Instant};

use model::objects::Direction;
use netlink::RtSocket;
use nft::{DeniedLog, DeniedPacket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::error;
use types::{Code, Finding, Fix};

use super::handle::Policies;
use super::packet::{PacketHeaders, headers};
use crate::agent_status::AgentStatus;
use crate::clock::unix_time;
use crate::conditions::Source;
use crate::monitor::{MonitorSlot, Read};
use crate::thread::{AgentThread, StopFlag};
use crate::waker::{Slot, Waker};

/// Time between two reads, in which packets wait in the socket's buffer.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause after poll(2) failed.
const RETRY: Duration = Duration::from_secs(1);
/// Listeners of NFLOG groups: group, port ID (often the process ID), and their settings.
const LISTENERS: &str = "/proc/net/netfilter/nfnetlink_log";

/// A logged packet. The ends are not named yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeniedSample {
    /// Unix time.
    pub(super) time: u64,
    pub(super) direction: Direction,
    /// The host end of the pod that is judged. None if it does not exist any more.
    pub(super) link: Option<String>,
    pub(super) headers: PacketHeaders,
}

pub(super) struct DeniedParts {
    /// Whether the table of policies exists.
    pub(super) enforced: Arc<Slot<bool>>,
    /// A reader of `enforced`.
    pub(super) waker: Waker,
    pub(super) policies: Arc<Policies>,
    pub(super) agent_status: Arc<AgentStatus>,
}

/// Starts the thread.
pub(super) fn start(parts: DeniedParts) -> std::io::Result<AgentThread> {
    let waker = parts.waker.clone();
    let reader = DeniedReader { parts, log: None, links: None, read_at: None };
    AgentThread::start("podwire-denied", waker, move |stop| reader.run(stop))
}

struct DeniedReader {
    parts: DeniedParts,
    /// None while no policy is enforced.
    log: Option<MonitorSlot<DeniedLog, nft::Error>>,
    links: Option<RtSocket>,
    /// The earliest time of the next read.
    read_at: Option<Instant>,
}

impl DeniedReader {
    fn run(mut self, stop: &StopFlag) {
        loop {
            self.parts.waker.clear();
            if stop.is_set() {
                return;
            }
            self.follow();
            if self.read_at.is_none_or(|at| at <= Instant::now()) {
                self.read();
            }
            if let Err(errno) = self.wait() {
                error!(error = %errno, "the thread that reads denied packets cannot wait for events");
                std::thread::sleep(RETRY);
            }
        }
    }

    fn wait(&self) -> Result<(), Errno> {
        let retry_at = self.log.as_ref().and_then(MonitorSlot::retry_at);
        let pause = self.read_at.or(retry_at).map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = pause.map(Timespec::try_from).transpose().map_err(|_| Errno::INVAL)?;
        let mut fds = vec![PollFd::new(&self.parts.waker, PollFlags::IN)];
        if self.read_at.is_none() {
            let log = self.log.as_ref().and_then(MonitorSlot::fd);
            fds.extend(log.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Listens while policies are enforced.
    fn follow(&mut self) {
        match (self.parts.enforced.get(), self.log.is_some()) {
            (true, false) => self.log = Some(MonitorSlot::open_or_retry("denied", DeniedLog::open)),
            (false, true) => (self.log, self.read_at) = (None, None),
            (true, true) | (false, false) => return,
        }
        self.report();
    }

    fn read(&mut self) {
        self.read_at = None;
        let Some(log) = &mut self.log else { return };
        let logged = match log.read(Instant::now(), DeniedLog::read) {
            Read::Events(logged) => logged,
            Read::Reopened | Read::Failed => return self.report(),
        };
        if logged.packets.is_empty() && logged.lost == 0 {
            return;
        }
        self.read_at = Some(Instant::now() + PAUSE);
        let total = logged.packets.len();
        let samples: Vec<DeniedSample> =
            logged.packets.iter().filter_map(|packet| self.sample(packet)).collect();
        let unreadable = total - samples.len();
        self.parts.policies.denied.lost(u64::from(logged.lost) + unreadable as u64);
        self.parts.policies.explain_denied(samples);
    }

    fn sample(&mut self, packet: &DeniedPacket) -> Option<DeniedSample> {
        let headers = headers(&packet.packet)?;
        let link = match packet.direction {
            Direction::Ingress => packet.output,
            Direction::Egress => packet.input,
        };
        let link = link.and_then(|index| self.link_name(index));
        Some(DeniedSample { time: unix_time(), direction: packet.direction, link, headers })
    }

    /// The name is only shown, so a failure leaves it out.
    fn link_name(&mut self, index: u32) -> Option<String> {
        let mut links = self.links.take().or_else(|| RtSocket::open().ok())?;
        let found = links.link_at(index).ok()?;
        self.links = Some(links);
        found.map(|link| link.name)
    }

    fn report(&self) {
        let failure = self.log.as_ref().and_then(MonitorSlot::failure);
        let findings = failure.map(|failure| {
            let listener = std::fs::read_to_string(LISTENERS).ok().and_then(|list| listener(&list));
            let message =
                format!("denied packets are counted, but the rules that deny them are not named: {failure}");
            let finding = |message: String| {
                Finding::new(Code::DeniedLogFailed, format_args!("NFLOG group {}", nft::LOG_GROUP), message)
            };
            match listener {
                Some(port) => finding(format!(
                    "{message}; the listener has port ID {port}, which often is its process ID"
                ))
                .fix(Fix::words(["cat", LISTENERS])),
                None => finding(message),
            }
        });
        self.parts.agent_status.set(Source::DeniedLog, findings.into_iter().collect());
    }
}

/// The port ID of the listener of Podwire's group.
fn listener(list: &str) -> Option<String> {
    list.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let group = words.next()?.parse::<u16>().ok()?;
        words.next().filter(|_| group == nft::LOG_GROUP).map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listener_of_the_group_is_found() {
        let list = "    1   4242     0 2 65535     10  1\n  113   4711     0 2 65535     10  1\n";
        assert_eq!(listener(list).as_deref(), Some("4711"));
        assert_eq!(listener("  114 1 2"), None);
        assert_eq!(listener("x"), None);
    }
}
