//! When checksums of tunnels are tested, and with which peer. See `trial`.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use model::PeerPath;
use netlink::Ethtool;
use tracing::{debug, info, warn};
use types::NodeName;

use super::super::trial::{self, TrialVerdict};
use super::Routes;
use config::TunnelChecksum;

/// The pause after a test without a result. It doubles each time.
const PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The pause after a sound result: another peer may have another result, and the hardware below an interface may change.
const STILL_SOUND: Duration = Duration::from_secs(600);

/// What is known of the interfaces below the tunnels, of IPv6 and IPv4.
#[derive(Debug, Default)]
pub(crate) struct Trials {
    of: [TrialState; 2],
    running: Option<Running>,
}

impl Trials {
    /// Of a trial that ended. A thread that panicked says nothing of the card.
    pub(super) fn verdict(&self) -> Option<TrialVerdict> {
        match self.running.as_ref()?.verdict.try_recv() {
            Ok(verdict) => Some(verdict),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(TrialVerdict::Unclear),
        }
    }
}

#[derive(Debug, Default)]
struct TrialState {
    interface: Option<u32>,
    finding: Option<TrialFinding>,
    /// The number of tests. Each uses another peer.
    turns: usize,
    /// The number of consecutive tests without a result.
    fruitless: u32,
    again_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrialFinding {
    Sound,
    /// Found out by this agent.
    Broken,
    /// The kernel computes checksums already, because of an earlier agent or the operator.
    SwitchedOff,
}

#[derive(Debug)]
struct Running {
    v4: bool,
    interface: u32,
    kind: TrialKind,
    with: NodeName,
    addresses: Vec<IpAddr>,
    verdict: Receiver<TrialVerdict>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrialKind {
    Trial,
    /// Whether checksums by the kernel helped.
    Proof,
}

impl TrialState {
    fn is_due(&self) -> bool {
        self.finding != Some(TrialFinding::Broken) && self.again_at.is_none_or(|at| at <= Instant::now())
    }

    fn pause(&self) -> Duration {
        PAUSE.saturating_mul(1 << self.fruitless.min(10)).min(LONGEST_PAUSE)
    }
}

impl Routes {
    /// Whether the interface computes the checksums of tunnelled packets. None: not changed. A new device leaves them to the interface;
    /// on others an agent or the operator turned it off.
    pub(super) fn checksum(&self, v4: bool) -> Option<bool> {
        match self.config.cluster.tunnel_checksum {
            TunnelChecksum::On => Some(true),
            TunnelChecksum::Off => Some(false),
            TunnelChecksum::Auto => {
                let standing = &self.known.trials.of[usize::from(v4)];
                let is_broken = standing.finding == Some(TrialFinding::Broken);
                (is_broken && standing.interface == self.interface(v4)).then_some(false)
            }
        }
    }

    fn interface(&self, v4: bool) -> Option<u32> {
        self.known.position.underlays.iter().find(|u| u.address.is_ipv4() == v4).map(|u| u.link)
    }

    /// Starts a test of a tunnel that is due and has peers. Only one test runs at a time.
    pub(super) fn try_tunnels(&mut self) {
        if self.config.cluster.tunnel_checksum != TunnelChecksum::Auto || self.known.trials.running.is_some()
        {
            return;
        }
        // Called with every change, so it must not walk over all nodes.
        let ((needs_v4, needs_v6), tunnels) = (self.known.mesh.tunnels_wanted(), self.known.tunnels);
        let needed = [(true, tunnels.v4.filter(|_| needs_v4)), (false, tunnels.v6.filter(|_| needs_v6))];
        for (v4, tunnel) in needed {
            let (Some(tunnel), Some(interface)) = (tunnel, self.interface(v4)) else { continue };
            let standing = &mut self.known.trials.of[usize::from(v4)];
            if standing.interface != Some(interface) {
                *standing = TrialState { interface: Some(interface), ..TrialState::default() };
            }
            if !standing.is_due() || !standing.uses_interface_checksums(tunnel) {
                continue;
            }
            let turn = standing.turns;
            let Some((with, addresses)) = self.peer_behind(tunnel, turn) else { continue };
            self.known.trials.of[usize::from(v4)].turns += 1;
            debug!(peer = %with, "testing checksums of a tunnel");
            return self.begin((v4, interface, TrialKind::Trial), with, addresses);
        }
    }

    fn begin(&mut self, about: (bool, u32, TrialKind), with: NodeName, addresses: Vec<IpAddr>) {
        let (v4, interface, kind) = about;
        let Some(name) = self.tunnel_name(v4) else { return };
        let rest = match kind {
            TrialKind::Trial => Duration::ZERO,
            TrialKind::Proof => trial::REST,
        };
        match trial::start(name, addresses.clone(), rest, self.queue.waker.clone()) {
            Ok(verdict) => {
                self.known.trials.running = Some(Running { v4, interface, kind, with, addresses, verdict });
            }
            Err(error) => warn!(%error, "cannot start a thread that tests checksums of a tunnel"),
        }
    }

    /// Another peer each time, beginning with the next one by name, so that not all nodes select the same peer.
    fn peer_behind(&self, tunnel: u32, turn: usize) -> Option<(NodeName, Vec<IpAddr>)> {
        let is_behind = |path: &PeerPath| matches!(path, PeerPath::Vxlan { link, .. } if *link == tunnel);
        let paths = || self.known.mesh.paths().filter(|(_, _, path)| is_behind(path));
        let mut names: Vec<&NodeName> = paths().map(|(name, _, _)| name).collect();
        names.dedup();
        let next = names.partition_point(|name| **name <= self.record.name).wrapping_add(turn);
        let with = *names.get(next.checked_rem(names.len())?)?;
        let blocks: Vec<IpNet> =
            paths().filter(|(name, _, _)| *name == with).map(|(_, block, _)| block).collect();
        // The node's address, not one of a pod.
        let one =
            |v4: bool| blocks.iter().find(|block| block.addr().is_ipv4() == v4).and_then(ipam::block_gateway);
        Some((with.clone(), [one(true), one(false)].into_iter().flatten().collect()))
    }

    pub(super) fn tried(&mut self, verdict: TrialVerdict) {
        let Some(running) = self.known.trials.running.take() else { return };
        let Running { v4, interface, kind, with, addresses, .. } = running;
        if kind == TrialKind::Proof {
            return log_proof(verdict, &with);
        }
        let standing = &mut self.known.trials.of[usize::from(v4)];
        if standing.interface != Some(interface) {
            return;
        }
        let now = Instant::now();
        match verdict {
            TrialVerdict::Sound => {
                if standing.finding != Some(TrialFinding::Sound) {
                    info!("checksums of what {with} gets through the tunnel are right");
                }
                (standing.finding, standing.fruitless) = (Some(TrialFinding::Sound), 0);
                standing.again_at = Some(now + STILL_SOUND);
            }
            TrialVerdict::Unclear => {
                debug!(peer = %with, "no reply to the test of checksums");
                let at = now + standing.pause();
                standing.again_at = Some(at);
                standing.fruitless += 1;
                self.known.compare_at = self.known.compare_at.min(at);
            }
            TrialVerdict::Broken => {
                let name = self.tunnel_name(v4).map(|name| name.to_string()).unwrap_or_default();
                warn!(
                    "what {with} gets through the tunnel has wrong checksums when this node's interface makes them: from now on \
                     the kernel does. To have it tried again: stop the agent, ip link del {name}, start the agent"
                );
                self.known.trials.of[usize::from(v4)].finding = Some(TrialFinding::Broken);
                self.keep_tunnels();
                self.begin((v4, interface, TrialKind::Proof), with, addresses);
            }
        }
    }
}

impl TrialState {
    /// If the kernel computes checksums, that stays so, but the operator may change it.
    fn uses_interface_checksums(&mut self, tunnel: u32) -> bool {
        match Ethtool::open().and_then(|mut ethtool| ethtool.tx_checksum(tunnel)) {
            Ok(true) => true,
            Ok(false) => {
                if self.finding != Some(TrialFinding::SwitchedOff) {
                    info!(
                        "checksums of what goes through the tunnel are made by the kernel already, and that stays so"
                    );
                }
                self.finding = Some(TrialFinding::SwitchedOff);
                self.again_at = Some(Instant::now() + STILL_SOUND);
                false
            }
            // The device may have been removed. It is created again.
            Err(error) => {
                debug!(%error, "cannot read the checksum setting of a tunnel");
                self.again_at = Some(Instant::now() + PAUSE);
                false
            }
        }
    }
}

fn log_proof(verdict: TrialVerdict, with: &NodeName) {
    match verdict {
        TrialVerdict::Sound => {
            info!("with checksums by the kernel, what {with} gets through the tunnel is right");
        }
        TrialVerdict::Broken | TrialVerdict::Unclear => {
            warn!("also with checksums by the kernel, {with} does not answer through the tunnel");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_without_a_result_and_a_fault_ends_the_tests() {
        let pause = |fruitless| TrialState { fruitless, ..TrialState::default() }.pause().as_secs();
        assert_eq!([0, 1, 3, 4, 99].map(pause), [5, 10, 40, 60, 60]);
        let due = |finding| TrialState { finding, ..TrialState::default() }.is_due();
        assert!(due(None) && due(Some(TrialFinding::Sound)) && due(Some(TrialFinding::SwitchedOff)));
        assert!(!due(Some(TrialFinding::Broken)));
        let later = TrialState { again_at: Some(Instant::now() + STILL_SOUND), ..TrialState::default() };
        assert!(!later.is_due());
    }
}
