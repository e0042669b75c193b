//! The conditions of a node that need no agent to be found. CNI STATUS, `podwire status` and `podwire doctor` use the same
//! checks, so that they cannot differ. Nothing is changed, and a check that fails is a finding: it hides no other.

mod ipam;
mod network;
mod pods;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use cni::{NetworkConfig, Version};
use netconf::{LocalPaths, NetConf};
use netlink::{Link, RtSocket};
use rustix::fs::{Access, access};
use types::{AttachmentKey, Code, Finding, NetworkName, Severity};

use crate::condition::{FailureContext, run_dir_space};
use crate::overlap::{self, ObservedNetworks};
use crate::reconcile::failure;
use crate::state::{Attachment, ListedRecord, NetworkState, NodeState, RecordPhase};
use crate::{Delegates, Error, firewall, privileges};
pub use ipam::ipam_program;
pub(crate) use ipam::{IpamFault, ipam_status};
use network::InspectedNetwork;

/// A person waits for `podwire status`; CNI STATUS waits longer for an IPAM plugin.
const IPAM_TIMEOUT: Duration = Duration::from_secs(5);

/// All findings of the node, the most important first: of the run directory, of the networks that `configs` describe, and of
/// all recorded networks and pods. Configs of other run directories are not inspected. Each config has the CNI_PATH that a
/// runtime would set. If several runtimes use it, it is given once for each of them.
pub fn inspect(run_dir: &Path, configs: &[NetworkConfig]) -> Vec<Finding> {
    let mut inspection = Inspection::new(run_dir);
    let parsed: Vec<(&NetworkConfig, NetConf)> =
        configs.iter().filter_map(|config| inspection.parse(config)).collect();
    let subjects = inspection.subjects(&parsed);
    inspection.node(&subjects);
    for subject in &subjects {
        inspection.network(subject);
    }
    for (config, _) in &parsed {
        inspection.ipam(config);
    }
    inspection.tables();
    inspection.pods();
    let Inspection { mut status, operator, .. } = inspection;
    status.extend(operator);
    sorted(status)
}

/// Whether CNI STATUS inspects Podwire's tables, which takes the longer the more pods there are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TableInspection {
    Inspect,
    /// Its rounds compare and repair them.
    LeaveToAgent,
}

/// What CNI STATUS reports of one network: findings because of which new pods fail or running pods are affected. Those of
/// single pods are not among them: a pod could keep the whole node from being ready.
pub(crate) fn of_network(
    run_dir: &Path,
    config: &NetworkConfig,
    conf: &NetConf,
    tables: TableInspection,
) -> Vec<Finding> {
    let mut inspection = Inspection::new(run_dir);
    let subject = InspectedNetwork::of_conf(&config.name, conf, &inspection.running(&config.name));
    inspection.node(std::slice::from_ref(&subject));
    inspection.network(&subject);
    match tables {
        TableInspection::Inspect => inspection.tables(),
        TableInspection::LeaveToAgent => {}
    }
    sorted(inspection.status)
}

/// What would keep an agent with this network from being ready, apart from overlap. Records are not read: the agent that
/// wrote them may run.
pub fn before_start(run_dir: &Path, name: &NetworkName, conf: &NetConf) -> Vec<Finding> {
    if let Err(error) = privileges::check() {
        return vec![error.finding(&FailureContext {
            code: Code::PermissionDenied,
            object: "process",
            run_dir,
        })];
    }
    let mut found: Vec<Finding> = run_dir_space(run_dir).into_iter().collect();
    let subject = InspectedNetwork::of_conf(name, conf, &[]);
    if subject.needs_nft() {
        found.extend(nft_missing(run_dir));
    }
    match subject.bridge_findings(run_dir) {
        Ok(bridge) => found.extend(bridge),
        Err(error) => found.push(failure(error, run_dir)),
    }
    found.retain(|one| one.severity == Severity::NotReady);
    found
}

/// Each condition once, with the worst of its findings: two networks may use one IPAM plugin.
fn sorted(mut found: Vec<Finding>) -> Vec<Finding> {
    let mut known = BTreeSet::new();
    found.sort_by_key(|one| (one.severity, one.code));
    found.retain(|one| known.insert((one.code, one.object.clone())));
    found
}

/// Why a directory cannot be written, or made in the nearest one that exists.
pub fn unwritable(dir: &Path) -> Option<io::Error> {
    let existing = dir.ancestors().find(|path| path.symlink_metadata().is_ok())?;
    match existing.metadata() {
        Ok(meta) if !meta.is_dir() => Some(io::ErrorKind::NotADirectory.into()),
        Ok(_) => access(existing, Access::WRITE_OK | Access::EXEC_OK).err().map(Into::into),
        Err(error) => Some(error),
    }
}

/// The conditions of a run directory that is full, nearly full, or cannot be written. It takes some calls of stat and access.
pub fn run_dir_findings(run_dir: &Path) -> Vec<Finding> {
    let mut found: Vec<Finding> = run_dir_space(run_dir).into_iter().collect();
    if found.iter().all(|space| space.severity == Severity::Degraded) {
        found.extend(unwritable_run_dir(run_dir));
    }
    found
}

/// Records may be on a file system of their own.
fn unwritable_run_dir(run_dir: &Path) -> Option<Finding> {
    let mut dirs = vec![run_dir.to_owned(), run_dir.join("networks")];
    match NodeState::open_existing(run_dir).and_then(|state| state.map_or(Ok(Vec::new()), |it| it.networks()))
    {
        Ok(networks) => dirs.extend(networks.iter().flat_map(NetworkState::written_dirs)),
        Err(error) => return Some(failure(error.into(), run_dir)),
    }
    let (dir, error) = dirs.iter().find_map(|dir| Some((dir.display(), unwritable(dir)?)))?;
    let message = format!("cannot write to {dir}: {error}; set runDir to a directory that can be written");
    Some(Finding::new(Code::RunDirUnusable, format_args!("directory {}", run_dir.display()), message))
}

struct Inspection<'a> {
    run_dir: &'a Path,
    records: Vec<(NetworkState, Vec<ListedRecord>)>,
    links: Vec<Link>,
    /// New pods fail, or running pods of a network are affected.
    status: Vec<Finding>,
    /// The others.
    operator: Vec<Finding>,
}

impl<'a> Inspection<'a> {
    fn new(run_dir: &'a Path) -> Self {
        let (status, operator) = (Vec::new(), Vec::new());
        let mut all = Self { run_dir, records: Vec::new(), links: Vec::new(), status, operator };
        match records_of(run_dir) {
            Ok(records) => all.records = records,
            Err(error) => all.failed(error),
        }
        match RtSocket::open().and_then(|mut host| host.links()) {
            Ok(links) => all.links = links,
            Err(error) => all.failed(error.into()),
        }
        all
    }

    /// A check that failed as a whole.
    fn failed(&mut self, error: Error) {
        self.status.push(failure(error, self.run_dir));
    }

    fn parse<'c>(&mut self, config: &'c NetworkConfig) -> Option<(&'c NetworkConfig, NetConf)> {
        let place = LocalPaths::parse(config).and_then(|place| Ok((place, NetConf::parse(config)?)));
        match place {
            Ok((place, conf)) => (place.run_dir == self.run_dir).then_some((config, conf)),
            Err(error) => {
                let object = format!("network {}", config.name);
                self.status.push(Finding::new(Code::InstallIncomplete, object, error));
                None
            }
        }
    }

    /// The networks of configs, then those that only records know.
    fn subjects<'c>(&self, parsed: &'c [(&'c NetworkConfig, NetConf)]) -> Vec<InspectedNetwork<'c>> {
        let of_config = |(config, conf): &'c (&NetworkConfig, NetConf)| {
            InspectedNetwork::of_conf(&config.name, conf, &self.running(&config.name))
        };
        let is_first = |(index, (config, _)): &(usize, &'c (&NetworkConfig, NetConf))| {
            !parsed[..*index].iter().any(|(earlier, _)| earlier.raw == config.raw)
        };
        let mut subjects: Vec<InspectedNetwork<'c>> =
            parsed.iter().enumerate().filter(is_first).map(|(_, one)| of_config(one)).collect();
        for (network, listed) in &self.records {
            let is_known =
                |subject: &InspectedNetwork<'_>| AttachmentKey::network_dir(&subject.name) == network.name();
            if !subjects.iter().any(is_known) {
                subjects.extend(InspectedNetwork::of_pods(&ready(listed).collect::<Vec<_>>()));
            }
        }
        subjects
    }

    fn running(&self, name: &NetworkName) -> Vec<&Attachment> {
        let own = AttachmentKey::network_dir(name);
        let records = self.records.iter().filter(|(network, _)| network.name() == own);
        records.flat_map(|(_, listed)| ready(listed)).collect()
    }

    /// Run directory and nft, without which no pod can be started.
    fn node(&mut self, subjects: &[InspectedNetwork<'_>]) {
        for found in run_dir_findings(self.run_dir) {
            match found.severity {
                Severity::NotReady => self.status.push(found),
                Severity::Degraded => self.operator.push(found),
            }
        }
        // A network without guard and masquerade needs none.
        if subjects.is_empty() || subjects.iter().any(InspectedNetwork::needs_nft) {
            self.status.extend(nft_missing(self.run_dir));
        }
    }

    fn network(&mut self, subject: &InspectedNetwork<'_>) {
        match subject.bridge_findings(self.run_dir) {
            Ok(found) => self.status.extend(found),
            Err(error) => self.failed(error),
        }
        // A runtime starts no pods after an error of STATUS, and these pods are to be started again.
        self.operator.extend(subject.differing_mode());
        self.status.extend(subject.addresses(self.run_dir));
        if let Err(error) = self.overlaps(subject) {
            self.failed(error);
        }
        match subject.dropped() {
            Ok((certain, likely)) => {
                self.status.extend(certain);
                self.operator.extend(likely);
            }
            // It says nothing about pods.
            Err(error) => self.operator.push(failure(error, self.run_dir).degraded()),
        }
    }

    /// Runtimes ask for the status of a network since CNI 1.1, and so does this process.
    fn ipam(&mut self, config: &NetworkConfig) {
        let found = match config.version >= Version::V1_1_0 {
            true => ipam_status(config, (Delegates::InCniPath, IPAM_TIMEOUT), self.run_dir)
                .map(|fault| fault.finding),
            false => ipam_program(config, Delegates::InCniPath, self.run_dir),
        };
        self.status.extend(found);
    }

    fn overlaps(&mut self, subject: &InspectedNetwork<'_>) -> Result<(), Error> {
        if subject.subnets.is_empty() {
            return Ok(());
        }
        let observed = ObservedNetworks::of(&mut RtSocket::open()?, &subject.subnets)?;
        let network = subject.for_overlap();
        self.status.extend(overlap::of_status(&network, &observed));
        self.operator.extend(overlap::findings_of_config(&network, &observed));
        Ok(())
    }

    /// Podwire's own tables. Without nft they cannot be made, which is reported already.
    fn tables(&mut self) {
        match firewall::drift(self.run_dir) {
            Ok(found) => self.status.extend(found),
            Err(Error::Firewall(nft::Error::Unsupported { .. })) => {}
            Err(error) => self.operator.push(failure(error, self.run_dir).degraded()),
        }
    }
}

fn nft_missing(run_dir: &Path) -> Option<Finding> {
    let available = nft::Firewall::open().and_then(|mut tables| tables.is_available());
    let failed = FailureContext { code: Code::KernelFeatureMissing, object: "nftables", run_dir };
    available.err().map(|error| Error::from(error).finding(&failed))
}

fn records_of(run_dir: &Path) -> Result<Vec<(NetworkState, Vec<ListedRecord>)>, Error> {
    let mut records = Vec::new();
    NodeState::check(run_dir)?;
    let state = NodeState::open_existing(run_dir)?;
    for network in state.iter().map(NodeState::networks).collect::<Result<Vec<_>, _>>()?.concat() {
        let listed = network.list()?;
        records.push((network, listed));
    }
    Ok(records)
}

fn ready(listed: &[ListedRecord]) -> impl Iterator<Item = &Attachment> {
    listed.iter().filter(|one| one.phase == RecordPhase::Ready).filter_map(|one| one.attachment.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F14: the finding of the first network must not hide the worse one of the second.
    #[test]
    fn f14_of_two_findings_about_one_object_the_worse_is_kept() {
        let found = |message: &str| Finding::new(Code::IpamUnavailable, "plugin dhcp", message);
        let other = Finding::new(Code::NftMissing, "program nft", "missing");
        let all = sorted(vec![found("limited").degraded(), other, found("missing"), found("missing too")]);
        let shown: Vec<&str> = all.iter().map(|one| one.message.as_str()).collect();
        assert_eq!(shown.iter().filter(|message| message.starts_with("missing")).count(), 2, "{shown:?}");
        let kept = all.iter().find(|one| one.code == Code::IpamUnavailable).unwrap();
        assert_eq!((kept.severity, kept.message.as_str()), (Severity::NotReady, "missing"));
    }
}
