//! Schedules the tests of checksum offload and selects the peer of each. `checksum_probe` runs them.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use model::PeerPath;
use netlink::Ethtool;
use tracing::{debug, info, warn};
use types::NodeName;

use super::super::checksum_probe::{self, ChecksumVerdict};
use super::Routes;
use config::TunnelChecksum;

/// The pause after a test without a result. It doubles each time.
const PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The pause after a sound result: another peer may have another result, and the hardware below an interface may change.
const SOUND_PAUSE: Duration = Duration::from_secs(600);

/// The test results of the interfaces below the tunnels, IPv6 and IPv4.
#[derive(Debug, Default)]
pub(crate) struct ChecksumProbes {
    families: [ProbeState; 2],
    running: Option<Running>,
}

impl ChecksumProbes {
    /// The result of a test that has ended. A thread that panicked has no result.
    pub(super) fn verdict(&self) -> Option<ChecksumVerdict> {
        match self.running.as_ref()?.verdict.try_recv() {
            Ok(verdict) => Some(verdict),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(ChecksumVerdict::Unclear),
        }
    }
}

#[derive(Debug, Default)]
struct ProbeState {
    interface: Option<u32>,
    checksums: Option<ChecksumState>,
    /// The number of tests. Each uses another peer.
    tests: usize,
    /// The number of consecutive tests without a result.
    without_result: u32,
    next_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChecksumState {
    Sound,
    /// A test of this agent found it.
    Broken,
    /// The kernel computes checksums already, because of an earlier agent or the operator.
    SwitchedOff,
}

#[derive(Debug)]
struct Running {
    v4: bool,
    interface: u32,
    kind: ProbeKind,
    peer: NodeName,
    addresses: Vec<IpAddr>,
    verdict: Receiver<ChecksumVerdict>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeKind {
    Regular,
    /// Runs after checksum offload was switched off: does the peer answer now?
    Recheck,
}

impl ProbeState {
    fn is_due(&self) -> bool {
        self.checksums != Some(ChecksumState::Broken) && self.next_at.is_none_or(|at| at <= Instant::now())
    }

    fn pause(&self) -> Duration {
        PAUSE.saturating_mul(1 << self.without_result.min(10)).min(LONGEST_PAUSE)
    }
}

impl Routes {
    /// Whether the interface computes the checksums of tunnelled packets. None: the setting of the device stays. It is on for a new device;
    /// an earlier agent or the operator may have switched it off.
    pub(super) fn checksum(&self, v4: bool) -> Option<bool> {
        match self.config.cluster.tunnel_checksum {
            TunnelChecksum::On => Some(true),
            TunnelChecksum::Off => Some(false),
            TunnelChecksum::Auto => {
                let state = &self.known.checksum_probes.families[usize::from(v4)];
                let is_broken = state.checksums == Some(ChecksumState::Broken);
                (is_broken && state.interface == self.interface(v4)).then_some(false)
            }
        }
    }

    fn interface(&self, v4: bool) -> Option<u32> {
        self.known.position.underlays.iter().find(|u| u.address.is_ipv4() == v4).map(|u| u.link)
    }

    /// Starts a test of a tunnel that is due and has peers. Only one test runs at a time.
    pub(super) fn probe_tunnels(&mut self) {
        if self.config.cluster.tunnel_checksum != TunnelChecksum::Auto
            || self.known.checksum_probes.running.is_some()
        {
            return;
        }
        // Called with every change, so it must not walk over all nodes.
        let ((needs_v4, needs_v6), tunnels) = (self.known.mesh.tunnels_wanted(), self.known.tunnels);
        let needed = [(true, tunnels.v4.filter(|_| needs_v4)), (false, tunnels.v6.filter(|_| needs_v6))];
        for (v4, tunnel) in needed {
            let (Some(tunnel), Some(interface)) = (tunnel, self.interface(v4)) else { continue };
            let state = &mut self.known.checksum_probes.families[usize::from(v4)];
            if state.interface != Some(interface) {
                *state = ProbeState { interface: Some(interface), ..ProbeState::default() };
            }
            if !state.is_due() || !state.uses_interface_checksums(tunnel) {
                continue;
            }
            let test = state.tests;
            let Some((peer, addresses)) = self.peer_behind(tunnel, test) else { continue };
            self.known.checksum_probes.families[usize::from(v4)].tests += 1;
            debug!(%peer, "testing checksums of a tunnel");
            return self.start_probe((v4, interface, ProbeKind::Regular), peer, addresses);
        }
    }

    fn start_probe(&mut self, about: (bool, u32, ProbeKind), peer: NodeName, addresses: Vec<IpAddr>) {
        let (v4, interface, kind) = about;
        let Some(name) = self.tunnel_name(v4) else { return };
        let delay = match kind {
            ProbeKind::Regular => Duration::ZERO,
            ProbeKind::Recheck => checksum_probe::RATE_LIMIT_PAUSE,
        };
        match checksum_probe::start(name, addresses.clone(), delay, self.queue.waker.clone()) {
            Ok(verdict) => {
                self.known.checksum_probes.running =
                    Some(Running { v4, interface, kind, peer, addresses, verdict });
            }
            Err(error) => warn!(%error, "cannot start a thread that tests checksums of a tunnel"),
        }
    }

    /// Another peer each time, beginning with the next one by name, so that not all nodes select the same peer.
    fn peer_behind(&self, tunnel: u32, test: usize) -> Option<(NodeName, Vec<IpAddr>)> {
        let is_behind = |path: &PeerPath| matches!(path, PeerPath::Vxlan { link, .. } if *link == tunnel);
        let paths = || self.known.mesh.paths().filter(|(_, _, path)| is_behind(path));
        let mut names: Vec<&NodeName> = paths().map(|(name, _, _)| name).collect();
        names.dedup();
        let next = names.partition_point(|name| **name <= self.record.name).wrapping_add(test);
        let peer = *names.get(next.checked_rem(names.len())?)?;
        let blocks: Vec<IpNet> =
            paths().filter(|(name, _, _)| *name == peer).map(|(_, block, _)| block).collect();
        // The node's address, not one of a pod.
        let one =
            |v4: bool| blocks.iter().find(|block| block.addr().is_ipv4() == v4).and_then(ipam::block_gateway);
        Some((peer.clone(), [one(true), one(false)].into_iter().flatten().collect()))
    }

    pub(super) fn finish_probe(&mut self, verdict: ChecksumVerdict) {
        let Some(running) = self.known.checksum_probes.running.take() else { return };
        let Running { v4, interface, kind, peer, addresses, .. } = running;
        if kind == ProbeKind::Recheck {
            return log_recheck(verdict, &peer);
        }
        let state = &mut self.known.checksum_probes.families[usize::from(v4)];
        if state.interface != Some(interface) {
            return;
        }
        let now = Instant::now();
        match verdict {
            ChecksumVerdict::Sound => {
                if state.checksums != Some(ChecksumState::Sound) {
                    info!(%peer, "checksums of tunnelled packets are valid");
                }
                (state.checksums, state.without_result) = (Some(ChecksumState::Sound), 0);
                state.next_at = Some(now + SOUND_PAUSE);
            }
            ChecksumVerdict::Unclear => {
                debug!(%peer, "no reply to the test of checksums");
                let at = now + state.pause();
                state.next_at = Some(at);
                state.without_result += 1;
                self.known.compare_at = self.known.compare_at.min(at);
            }
            ChecksumVerdict::Broken => {
                let name = self.tunnel_name(v4).map(|name| name.to_string()).unwrap_or_default();
                warn!(
                    %peer,
                    "checksum offload of tunnelled packets computes invalid checksums; switched off. To test it again: stop the \
                     agent, ip link del {name}, start the agent"
                );
                self.known.checksum_probes.families[usize::from(v4)].checksums = Some(ChecksumState::Broken);
                self.reconcile_tunnels();
                self.start_probe((v4, interface, ProbeKind::Recheck), peer, addresses);
            }
        }
    }
}

impl ProbeState {
    /// If offload is off, the agent does not switch it on. The operator may do so, and then the tests resume.
    fn uses_interface_checksums(&mut self, tunnel: u32) -> bool {
        match Ethtool::open().and_then(|mut ethtool| ethtool.tx_checksum(tunnel)) {
            Ok(true) => true,
            Ok(false) => {
                if self.checksums != Some(ChecksumState::SwitchedOff) {
                    info!("checksum offload of the tunnel is off already; not changed");
                }
                self.checksums = Some(ChecksumState::SwitchedOff);
                self.next_at = Some(Instant::now() + SOUND_PAUSE);
                false
            }
            // The device may have been removed. The next comparison creates it again.
            Err(error) => {
                debug!(%error, "cannot read the checksum setting of a tunnel");
                self.next_at = Some(Instant::now() + PAUSE);
                false
            }
        }
    }
}

fn log_recheck(verdict: ChecksumVerdict, peer: &NodeName) {
    match verdict {
        ChecksumVerdict::Sound => {
            info!(%peer, "peer answers through the tunnel without checksum offload");
        }
        ChecksumVerdict::Broken | ChecksumVerdict::Unclear => {
            warn!(%peer, "peer does not answer through the tunnel without checksum offload either");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_without_a_result_and_a_fault_ends_the_tests() {
        let pause = |without_result| ProbeState { without_result, ..ProbeState::default() }.pause().as_secs();
        assert_eq!([0, 1, 3, 4, 99].map(pause), [5, 10, 40, 60, 60]);
        let due = |checksums| ProbeState { checksums, ..ProbeState::default() }.is_due();
        assert!(due(None) && due(Some(ChecksumState::Sound)) && due(Some(ChecksumState::SwitchedOff)));
        assert!(!due(Some(ChecksumState::Broken)));
        let later = ProbeState { next_at: Some(Instant::now() + SOUND_PAUSE), ..ProbeState::default() };
        assert!(!later.is_due());
    }
}
