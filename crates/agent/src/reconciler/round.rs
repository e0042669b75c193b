//! One round: compares the records with the kernel, repairs drift and reports.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use engine::reconcile::{self, ReconcileOutcome, ReconcileRequest, RepairKind};
use netconf::{NetConf, Network, NodeAllocation};
use tracing::{debug, info};
use types::{Code, Finding, IfName, NetworkRef, Severity};

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

/// During continuous events, the pause between rounds is this many times the duration of the last one.
const PAUSE_FACTOR: u32 = 8;
/// The longest pause: an object that is removed meanwhile is restored within a second.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// With fewer free addresses, another block is requested.
const FEW_FREE: u64 = 32;

impl Reconciler {
    pub(super) fn round(&mut self, due: Due) {
        let started = Instant::now();
        let due = self.limit_unmanaged_checks(due);
        self.parts.agent_status.round_begins();
        self.parts.work.drain_tombstones();
        self.check_overlap(due);
        let config = &self.parts.config;
        let allocation = self.parts.allocations.get();
        let network = self.parts.allocations.default_network();
        // A gateway in a subnet of another program would attract its packets.
        let own = network.as_ref().ok().filter(|_| !self.is_blocked());
        let others: Vec<&NetConf> = allocation
            .iter()
            .flat_map(|all| all.networks())
            .filter(|(id, _)| !id.is_default())
            .map(|(_, network)| network.conf())
            .collect();
        let request = ReconcileRequest {
            run_dir: &config.run_dir,
            network: own.map(|network| (&config.network.name, network.conf())),
            other_networks: &others,
            mode: Some((&config.network.name, config.network.mode)),
            earlier_records: &self.attachments,
            kernel_cache: Some(self.parts.work.kernel_cache()),
            policies: Some(self.parts.work.policies()),
            is_only_agent: || lock::agents_here().is_ok_and(|all| all.len() <= 1),
            warn: log::engine_warning,
        };
        let outcome = reconcile::reconcile(request);
        let took = started.elapsed();
        if due.timer {
            let flows = reconcile::remove_conntrack(&request).map_err(cni::Error::from);
            self.report_step("flows orphaned", "remove connection tracking entries of removed pods", flows);
            let config = &self.parts.config;
            self.parts.agent_status.set(Source::Config, config.exposed_key().into_iter().collect());
        }
        if due.unmanaged {
            self.check_unmanaged();
            self.check_ipam();
            self.unmanaged_checked_at = Some(Instant::now());
        }
        self.parts.metrics.reconciled(took);
        let run_dir = engine::run_dir_findings(&self.parts.config.run_dir);
        self.parts.agent_status.set(Source::RunDir, run_dir);
        match outcome {
            Ok(outcome) => {
                self.finish(outcome, took, allocation.as_deref());
                self.parts.agent_status.set(Source::Round, Vec::new());
                if !self.awaits_install() {
                    self.notify_status();
                }
            }
            Err(error) => {
                let found = reconcile::failure(error, &self.parts.config.run_dir);
                // Under churn the kernel may fail to list its links consistently. Pods can be served anyway.
                let serves = self.was_ready && found.code == Code::ReconcileFailed;
                let found = if serves { found.degraded() } else { found };
                // The other findings of the last round stay, because this round checked nothing.
                self.parts.agent_status.set(Source::Round, vec![found]);
                self.set_started();
                self.retry();
            }
        }
        if due.timer {
            // After the round, which recovers lost records.
            self.parts.inspector.wake();
        }
        memory::release_free_memory();
        self.run.renew();
        self.parts.agent_status.round_ends(self.parts.config.reconcile);
        self.not_before = Instant::now() + (took * PAUSE_FACTOR).min(LONGEST_PAUSE);
    }

    fn finish(
        &mut self,
        outcome: ReconcileOutcome,
        took: Duration,
        allocation: Result<&NodeAllocation, &NoBlock>,
    ) {
        // Objects that an agent without pods creates when it starts are no repairs: they did not exist before.
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
        if outcome.has_locked_records {
            self.retry();
        }
        if outcome.repairs.iter().any(|repair| repair.kind == RepairKind::Link) {
            // A link that was changed on the host may have lost objects inside its pod.
            self.parts.inspector.wake();
        }
        self.attachments = outcome.attachments;
        let inactive = outcome.inactive_ports.iter().map(inactive_port).collect();
        self.parts.agent_status.set_inactive_ports(inactive);
        let findings = self.with_node(outcome.findings);
        let is_served = findings.iter().all(|found| found.severity == Severity::Degraded);
        if !is_served {
            self.retry();
        }
        // Without a block, running pods are repaired. New ones need one.
        let Some((allocation, network)) = allocation.ok().and_then(|all| Some((all, all.default_network()?)))
        else {
            self.report(findings);
            return;
        };
        for (id, network) in allocation.networks() {
            self.request_blocks(id, network);
        }
        self.clamp_tunnels(network);
        self.limit_connections();
        let is_first = is_served && !self.was_ready;
        self.was_ready |= is_served;
        match (is_first, &self.parts.install) {
            (true, None) => announce(self.parts.begun, self.attachments.len()),
            // Earlier rounds failed, or there was no block. To be ready, the files must be installed, too.
            (true, Some(_)) => self.parts.agent_status.set_starting(),
            (false, _) => {}
        }
        self.report(findings);
        if let Some(install) = self.parts.install.as_ref().filter(|_| is_first) {
            install.allow(self.attachments.len());
        }
    }

    /// Whether the first attempt to install the files is not over. The agent is ready after it.
    fn awaits_install(&self) -> bool {
        self.was_ready && self.parts.install.as_ref().is_some_and(|install| !install.was_tried())
    }

    /// If files are to be installed, the installation thread does this after its first attempt.
    fn set_started(&self) {
        if !self.awaits_install() {
            self.parts.agent_status.set_started();
        }
    }

    /// Block and addresses are read here, because they may have changed since the round began.
    fn report(&self, findings: Vec<Finding>) {
        let ReconcilerParts { agent_status, allocations, config, .. } = &self.parts;
        agent_status.set(Source::Reconcile, findings);
        allocations.report_block(agent_status, &config.network.name);
        allocations.report_addresses(agent_status, &config.run_dir, &config.network.name);
        self.set_started();
    }

    /// Adds the findings of the node to those of a round.
    fn with_node(&mut self, mut findings: Vec<Finding>) -> Vec<Finding> {
        let taken = format!("link {}", self.parts.config.network.bridge);
        for found in findings.iter_mut().filter(|it| it.code == Code::BridgeNameTaken && it.object == taken) {
            *found = propose_other_bridge(&self.parts.config, found.clone());
        }
        let lacks_bridge = |found: &Finding| {
            found.severity == Severity::NotReady
                && matches!(found.code, Code::BridgeMissing | Code::BridgeNameTaken)
        };
        if findings.iter().any(lacks_bridge) {
            // Another process may have removed the bridge, or the kernel is busy. The agent stays ready if this lasts only
            // a short time.
            let since = *self.bridge_missing_since.get_or_insert_with(Instant::now);
            if self.was_ready && since.elapsed() < RETRY {
                self.retry();
                findings = findings
                    .into_iter()
                    .map(|it| if lacks_bridge(&it) { it.degraded() } else { it })
                    .collect();
            }
        } else {
            self.bridge_missing_since = None;
        }
        if let Some(missing) = nft::check_program().err().and_then(|error| error.missing_program()) {
            // Parts of the round that failed for this reason repeat its message.
            findings.retain(|finding| finding.code != missing.code);
            findings.push(missing);
        }
        findings.extend(self.overlaps.iter().cloned());
        findings
    }

    fn retry(&mut self) {
        let retry = Due { at: Instant::now() + RETRY, unmanaged: false, timer: false };
        self.due.get_or_insert(retry);
    }

    /// Notifies the service manager, which waits for `READY=1`. It is sent after the first round even if there is no block yet.
    /// So units that wait for the agent start, and a node that boots without its store is not restarted again and again.
    fn notify_status(&mut self) {
        let readiness = self.parts.agent_status.readiness();
        let status = match readiness.conditions.first() {
            None => "STATUS=ready".to_owned(),
            Some(found) => format!("STATUS=not ready: {}: {}", found.code, found.message),
        };
        if self.notified_status.as_ref() != Some(&status) {
            notify::notify(&format!("READY=1\n{status}"));
            self.notified_status = Some(status);
        }
    }

    /// Clamps the MSS of connections through tunnels that have a smaller MTU than the pods' links. Repeated in each round, because
    /// another process may have flushed the table.
    fn clamp_tunnels(&mut self, network: &Network) {
        let tunnels = self.parts.tunnels.get();
        if tunnels.is_empty() && self.clamped.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        // Pods keep the MTU of their ADD. Without a configured MTU, new pods get that of the bridge.
        let of_new_pods = network.mtu().unwrap_or(u32::MAX);
        let largest = self.attachments.iter().map(|pod| pod.mtu).fold(of_new_pods, u32::max);
        let (small, large): (Vec<TunnelSize>, Vec<TunnelSize>) =
            tunnels.into_iter().partition(|tunnel| tunnel.mtu < largest);
        let wanted: Vec<IfName> = small.into_iter().map(|tunnel| tunnel.name).collect();
        let network = &self.parts.config.network.name;
        let done = nft::Firewall::open().and_then(|mut firewall| firewall.clamp(network, &wanted));
        let operation = "clamp the MSS of connections through tunnels";
        if let Some(done) = self.report_step("chain clamp", operation, done) {
            done.iter().for_each(|what| info!("{what}"));
            self.clamped = Some(wanted);
        }
        let fitting = large.iter().map(|tunnel| tunnel.mtu).min().unwrap_or(u32::MAX);
        if self.parts.allocations.set_largest_mtu(fitting) {
            self.schedule_round(false);
        }
    }

    /// Applies the connection limit. The first round removes a limit that is no longer configured.
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
        if let Some(changed) = self.report_step(&object, "limit the connections of pods", changed) {
            changed.iter().for_each(|what| info!("{what}"));
            self.is_unlimited = is_unlimited;
        }
    }

    /// Requests another block before one is full, so that no pod has to wait for it.
    fn request_blocks(&self, id: &NetworkRef, network: &Network) {
        let used: Vec<IpAddr> =
            self.attachments.iter().flat_map(|a| &a.addresses).map(|a| a.address.addr()).collect();
        for family in family_blocks(network) {
            let taken = used.iter().filter(|ip| family.has(**ip)).count() as u64;
            if family.capacity.saturating_sub(taken) < FEW_FREE.min(family.capacity / 4) {
                self.parts.blocks.want_more(id, family.blocks[0]);
            }
        }
    }
}

/// Proposes another bridge name if the link may be in use, for example as the uplink of the node.
pub(crate) fn propose_other_bridge(config: &Config, found: Finding) -> Finding {
    let name = if config.network.bridge.as_str() == "podwire0" { "podwire1" } else { "podwire0" };
    match &found.fix {
        Some(_) => found,
        None => config.propose(found, "network.bridge", name),
    }
}

/// Whether such objects exist on a node without pods, too.
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
