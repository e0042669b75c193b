//! Reconcile: the records against the kernel. What somebody removed is put back, what nobody has any more is collected,
//! and each of it is told.
//!
//! ```text
//! records ─┐
//! Seen ────┴► diff (pure) ─► per attachment, with its record held: repair, or collect if its namespace is gone
//! node: bridges with their gateways, forwarding        firewall: structure, then pods        strays: links without record
//! ```
//!
//! Called by the agent at its start, on events and on a timer. A round that finds all right changes nothing and locks
//! nothing. The picture is taken without locks; whatever looks wrong in it is looked at again with the record held.

mod diff;
mod firewall;
mod gateways;
mod inside;
mod inspect;
mod node;
mod observe;
mod pod;
mod repair;
mod stray;
pub(crate) mod subnet;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use netconf::{Addresses, NetConf};
use netlink::{Link, RtSocket};
use types::{AttachMode, AttachmentKey, Code, Finding, IfName, NetworkName};

use crate::condition::FailureContext;
use crate::delegate::NONE_ALLOWED;
use crate::state::{
    Attachment, HeldAttachment, ListedRecord, NetworkState, NodeState, RecordPhase, StateError,
};
use crate::{Caller, Delegates, Error, InactivePortMapping, KernelCache, Wait, inactive_ports, relearn};
use crate::{detach, gc, mode};
pub(crate) use inside::mend_routes;
use node::Renewed;
use observe::ObservedHost;
pub(crate) use pod::{Restore, pod_finding};

/// Of an attachment with addresses of another IPAM plugin, for messages.
const TO_THE_PLUGIN: &str = "its addresses go back to the IPAM plugin with the next DEL or GC";

/// What a round is to look at.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    pub run_dir: &'a Path,
    /// The agent's own network: its bridge is there also without pods.
    pub network: Option<(&'a NetworkName, &'a NetConf)>,
    /// The mode of new pods in the agent's network, also while it has no block. None: without an agent.
    pub mode: Option<(&'a NetworkName, AttachMode)>,
    /// What the last round knew: it helps where records were lost or damaged.
    pub memory: &'a [Attachment],
    pub kernel_cache: Option<&'a KernelCache>,
    /// Whether no other agent runs in this network namespace. The gateways of another agent without pods may be on the same
    /// bridge.
    pub is_only_agent: fn() -> bool,
    /// As [`Caller::warn`].
    pub warn: fn(&str),
}

impl Order<'_> {
    fn caller(&self) -> Caller<'_> {
        Caller {
            request: None,
            cancelled: &|| false,
            wait: Wait::UntilGone,
            kernel_cache: self.kernel_cache,
            // It undoes what records say, and runs no plugin.
            delegates: Delegates::Allowed(&NONE_ALLOWED),
            networks: None,
            warn: &self.warn,
        }
    }
}

/// What kind of thing was repaired, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RepairKind {
    /// An attachment that was cut off in the middle was undone.
    Pending,
    /// An attachment whose namespace is gone was taken apart.
    Collected,
    Link,
    Bridge,
    Address,
    Route,
    Neighbour,
    Firewall,
    Shaping,
    Sysctl,
    /// A link of ours that no record knows was removed.
    Stray,
    /// A record was written anew.
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
            Self::Stray => "stray_link",
            Self::Record => "record",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoneRepair {
    pub kind: RepairKind,
    pub what: String,
}

/// What a round did and found.
#[derive(Debug, Default)]
pub struct ReconcileOutcome {
    pub repairs: Vec<DoneRepair>,
    /// Objects that could not be repaired.
    pub findings: Vec<Finding>,
    /// All attachments that are ready now, as they are recorded.
    pub attachments: Vec<Attachment>,
    /// Host ports on addresses that the node does not have.
    pub inactive_ports: Vec<InactivePortMapping>,
}

/// One round, while it runs.
struct ReconcileRound<'a> {
    order: Order<'a>,
    state: NodeState,
    host: RtSocket,
    outcome: ReconcileOutcome,
    /// Bridges that were not in force.
    renewed: Vec<(IfName, Renewed)>,
}

/// Compares and repairs. An error means that nothing could be looked at; what goes wrong with one object is a
/// [`Finding`], and the others are repaired all the same.
pub fn reconcile(order: Order<'_>) -> Result<ReconcileOutcome, Error> {
    let mut round = ReconcileRound::new(order, NodeState::open(order.run_dir)?)?;
    round.relearn()?;
    let records = round.records()?;
    round.node(&records);
    let seen = ObservedHost::of(&mut round.host)?;
    for (network, listed) in &records {
        for record in listed {
            round.record(network, record, &seen);
        }
    }
    round.settle_bridges();
    round.strays(&seen);
    for (network, _) in &records {
        round.orphans(network, &seen);
    }
    round.firewall();
    round.modes();
    match inactive_ports(&round.outcome.attachments, &mut round.host) {
        Ok(inactive) => round.outcome.inactive_ports = inactive,
        Err(error) => round.trouble("host ports", error),
    }
    Ok(round.outcome)
}

/// Enters the namespace of every attached pod, compares its addresses, routes, neighbours and bandwidth limits with the record,
/// and repairs them. A namespace may take long, so the agent does this on a thread that nothing else waits for. Records that
/// were lost are recovered by [`reconcile`].
pub fn inspect_pods(order: Order<'_>) -> Result<ReconcileOutcome, Error> {
    let mut round = ReconcileRound::new(order, NodeState::open(order.run_dir)?)?;
    let links = round.host.links()?;
    for (network, listed) in &round.records()? {
        let ready = listed.iter().filter(|record| record.phase == RecordPhase::Ready);
        for attachment in ready.filter_map(|record| record.attachment.as_ref()) {
            round.inspect(network, attachment, &links);
        }
    }
    if let Err(error) = round.remove_unowned_bindings() {
        round.trouble("tables podwire", error);
    }
    Ok(round.outcome)
}

/// Sets bridges of running pods up and restores their gateways and routes, as a round of the agent does. A bridge that is gone
/// is not made: its pods have to be restarted. `only`: the bridges of this network's pods.
pub fn restore_bridges(run_dir: &Path, only: Option<&NetworkName>) -> Result<(), Error> {
    let Some(state) = NodeState::open_existing(run_dir)? else { return Ok(()) };
    let order = Order {
        run_dir,
        network: None,
        mode: None,
        memory: &[],
        kernel_cache: None,
        is_only_agent: || false,
        // It undoes no attachment, and only that warns.
        warn: |_| (),
    };
    ReconcileRound::new(order, state)?.existing_bridges(only)
}

/// The condition of a round that failed as a whole. Without its records no pod can be served.
pub fn failure(error: Error, run_dir: &Path) -> Finding {
    let directory = format!("directory {}", run_dir.display());
    let (code, object) = match &error {
        Error::State(StateError::Busy { .. }) => (Code::ReconcileFailed, "records"),
        Error::State(_) => (Code::RunDirUnusable, directory.as_str()),
        _ => (Code::ReconcileFailed, "kernel"),
    };
    error.finding(&FailureContext { code, object, run_dir })
}

/// What a pod lacks inside its namespace.
pub(crate) fn inside_faults(attachment: &Attachment) -> Result<Vec<String>, Error> {
    Ok(inside::faults(attachment)?.iter().map(ToString::to_string).collect())
}

/// Whether the recorded namespace of a pod exists.
pub(crate) fn is_alive(attachment: &Attachment) -> Result<bool, Error> {
    Ok(inside::open(attachment)?.is_some())
}

/// Removes from the kernel what is left of flows of pods that are gone: all of them in one go, and not while a pod waits.
pub fn forget_flows(order: &Order<'_>) -> Result<(), Error> {
    let Some((name, conf)) = order.network else { return Ok(()) };
    let network = NodeState::open_existing(order.run_dir)?.and_then(|state| state.existing_network(name));
    match (network, &conf.addresses) {
        (Some(network), Addresses::Own(pools)) => {
            Ok(network.clean_rested(pools, &crate::firewall::forget_flows)?)
        }
        (Some(_) | None, _) => Ok(()),
    }
}

impl<'a> ReconcileRound<'a> {
    fn new(order: Order<'a>, state: NodeState) -> Result<Self, Error> {
        let (host, outcome) = (RtSocket::open()?, ReconcileOutcome::default());
        Ok(Self { order, state, host, outcome, renewed: Vec::new() })
    }
}

impl ReconcileRound<'_> {
    fn repaired(&mut self, kind: RepairKind, what: impl fmt::Display) {
        self.outcome.repairs.push(DoneRepair { kind, what: what.to_string() });
    }

    /// One object could not be repaired. That is no reason to refuse new pods.
    fn trouble(&mut self, object: impl fmt::Display, error: impl Into<Error>) {
        let found = self.finding(object, error.into());
        self.outcome.findings.push(found.degraded());
    }

    fn finding(&self, object: impl fmt::Display, error: Error) -> Finding {
        let object = object.to_string();
        error.finding(&FailureContext {
            code: Code::RepairFailed,
            object: &object,
            run_dir: self.order.run_dir,
        })
    }

    /// New pods need the bridge of the agent's own network. A kernel that cannot be asked for it is no reason to refuse
    /// them.
    fn bridge_trouble(&mut self, name: &IfName, error: Error) {
        let found = self.finding(format_args!("bridge {name}"), error);
        let is_bridge = |link: Option<Link>| link.is_some_and(|it| it.kind.as_deref() == Some("bridge"));
        let is_there = self.host.link(name).map_or(true, is_bridge);
        let is_own = self.order.network.is_some_and(|(_, conf)| conf.bridge == *name);
        let found = match found.code {
            Code::RepairFailed if !is_there => Finding::new(Code::BridgeMissing, found.object, found.message),
            _ => found,
        };
        self.outcome.findings.push(if is_own && !is_there { found } else { found.degraded() });
    }

    /// Networks whose state was lost begin with what lives: before the first ADD that could give an address twice.
    /// Only networks that we knew: another state directory's are not ours.
    fn relearn(&mut self) -> Result<(), Error> {
        let own = self.order.network;
        let known = self
            .order
            .memory
            .iter()
            .map(|a| &a.key.network)
            .filter(|name| own.is_none_or(|(own, _)| own != *name));
        let mut names: Vec<(&NetworkName, Option<&NetConf>)> = known.map(|name| (name, None)).collect();
        names.sort_by(|a, b| a.0.cmp(b.0));
        names.dedup_by(|a, b| a.0 == b.0);
        names.extend(own.map(|(name, conf)| (name, Some(conf))));
        for (name, conf) in names {
            if self.state.existing_network(name).is_some() {
                continue;
            }
            let hints = relearn::Hints { conf, memory: self.order.memory };
            let found = relearn::network_with(&self.state, name, hints)?.list()?.len();
            if found > 0 {
                self.repaired(
                    RepairKind::Record,
                    format_args!("{found} attachments of {name} relearnt from their links"),
                );
            }
        }
        Ok(())
    }

    /// Networks with pods in another mode than new pods get.
    fn modes(&mut self) {
        let mut networks: BTreeMap<&NetworkName, Vec<&Attachment>> = BTreeMap::new();
        for attachment in &self.outcome.attachments {
            networks.entry(&attachment.key.network).or_default().push(attachment);
        }
        let configured =
            |name: &NetworkName| self.order.mode.filter(|(own, _)| *own == name).map(|(_, mode)| mode);
        let found: Vec<Finding> = networks
            .into_iter()
            .filter_map(|(name, pods)| mode::differing(name, configured(name), &pods))
            .collect();
        self.outcome.findings.extend(found);
    }

    fn records(&mut self) -> Result<Vec<(NetworkState, Vec<ListedRecord>)>, Error> {
        let mut records = Vec::new();
        for network in self.state.networks()? {
            let listed = network.list()?;
            records.push((network, listed));
        }
        Ok(records)
    }

    fn record(&mut self, network: &NetworkState, listed: &ListedRecord, seen: &ObservedHost) {
        let done = match (&listed.attachment, listed.phase) {
            (_, RecordPhase::Pending) => self.undo_pending(network, listed, seen),
            (Some(attachment), RecordPhase::Ready) => {
                let life = self.attachment(network, attachment, seen);
                // Also one that could not be repaired: it is there, and has its place in the firewall.
                if !matches!(life, Ok(AttachmentFate::Left)) {
                    self.outcome.attachments.push(attachment.clone());
                }
                life.map(drop)
            }
            (None, RecordPhase::Ready) => self.unreadable(network, listed, seen),
        };
        if let Err(error) = done {
            let key = listed.stem.replacen('@', "/", 1);
            self.trouble(format_args!("attachment {}/{key}", network.name()), error);
        }
    }

    /// A pending record that no process holds was left by a process that was killed. If another IPAM plugin gave the
    /// addresses, the record stays until DEL, GC or the next ADD calls that plugin.
    fn undo_pending(
        &mut self,
        network: &NetworkState,
        listed: &ListedRecord,
        seen: &ObservedHost,
    ) -> Result<(), Error> {
        let is_in_kernel = |a: &Attachment| !a.is_retired() || seen.links.contains_key(a.host_link.as_str());
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
            detach::retire(&mut held, key.as_ref(), &self.order.caller())?;
            self.repaired(
                RepairKind::Pending,
                format_args!("{name}, interrupted, was removed from the kernel; {TO_THE_PLUGIN}"),
            );
        } else {
            gc::undo_held(held, &self.order.caller())?;
            self.repaired(RepairKind::Pending, format_args!("{name}, cut off in the middle, was undone"));
        }
        Ok(())
    }

    /// A damaged record is rewritten from memory or from its link. A record of a newer schema is left as it is: its pod
    /// keeps its addresses and its elements in the firewall. A record of which neither is known stays, and keeps its
    /// addresses.
    fn unreadable(
        &mut self,
        network: &NetworkState,
        listed: &ListedRecord,
        seen: &ObservedHost,
    ) -> Result<(), Error> {
        let remembered = self.order.memory.iter().find(|a| {
            AttachmentKey::network_dir(&a.key.network) == network.name() && a.key.file_stem() == listed.stem
        });
        let own = self.order.network.filter(|(name, _)| AttachmentKey::network_dir(name) == network.name());
        let from_link = || {
            let name =
                own.map(|(name, _)| name.clone()).or_else(|| network.name().as_str().try_into().ok())?;
            let link = seen.link_of(&network.name(), &listed.stem)?;
            relearn::attachment_of(&name, link, own.map(|(_, conf)| conf))
        };
        let record = network.path_of(&listed.stem);
        let completed = match listed.newer {
            // The newer version may have attached the pod again, with other addresses.
            Some(_) => from_link().or_else(|| remembered.cloned()),
            None => remembered.cloned().or_else(from_link),
        };
        let Some(attachment) = completed else { return Err(Error::Unreadable { record }) };
        let is_same = |held: &HeldAttachment| held.attachment().is_none() && held.newer() == listed.newer;
        let Some(mut held) = network.find_idle(&listed.stem)?.filter(is_same) else { return Ok(()) };
        if listed.newer.is_none() {
            held.rewrite(attachment.clone())?;
            self.repaired(
                RepairKind::Record,
                format_args!("the damaged record of {} was written anew", attachment.key),
            );
        }
        let claimed = match attachment.delegated {
            true => Ok(()),
            false => self.claim_again(network, &held, &attachment),
        };
        self.outcome.attachments.push(attachment);
        match listed.newer {
            Some(schema) => claimed.and(Err(Error::NewerRecord { record, schema })),
            None => claimed,
        }
    }

    /// Removes claims without a record, with the firewall elements of their addresses.
    fn orphans(&mut self, network: &NetworkState, seen: &ObservedHost) {
        let freed = network.has_orphans().map_err(Error::from).and_then(|has| match has {
            true => gc::free_orphans(network, seen.links.values()),
            false => Ok(0),
        });
        match freed {
            Ok(0) => {}
            Ok(count) => self.repaired(
                RepairKind::Record,
                format_args!("{count} claims of {} had no record and were removed", network.name()),
            ),
            Err(error) => self.trouble(format_args!("network {}", network.name()), error),
        }
    }
}

/// What became of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttachmentFate {
    Kept,
    /// Its namespace is gone, or somebody else is working on it.
    Left,
}
