//! One round: everything is compared and put right, and told.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use engine::reconcile::{self, Depth, ReconcileOutcome, ReconcileRequest, RepairKind};
use netconf::Network;
use tracing::{debug, info};
use types::{Code, Finding, IfName, Severity};

use super::{Due, RETRY, Reconciler, ReconcilerParts};
use crate::allocation::{NoBlock, TunnelSize, family_blocks};
use crate::attachments::inactive_port;
use crate::conditions::Source;
use crate::installation::announce;
use crate::lock;
use crate::log;
use crate::memory;
use crate::notify;
use config::Config;

/// While events of the node keep coming, rounds have pauses between them of so many times what the last one took.
const SHARE: u32 = 8;
/// But whatever rounds take, what is removed meanwhile is back within a second.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// So few free addresses are a reason to ask for another block.
const FEW: u64 = 32;

impl Reconciler {
    pub(super) fn round(&mut self, due: Due) {
        let started = Instant::now();
        let due = self.spaced(due);
        self.parts.agent_status.round_begins();
        self.parts.work.drain_tombstones();
        self.check_overlap(due);
        let config = &self.parts.config;
        let network = self.parts.allocations.default_network();
        // A gateway in a subnet of another program would take packets from it.
        let own = network.as_ref().ok().filter(|_| !self.is_blocked());
        let request = ReconcileRequest {
            run_dir: &config.run_dir,
            network: own.map(|network| (&config.network.name, network.conf())),
            mode: Some((&config.network.name, config.network.mode)),
            depth: due.depth,
            earlier_records: &self.memory,
            unrepaired: &self.unrepaired,
            kernel_cache: Some(self.parts.work.kernel_cache()),
            is_only_agent: || lock::agents_here().is_ok_and(|all| all.len() <= 1),
            warn: log::engine_warning,
        };
        let outcome = reconcile::reconcile(request);
        let took = started.elapsed();
        if due.timer {
            let flows = reconcile::forget_flows(&request).map_err(cni::Error::from);
            self.report_rule("flows orphaned", "remove connection tracking entries of removed pods", flows);
            let config = &self.parts.config;
            self.parts.agent_status.set(Source::Config, config.exposed_key().into_iter().collect());
        }
        if due.unmanaged {
            self.check_unmanaged();
            self.check_ipam();
            self.others_checked = Some(Instant::now());
        }
        if due.depth == Depth::Pods {
            self.report_orphans();
        }
        self.parts.metrics.reconciled(took);
        let run_dir = engine::run_dir_findings(&self.parts.config.run_dir);
        self.parts.agent_status.set(Source::RunDir, run_dir);
        match outcome {
            Ok(outcome) => {
                self.done(outcome, took, network.as_deref());
                self.parts.agent_status.set(Source::Round, Vec::new());
                if !self.awaits_install() {
                    self.notify_status();
                }
            }
            Err(error) => {
                let found = reconcile::failure(error, &self.parts.config.run_dir);
                // Under churn the kernel may not manage to list its links in one go. Pods can be served all the same.
                let serves = self.was_ready && found.code == Code::ReconcileFailed;
                let found = if serves { found.degraded() } else { found };
                // What the last round found lasts: this one found out nothing about it.
                self.parts.agent_status.set(Source::Round, vec![found]);
                self.set_started();
                self.again();
            }
        }
        memory::release_free_memory();
        self.run.renew();
        self.parts.agent_status.round_ends(self.parts.config.reconcile);
        self.not_before = Instant::now() + (took * SHARE).min(LONGEST_PAUSE);
    }

    fn done(&mut self, outcome: ReconcileOutcome, took: Duration, network: Result<&Network, &NoBlock>) {
        // What an agent without pods makes when it starts is no repair: nobody had it yet.
        let is_fresh = !self.was_ready && outcome.attachments.is_empty();
        let mut repairs = Vec::new();
        for repair in &outcome.repairs {
            if is_fresh && is_of_node(repair.kind) {
                info!(kind = repair.kind.as_str(), "{}", repair.message);
                continue;
            }
            info!(kind = repair.kind.as_str(), "repaired: {}", repair.message);
            self.parts.metrics.repaired(repair.kind.as_str(), 1);
            repairs.push(repair.message.clone());
        }
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.parts.agent_status.reconciled(took_ms, &repairs);
        debug!("reconciled {} attachments in {took_ms} ms", outcome.attachments.len());
        self.memory = outcome.attachments;
        if let Some(found) = outcome.pods {
            self.parts.agent_status.set(Source::Pods, found);
        }
        let inactive = outcome.inactive_ports.iter().map(inactive_port).collect();
        self.parts.agent_status.set_inactive_ports(inactive);
        let mut findings = outcome.findings;
        findings.extend(outcome.unrepaired.iter().map(|one| one.finding.clone()));
        self.unrepaired = outcome.unrepaired;
        let findings = self.with_node(findings);
        let is_served = findings.iter().all(|found| found.severity == Severity::Degraded);
        if !is_served {
            self.again();
        }
        let network = match network {
            Ok(network) => network,
            // Pods that run are looked after; new ones need a block.
            Err(_) => {
                self.report(findings);
                return;
            }
        };
        self.grow(network);
        self.clamp_tunnels(network);
        self.limit_connections();
        let is_first = is_served && !self.was_ready;
        self.was_ready |= is_served;
        match (is_first, &self.parts.install) {
            (true, None) => announce(self.parts.begun, self.memory.len()),
            // Earlier rounds failed, or there was no block: the end of these conditions is not enough to be ready.
            (true, Some(_)) => self.parts.agent_status.set_starting(),
            (false, _) => {}
        }
        self.report(findings);
        if let Some(install) = self.parts.install.as_ref().filter(|_| is_first) {
            install.allow(self.memory.len());
        }
    }

    /// The first attempt to install the files is not over. Ready means that they are in place.
    fn awaits_install(&self) -> bool {
        self.was_ready && self.parts.install.as_ref().is_some_and(|install| !install.was_tried())
    }

    /// The installation thread does so after its first attempt.
    fn set_started(&self) {
        if !self.awaits_install() {
            self.parts.agent_status.set_started();
        }
    }

    /// Block and addresses are read now: they may have changed since the round began.
    fn report(&self, findings: Vec<Finding>) {
        let ReconcilerParts { agent_status, allocations, config, .. } = &self.parts;
        agent_status.set(Source::Reconcile, findings);
        allocations.report_block(agent_status, &config.network.name);
        allocations.report_addresses(agent_status, &config.run_dir, &config.network.name);
        self.set_started();
    }

    /// The findings of a round with those of the node itself.
    fn with_node(&mut self, mut findings: Vec<Finding>) -> Vec<Finding> {
        let taken = format!("link {}", self.parts.config.network.bridge);
        for found in findings.iter_mut().filter(|it| it.code == Code::BridgeNameTaken && it.object == taken) {
            *found = with_other_bridge(&self.parts.config, found.clone());
        }
        let lacks_bridge = |found: &Finding| {
            found.severity == Severity::NotReady
                && matches!(found.code, Code::BridgeMissing | Code::BridgeNameTaken)
        };
        if findings.iter().any(lacks_bridge) {
            // Another process may just have removed it, or the kernel is busy: a bridge that worked may fail once or twice.
            let since = *self.bridgeless.get_or_insert_with(Instant::now);
            if self.was_ready && since.elapsed() < RETRY {
                self.again();
                findings = findings
                    .into_iter()
                    .map(|it| if lacks_bridge(&it) { it.degraded() } else { it })
                    .collect();
            }
        } else {
            self.bridgeless = None;
        }
        findings.extend(nft::check_program().err().and_then(|error| error.missing_program()));
        findings.extend(self.overlaps.iter().cloned());
        findings
    }

    /// Elements of pods that are gone stay in the firewall until the operator removes them. Those that a running pod should not
    /// have are removed by a round, and reported while it does not succeed.
    fn report_orphans(&mut self) {
        let found = engine::firewall_orphans(&self.parts.config.run_dir).map_err(cni::Error::from);
        if let Some(found) = self.report_rule("elements orphaned", "list orphaned firewall elements", found) {
            self.parts.agent_status.set(Source::Elements, found.into_iter().collect());
        }
    }

    /// Everything is looked at once more, soon.
    fn again(&mut self) {
        let again = Due { at: Instant::now() + RETRY, depth: Depth::Pods, unmanaged: false, timer: false };
        self.due[Depth::Pods as usize].get_or_insert(again);
    }

    /// The service manager waits for this. It comes with the first round also where there is no block yet: what waits for the
    /// agent is held up no longer, and a node that boots without its store is not restarted over and over.
    fn notify_status(&mut self) {
        let readiness = self.parts.agent_status.readiness();
        let status = match readiness.conditions.first() {
            None => "STATUS=ready".to_owned(),
            Some(found) => format!("STATUS=not ready: {}: {}", found.code, found.message),
        };
        if self.reported.as_ref() != Some(&status) {
            notify::notify(&format!("READY=1\n{status}"));
            self.reported = Some(status);
        }
    }

    /// What leaves by a tunnel must fit: where pods' links carry more, the firewall sees to it, and may have been flushed.
    fn clamp_tunnels(&mut self, network: &Network) {
        let tunnels = self.parts.tunnels.get();
        if tunnels.is_empty() && self.clamped.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        // Pods keep the size they were made with. One that is not set is as large as the bridge happens to be.
        let coming = network.mtu().unwrap_or(u32::MAX);
        let largest = self.memory.iter().map(|pod| pod.mtu).fold(coming, u32::max);
        let (small, large): (Vec<TunnelSize>, Vec<TunnelSize>) =
            tunnels.into_iter().partition(|tunnel| tunnel.mtu < largest);
        let wanted: Vec<IfName> = small.into_iter().map(|tunnel| tunnel.name).collect();
        let network = &self.parts.config.network.name;
        let done = nft::Firewall::open().and_then(|mut firewall| firewall.clamp(network, &wanted));
        let operation = "clamp the MSS of connections through tunnels";
        if let Some(done) = self.report_rule("chain clamp", operation, done) {
            done.iter().for_each(|what| info!("{what}"));
            self.clamped = Some(wanted);
        }
        let room = large.iter().map(|tunnel| tunnel.mtu).min().unwrap_or(u32::MAX);
        if self.parts.allocations.set_largest_mtu(room) {
            self.soon(Depth::Node, false);
        }
    }

    /// A limit that was set before and is not any more is removed by the first round.
    fn limit_connections(&mut self) {
        let network = &self.parts.config.network;
        let limit = nft::ConnectionLimit {
            network: &network.name,
            bridge: &network.bridge,
            per_pod: network.connections_per_pod,
        };
        if limit.per_pod.is_none() && self.is_unlimited {
            return;
        }
        let (object, is_unlimited) = (format!("table {}", limit.table()), limit.per_pod.is_none());
        let changed = nft::Firewall::open().and_then(|mut firewall| firewall.limit_connections(&limit));
        if let Some(changed) = self.report_rule(&object, "limit the connections of pods", changed) {
            changed.iter().for_each(|what| info!("{what}"));
            self.is_unlimited = is_unlimited;
        }
    }

    /// Asks for another block before one is full, so that no pod has to wait for it.
    fn grow(&self, network: &Network) {
        let used: Vec<IpAddr> =
            self.memory.iter().flat_map(|a| &a.addresses).map(|a| a.address.addr()).collect();
        for family in family_blocks(network) {
            let taken = used.iter().filter(|ip| family.has(**ip)).count() as u64;
            if family.capacity.saturating_sub(taken) < FEW.min(family.capacity / 4) {
                self.parts.blocks.want_more(family.blocks[0]);
            }
        }
    }
}

/// Proposes another bridge where the link may be in use: the node may be reached by it.
pub(crate) fn with_other_bridge(config: &Config, found: Finding) -> Finding {
    let name = if config.network.bridge.as_str() == "podwire0" { "podwire1" } else { "podwire0" };
    match &found.fix {
        Some(_) => found,
        None => config.propose(found, "network.bridge", name),
    }
}

/// Does it belong to the node, also without any pod?
fn is_of_node(kind: RepairKind) -> bool {
    match kind {
        RepairKind::Bridge | RepairKind::Address | RepairKind::Firewall | RepairKind::Sysctl => true,
        RepairKind::Pending
        | RepairKind::Collected
        | RepairKind::Link
        | RepairKind::Route
        | RepairKind::Neighbour
        | RepairKind::Shaping
        | RepairKind::OrphanLink
        | RepairKind::Record => false,
    }
}
