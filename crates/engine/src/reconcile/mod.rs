//! Reconcile compares the records with the kernel. It restores removed objects, collects dead attachments, and reports each
//! change.
//!
//! ```text
//! records ───────┐
//! ObservedHost ──┴► diff (pure) ─► per attachment, with its record locked: repair, or collect without a namespace
//! node: bridges with gateways, forwarding     firewall: structure, then pods     orphan links: links without a record
//! ```
//!
//! The agent calls it at its start, on events and on a timer. A round without drift changes nothing and takes no locks. The
//! host is observed without locks. Detected drift is checked again with the record locked.

mod diff;
mod dscp;
mod firewall;
mod gateways;
mod inspect;
mod node;
mod observe;
mod orphan_links;
mod pod;
mod pod_drift;
mod repair;
pub(crate) mod subnet;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use netconf::{Addresses, NetConf};
use netlink::{Link, RtSocket};
use types::{AttachMode, AttachmentKey, Code, Finding, IfName, NetworkName};

use crate::condition::FailureContext;
use crate::delegate::NONE_ALLOWED;
use crate::policy::PodPolicies;
use crate::state::{
    Attachment, HeldAttachment, ListedRecord, NetworkState, NodeState, RecordPhase, StateError,
};
use crate::{Caller, Delegates, Error, InactivePortMapping, KernelCache, Wait, inactive_ports, recover};
use crate::{detach, gc, mode};
use node::BridgeChange;
use observe::ObservedHost;
pub(crate) use pod::{Restore, pod_finding};
pub(crate) use pod_drift::repair_routes;

/// Part of messages about attachments with addresses of a delegated IPAM plugin.
const RELEASE_LATER: &str = "the next DEL or GC releases its addresses in the IPAM plugin";

/// The inputs of a round.
#[derive(Debug, Clone, Copy)]
pub struct ReconcileRequest<'a> {
    pub run_dir: &'a Path,
    /// The agent's network. Its bridge exists also without pods.
    pub network: Option<(&'a NetworkName, &'a NetConf)>,
    /// Further networks of the agent, with the same CNI network name and bridge.
    pub other_networks: &'a [&'a NetConf],
    /// The mode of new pods in the agent's network, also while it has no block. None without an agent.
    pub mode: Option<(&'a NetworkName, AttachMode)>,
    /// The attachments of the last round. They replace lost or corrupt records.
    pub earlier_records: &'a [Attachment],
    pub kernel_cache: Option<&'a KernelCache>,
    /// See [`Caller::policies`].
    pub policies: Option<&'a dyn PodPolicies>,
    /// Whether no other agent runs in this network namespace. Gateways of another agent without pods may be on the same
    /// bridge.
    pub is_only_agent: fn() -> bool,
    /// See [`Caller::warn`].
    pub warn: fn(&str),
}

impl ReconcileRequest<'_> {
    fn caller(&self) -> Caller<'_> {
        Caller {
            request: None,
            cancelled: &|| false,
            wait: Wait::UntilLinkRemoved,
            kernel_cache: self.kernel_cache,
            // It undoes recorded attachments and runs no plugin.
            delegates: Delegates::Allowed(&NONE_ALLOWED),
            networks: None,
            policies: self.policies,
            warn: &self.warn,
        }
    }
}

/// The kind of a repaired object, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RepairKind {
    /// An interrupted attachment was undone.
    Pending,
    /// An attachment without a namespace was removed.
    Collected,
    Link,
    Bridge,
    Address,
    Route,
    Neighbour,
    Firewall,
    Shaping,
    Sysctl,
    /// A managed link without a record was removed.
    OrphanLink,
    /// A record was rewritten.
    Record,
}

impl RepairKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "interrupted_attachment",
            Self::Collected => "dead_attachment",
            Self::Link => "link",
            Self::Bridge => "bridge",
            Self::Address => "address",
            Self::Route => "route",
            Self::Neighbour => "neighbour",
            Self::Firewall => "firewall",
            Self::Shaping => "shaping",
            Self::Sysctl => "sysctl",
            Self::OrphanLink => "stray_link",
            Self::Record => "record",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoneRepair {
    pub kind: RepairKind,
    pub message: String,
}

/// The result of a round.
#[derive(Debug, Default)]
pub struct ReconcileOutcome {
    pub repairs: Vec<DoneRepair>,
    /// Drift that could not be repaired.
    pub findings: Vec<Finding>,
    /// Drift was found of an attachment whose record another thread or process had locked or changed. A retry is needed.
    pub has_locked_records: bool,
    /// The records of all attachments that are ready now.
    pub attachments: Vec<Attachment>,
    /// Host ports on addresses that the node does not have.
    pub inactive_ports: Vec<InactivePortMapping>,
}

/// State of one round.
struct ReconcileRound<'a> {
    request: ReconcileRequest<'a>,
    state: NodeState,
    host: RtSocket,
    outcome: ReconcileOutcome,
    /// Bridges that were created or set up in this round.
    changed_bridges: Vec<(IfName, BridgeChange)>,
}

/// Compares and repairs. Returns an error only if nothing could be compared. A failed repair of one object becomes a
/// [`Finding`], and the other objects are repaired.
pub fn reconcile(request: ReconcileRequest<'_>) -> Result<ReconcileOutcome, Error> {
    let mut round = ReconcileRound::new(request, NodeState::open(request.run_dir)?)?;
    round.recover()?;
    let records = round.records()?;
    round.reconcile_node(&records);
    let observed = ObservedHost::of(&mut round.host)?;
    for (network, listed) in &records {
        for record in listed {
            round.record(network, record, &observed);
        }
    }
    round.wait_for_changed_bridges();
    round.orphan_links(&observed);
    for (network, _) in &records {
        round.orphan_claims(network, &observed);
    }
    round.firewall();
    round.dscp();
    round.modes();
    match inactive_ports(&round.outcome.attachments, &mut round.host) {
        Ok(inactive) => round.outcome.inactive_ports = inactive,
        Err(error) => round.report_failure("host ports", error),
    }
    Ok(round.outcome)
}

/// Compares the bandwidth limits of every attached pod with its record and its profile. Then enters its namespace and compares its
/// addresses, routes and neighbours with the record. Repairs all of them. A namespace may take long, so the agent does this on a thread that no other work waits for. Lost records
/// are recovered by [`reconcile`]. If `is_cancelled` returns true, the remaining pods are not inspected.
pub fn inspect_pods(
    request: ReconcileRequest<'_>,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<ReconcileOutcome, Error> {
    let mut round = ReconcileRound::new(request, NodeState::open(request.run_dir)?)?;
    let links = round.host.links()?;
    let records = round.records()?;
    let mut pods: Vec<(&NetworkState, &Attachment)> = Vec::new();
    for (network, listed) in &records {
        let ready = listed.iter().filter(|record| record.phase == RecordPhase::Ready);
        pods.extend(ready.filter_map(|record| Some((network, record.attachment.as_ref()?))));
    }
    round.limits(&pods, &links);
    for (network, attachment) in pods {
        if is_cancelled() {
            return Ok(round.outcome);
        }
        round.inspect(network, attachment, &links);
    }
    if is_cancelled() {
        return Ok(round.outcome);
    }
    if let Err(error) = round.remove_orphaned_bindings() {
        round.report_failure("tables podwire", error);
    }
    Ok(round.outcome)
}

/// Sets bridges of running pods up and restores their gateways and routes, like a round of the agent. A missing bridge is not
/// created, because its pods have to be restarted. `only` limits this to the bridges of one network's pods.
pub fn restore_bridges(run_dir: &Path, only: Option<&NetworkName>) -> Result<(), Error> {
    let Some(state) = NodeState::open_existing(run_dir)? else { return Ok(()) };
    let request = ReconcileRequest {
        run_dir,
        network: None,
        other_networks: &[],
        mode: None,
        earlier_records: &[],
        kernel_cache: None,
        policies: None,
        is_only_agent: || false,
        // Only undoing an attachment warns, and this function does not do that.
        warn: |_| (),
    };
    ReconcileRound::new(request, state)?.restore_existing_bridges(only)
}

/// The condition of a round that failed completely. Without records no pod can be served.
pub fn failure(error: Error, run_dir: &Path) -> Finding {
    let directory = format!("directory {}", run_dir.display());
    let (code, object) = match &error {
        Error::State(StateError::Busy { .. }) => (Code::ReconcileFailed, "records"),
        Error::State(_) => (Code::RunDirUnusable, directory.as_str()),
        _ => (Code::ReconcileFailed, "kernel"),
    };
    error.finding(&FailureContext { code, object, run_dir })
}

/// Describes drift inside a pod's namespace.
pub(crate) fn pod_faults(attachment: &Attachment) -> Result<Vec<String>, Error> {
    Ok(pod_drift::faults(attachment)?.iter().map(ToString::to_string).collect())
}

/// Whether the recorded namespace of a pod exists.
pub(crate) fn is_alive(attachment: &Attachment) -> Result<bool, Error> {
    Ok(pod_drift::open(attachment)?.is_some())
}

/// Removes conntrack entries of removed pods from the kernel: all at once, and not while an ADD waits.
pub fn remove_conntrack(request: &ReconcileRequest<'_>) -> Result<(), Error> {
    let Some((name, conf)) = request.network else { return Ok(()) };
    let network = NodeState::open_existing(request.run_dir)?.and_then(|state| state.existing_network(name));
    let Some(network) = network else { return Ok(()) };
    for conf in request.other_networks.iter().chain([&conf]) {
        if let Addresses::Own(pools) = &conf.addresses {
            network.clean_quarantined(pools, &crate::firewall::remove_conntrack)?;
        }
    }
    Ok(())
}

impl<'a> ReconcileRound<'a> {
    fn new(request: ReconcileRequest<'a>, state: NodeState) -> Result<Self, Error> {
        let (host, outcome) = (RtSocket::open()?, ReconcileOutcome::default());
        Ok(Self { request, state, host, outcome, changed_bridges: Vec::new() })
    }
}

impl ReconcileRound<'_> {
    fn repaired(&mut self, kind: RepairKind, message: impl fmt::Display) {
        self.outcome.repairs.push(DoneRepair { kind, message: message.to_string() });
    }

    /// Reports an object that could not be repaired. New pods are not affected.
    fn report_failure(&mut self, object: impl fmt::Display, error: impl Into<Error>) {
        let finding = self.finding(object, error.into());
        self.outcome.findings.push(finding.degraded());
    }

    fn finding(&self, object: impl fmt::Display, error: Error) -> Finding {
        let object = object.to_string();
        error.finding(&FailureContext {
            code: Code::RepairFailed,
            object: &object,
            run_dir: self.request.run_dir,
        })
    }

    /// Without the bridge of the agent's network, new pods fail. If the link cannot be read, the bridge counts as existing.
    fn report_bridge_failure(&mut self, name: &IfName, error: Error) {
        let finding = self.finding(format_args!("bridge {name}"), error);
        let is_bridge = |link: Option<Link>| link.is_some_and(|it| it.kind.as_deref() == Some("bridge"));
        let exists = self.host.link(name).map_or(true, is_bridge);
        let is_own = self.request.network.is_some_and(|(_, conf)| conf.bridge == *name);
        let finding = match finding.code {
            Code::RepairFailed if !exists => {
                Finding::new(Code::BridgeMissing, finding.object, finding.message)
            }
            _ => finding,
        };
        self.outcome.findings.push(if is_own && !exists { finding } else { finding.degraded() });
    }

    /// Recovers lost state of networks from their links, before an ADD could assign an address twice. Only networks of earlier
    /// rounds are recovered, because others belong to other run directories.
    fn recover(&mut self) -> Result<(), Error> {
        let own = self.request.network;
        let earlier = self
            .request
            .earlier_records
            .iter()
            .map(|a| &a.key.network)
            .filter(|name| own.is_none_or(|(own, _)| own != *name));
        let mut names: Vec<(&NetworkName, Option<&NetConf>)> = earlier.map(|name| (name, None)).collect();
        names.sort_by(|a, b| a.0.cmp(b.0));
        names.dedup_by(|a, b| a.0 == b.0);
        names.extend(own.map(|(name, conf)| (name, Some(conf))));
        for (name, conf) in names {
            if self.state.existing_network(name).is_some() {
                continue;
            }
            let others = if conf.is_some() { self.request.other_networks } else { &[] };
            let hints = recover::Hints { conf, others, earlier_records: self.request.earlier_records };
            let count = recover::network_with(&self.state, name, hints)?.list()?.len();
            if count > 0 {
                let attachments = types::count(count as u64, "attachment");
                self.repaired(
                    RepairKind::Record,
                    format_args!("recovered {attachments} of {name} from links"),
                );
            }
        }
        Ok(())
    }

    /// Reports networks with pods in another mode than new pods get.
    fn modes(&mut self) {
        let mut networks: BTreeMap<&NetworkName, Vec<&Attachment>> = BTreeMap::new();
        for attachment in &self.outcome.attachments {
            networks.entry(&attachment.key.network).or_default().push(attachment);
        }
        let configured =
            |name: &NetworkName| self.request.mode.filter(|(own, _)| *own == name).map(|(_, mode)| mode);
        let findings: Vec<Finding> = networks
            .into_iter()
            .filter_map(|(name, pods)| mode::mixed_modes(name, configured(name), &pods))
            .collect();
        self.outcome.findings.extend(findings);
    }

    fn records(&mut self) -> Result<Vec<(NetworkState, Vec<ListedRecord>)>, Error> {
        let mut records = Vec::new();
        for network in self.state.networks()? {
            let listed = network.list()?;
            records.push((network, listed));
        }
        Ok(records)
    }

    fn record(&mut self, network: &NetworkState, listed: &ListedRecord, observed: &ObservedHost) {
        let outcome = match (&listed.attachment, listed.phase) {
            (_, RecordPhase::Pending) => self.undo_pending(network, listed, observed),
            (Some(attachment), RecordPhase::Ready) => {
                let verdict = self.attachment(network, attachment, observed);
                // An attachment that could not be repaired exists too, and needs its firewall elements.
                if !matches!(verdict, Ok(AttachmentVerdict::Gone)) {
                    self.outcome.attachments.push(attachment.clone());
                }
                verdict.map(drop)
            }
            (None, RecordPhase::Ready) => self.unreadable(network, listed, observed),
        };
        if let Err(error) = outcome {
            let key = listed.stem.replacen('@', "/", 1);
            self.report_failure(format_args!("attachment {}/{key}", network.name()), error);
        }
    }

    /// A pending record without a lock was left by a killed process. If a delegated IPAM plugin assigned the addresses, the
    /// record stays until DEL, GC or the next ADD calls that plugin.
    fn undo_pending(
        &mut self,
        network: &NetworkState,
        listed: &ListedRecord,
        observed: &ObservedHost,
    ) -> Result<(), Error> {
        let is_in_kernel =
            |a: &Attachment| !a.needs_only_ipam_del() || observed.links.contains_key(a.host_link.as_str());
        if !listed.attachment.as_ref().is_none_or(is_in_kernel) {
            return Ok(());
        }
        let Some(mut held) =
            network.find_idle(&listed.stem)?.filter(|held| held.phase() == RecordPhase::Pending)
        else {
            return Ok(());
        };
        let name = format!("{}/{}", network.name(), listed.stem);
        if held.attachment().is_some_and(|attachment| attachment.delegated) {
            let key = held.key();
            detach::undo_keeping_record(&mut held, key.as_ref(), &self.request.caller())?;
            self.repaired(
                RepairKind::Pending,
                format_args!("removed interrupted attachment {name} from the kernel; {RELEASE_LATER}"),
            );
        } else {
            gc::undo_held(held, &self.request.caller())?;
            self.repaired(RepairKind::Pending, format_args!("undid interrupted attachment {name}"));
        }
        Ok(())
    }

    /// A corrupt record is rewritten from the last round's record or from its link. A record with a newer schema is not changed:
    /// its pod keeps its addresses and its firewall elements. A record without either source stays and keeps its addresses.
    fn unreadable(
        &mut self,
        network: &NetworkState,
        listed: &ListedRecord,
        observed: &ObservedHost,
    ) -> Result<(), Error> {
        let earlier = self.request.earlier_records.iter().find(|a| {
            AttachmentKey::network_dir(&a.key.network) == network.name() && a.key.file_stem() == listed.stem
        });
        let own = self.request.network.filter(|(name, _)| AttachmentKey::network_dir(name) == network.name());
        let from_link = || {
            let name =
                own.map(|(name, _)| name.clone()).or_else(|| network.name().as_str().try_into().ok())?;
            let link = observed.link_of(&network.name(), &listed.stem)?;
            let others = if own.is_some() { self.request.other_networks } else { &[] };
            let conf = own.map(|(_, conf)| conf);
            recover::attachment_of(&name, link, recover::Hints { conf, others, earlier_records: &[] })
        };
        let record = network.path_of(&listed.stem);
        let recovered = match listed.newer {
            // The newer version may have attached the pod again, with other addresses.
            Some(_) => from_link().or_else(|| earlier.cloned()),
            None => earlier.cloned().or_else(from_link),
        };
        let Some(attachment) = recovered else { return Err(Error::Unreadable { record }) };
        let is_same = |held: &HeldAttachment| held.attachment().is_none() && held.newer() == listed.newer;
        let Some(mut held) = network.find_idle(&listed.stem)?.filter(is_same) else { return Ok(()) };
        if listed.newer.is_none() {
            held.rewrite(attachment.clone())?;
            self.repaired(
                RepairKind::Record,
                format_args!("rewrote the corrupt record of attachment {}", attachment.key),
            );
        }
        let claimed = match attachment.delegated {
            true => Ok(()),
            false => self.restore_claims(network, &held, &attachment),
        };
        self.outcome.attachments.push(attachment);
        match listed.newer {
            Some(schema) => claimed.and(Err(Error::NewerRecord { record, schema })),
            None => claimed,
        }
    }

    /// Removes claims without a record, and the firewall elements of their addresses.
    fn orphan_claims(&mut self, network: &NetworkState, observed: &ObservedHost) {
        let freed = network.has_orphans().map_err(Error::from).and_then(|has_orphans| match has_orphans {
            true => gc::free_orphans(network, observed.links.values()),
            false => Ok(0),
        });
        match freed {
            Ok(0) => {}
            Ok(count) => {
                let claims = types::count(count as u64, "claim");
                self.repaired(
                    RepairKind::Record,
                    format_args!("removed {claims} without a record of {}", network.name()),
                );
            }
            Err(error) => self.report_failure(format_args!("network {}", network.name()), error),
        }
    }
}

/// The state of an attachment after it was reconciled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttachmentVerdict {
    Present,
    /// Its namespace does not exist, or another process is working on it.
    Gone,
}
