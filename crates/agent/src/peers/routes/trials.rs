//! When tunnels are tried out, and with whom; see `trial`.

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

/// After a trial that told nothing another one waits so long, then twice as long, and so on.
const PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A node behind another card may tell otherwise, and what is below an interface may change without a word.
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
    /// So many trials there were: each is with another node.
    turns: usize,
    /// So many of the last ones told nothing.
    fruitless: u32,
    again_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrialFinding {
    Sound,
    /// Found out by this agent.
    Broken,
    /// The kernel made checksums already: an earlier agent or a person wants it so.
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
    /// Whether it has helped that the kernel makes checksums.
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
    /// Whether checksums of what is sent through a tunnel are left to the interface. None: as it is. A device that is new leaves
    /// them to it; one that does not was told so, by an agent that knew why or by a person.
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

    /// Begins with a tunnel whose turn it is and behind which there is somebody; one at a time.
    pub(super) fn try_tunnels(&mut self) {
        if self.config.cluster.tunnel_checksum != TunnelChecksum::Auto || self.known.trials.running.is_some()
        {
            return;
        }
        // With every change: whether anybody is behind a tunnel must not cost a pass over all nodes.
        let ((needs_v4, needs_v6), tunnels) = (self.known.mesh.tunnels_wanted(), self.known.tunnels);
        let needed = [(true, tunnels.v4.filter(|_| needs_v4)), (false, tunnels.v6.filter(|_| needs_v6))];
        for (v4, tunnel) in needed {
            let (Some(tunnel), Some(interface)) = (tunnel, self.interface(v4)) else { continue };
            let standing = &mut self.known.trials.of[usize::from(v4)];
            if standing.interface != Some(interface) {
                *standing = TrialState { interface: Some(interface), ..TrialState::default() };
            }
            if !standing.is_due() || !standing.leaves_it_to_the_card(tunnel) {
                continue;
            }
            let turn = standing.turns;
            let Some((with, addresses)) = self.somebody_behind(tunnel, turn) else { continue };
            self.known.trials.of[usize::from(v4)].turns += 1;
            debug!("tries out with {with} whether checksums arrive right");
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

    /// Another one each time, beginning with the next by name: not the same one for all nodes.
    fn somebody_behind(&self, tunnel: u32, turn: usize) -> Option<(NodeName, Vec<IpAddr>)> {
        let is_behind = |path: &PeerPath| matches!(path, PeerPath::Vxlan { link, .. } if *link == tunnel);
        let paths = || self.known.mesh.paths().filter(|(_, _, path)| is_behind(path));
        let mut names: Vec<&NodeName> = paths().map(|(name, _, _)| name).collect();
        names.dedup();
        let next = names.partition_point(|name| **name <= self.record.name).wrapping_add(turn);
        let with = *names.get(next.checked_rem(names.len())?)?;
        let blocks: Vec<IpNet> =
            paths().filter(|(name, _, _)| *name == with).map(|(_, block, _)| block).collect();
        // Not a pod's, but the node's own.
        let one =
            |v4: bool| blocks.iter().find(|block| block.addr().is_ipv4() == v4).and_then(ipam::block_gateway);
        Some((with.clone(), [one(true), one(false)].into_iter().flatten().collect()))
    }

    pub(super) fn tried(&mut self, verdict: TrialVerdict) {
        let Some(running) = self.known.trials.running.take() else { return };
        let Running { v4, interface, kind, with, addresses, .. } = running;
        if kind == TrialKind::Proof {
            return tell_proof(verdict, &with);
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
                debug!("{with} did not answer: nothing is known of checksums");
                let at = now + standing.pause();
                standing.again_at = Some(at);
                standing.fruitless += 1;
                self.known.look_at = self.known.look_at.min(at);
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
    /// One that does not stays as it is, but a person may change it back.
    fn leaves_it_to_the_card(&mut self, tunnel: u32) -> bool {
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
            // It may just have gone, and is looked after.
            Err(error) => {
                debug!("cannot see who makes checksums of the tunnel: {error}");
                self.again_at = Some(Instant::now() + PAUSE);
                false
            }
        }
    }
}

fn tell_proof(verdict: TrialVerdict, with: &NodeName) {
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
    fn trials_that_tell_nothing_become_rare_and_one_that_found_a_fault_is_the_last() {
        let pause = |fruitless| TrialState { fruitless, ..TrialState::default() }.pause().as_secs();
        assert_eq!([0, 1, 3, 4, 99].map(pause), [5, 10, 40, 60, 60]);
        let due = |finding| TrialState { finding, ..TrialState::default() }.is_due();
        assert!(due(None) && due(Some(TrialFinding::Sound)) && due(Some(TrialFinding::SwitchedOff)));
        assert!(!due(Some(TrialFinding::Broken)));
        let later = TrialState { again_at: Some(Instant::now() + STILL_SOUND), ..TrialState::default() };
        assert!(!later.is_due());
    }
}
