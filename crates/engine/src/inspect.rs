//! Conditions of a node that are detected without an agent. CNI STATUS, `podwire status` and `podwire doctor` use the same
//! checks, so their results agree. Nothing is changed. A check that fails becomes a finding and does not hide other findings.

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

/// Shorter than for CNI STATUS, because a user waits for `podwire status`.
const IPAM_TIMEOUT: Duration = Duration::from_secs(5);

/// All findings of the node, the most important first: of the run directory, of the networks in `configs`, and of all recorded
/// networks and pods. Configs with another run directory are skipped. Each config has the CNI_PATH that a runtime would set. If
/// several runtimes use a config, it is listed once for each of them.
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
    let Inspection { status_findings: mut all, other_findings, .. } = inspection;
    all.extend(other_findings);
    sorted(all)
}

/// Whether CNI STATUS inspects Podwire's tables. The duration grows with the number of pods.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TableInspection {
    Inspect,
    /// The agent compares and repairs them in its reconcile rounds.
    LeaveToAgent,
}

/// The findings that CNI STATUS reports for one network: new pods fail, or running pods are affected. Findings of single pods
/// are not included, because one pod could make the whole node not ready.
pub(crate) fn of_network(
    run_dir: &Path,
    config: &NetworkConfig,
    conf: &NetConf,
    tables: TableInspection,
) -> Vec<Finding> {
    let mut inspection = Inspection::new(run_dir);
    let subject = InspectedNetwork::of_conf(&config.name, conf, &inspection.ready_attachments(&config.name));
    inspection.node(std::slice::from_ref(&subject));
    inspection.network(&subject);
    match tables {
        TableInspection::Inspect => inspection.tables(),
        TableInspection::LeaveToAgent => {}
    }
    sorted(inspection.status_findings)
}

/// Findings that would keep an agent with this network from becoming ready, except overlap. Records are not read, because the
/// agent that wrote them may be running.
pub fn startup_findings(run_dir: &Path, name: &NetworkName, conf: &NetConf) -> Vec<Finding> {
    if let Err(error) = privileges::check() {
        return vec![error.finding(&FailureContext {
            code: Code::PermissionDenied,
            object: "process",
            run_dir,
        })];
    }
    let mut findings: Vec<Finding> = run_dir_space(run_dir).into_iter().collect();
    let subject = InspectedNetwork::of_conf(name, conf, &[]);
    if subject.needs_nft() {
        findings.extend(nft_missing(run_dir));
    }
    match subject.bridge_findings(run_dir) {
        Ok(bridge) => findings.extend(bridge),
        Err(error) => findings.push(failure(error, run_dir)),
    }
    findings.retain(|finding| finding.severity == Severity::NotReady);
    findings
}

/// Keeps the most severe finding of each condition and object. Two networks may report the same IPAM plugin.
fn sorted(mut findings: Vec<Finding>) -> Vec<Finding> {
    let mut reported = BTreeSet::new();
    findings.sort_by_key(|finding| (finding.severity, finding.code));
    findings.retain(|finding| reported.insert((finding.code, finding.object.clone())));
    findings
}

/// The reason why a directory cannot be written, or created in its nearest existing parent.
pub fn write_error(dir: &Path) -> Option<io::Error> {
    let existing = dir.ancestors().find(|path| path.symlink_metadata().is_ok())?;
    match existing.metadata() {
        Ok(meta) if !meta.is_dir() => Some(io::ErrorKind::NotADirectory.into()),
        Ok(_) => access(existing, Access::WRITE_OK | Access::EXEC_OK).err().map(Into::into),
        Err(error) => Some(error),
    }
}

/// The conditions of a run directory that is full, nearly full, or not writable. Costs a few calls of stat and access.
pub fn run_dir_findings(run_dir: &Path) -> Vec<Finding> {
    let mut findings: Vec<Finding> = run_dir_space(run_dir).into_iter().collect();
    if findings.iter().all(|space| space.severity == Severity::Degraded) {
        findings.extend(unwritable_run_dir(run_dir));
    }
    findings
}

/// Checks the directories of records too, because they may be on another file system.
fn unwritable_run_dir(run_dir: &Path) -> Option<Finding> {
    let mut dirs = vec![run_dir.to_owned(), run_dir.join("networks")];
    match NodeState::open_existing(run_dir).and_then(|state| state.map_or(Ok(Vec::new()), |it| it.networks()))
    {
        Ok(networks) => dirs.extend(networks.iter().flat_map(NetworkState::written_dirs)),
        Err(error) => return Some(failure(error.into(), run_dir)),
    }
    let (dir, error) = dirs.iter().find_map(|dir| Some((dir.display(), write_error(dir)?)))?;
    let message = format!("cannot write to {dir}: {error}; set runDir to a writable directory");
    Some(Finding::new(Code::RunDirUnusable, format_args!("directory {}", run_dir.display()), message))
}

struct Inspection<'a> {
    run_dir: &'a Path,
    records: Vec<(NetworkState, Vec<ListedRecord>)>,
    links: Vec<Link>,
    /// For CNI STATUS: new pods fail, or running pods of a network are affected.
    status_findings: Vec<Finding>,
    other_findings: Vec<Finding>,
}

impl<'a> Inspection<'a> {
    fn new(run_dir: &'a Path) -> Self {
        let mut inspection = Self {
            run_dir,
            records: Vec::new(),
            links: Vec::new(),
            status_findings: Vec::new(),
            other_findings: Vec::new(),
        };
        match records_of(run_dir) {
            Ok(records) => inspection.records = records,
            Err(error) => inspection.failed(error),
        }
        match RtSocket::open().and_then(|mut host| host.links()) {
            Ok(links) => inspection.links = links,
            Err(error) => inspection.failed(error.into()),
        }
        inspection
    }

    /// Reports a check that could not run.
    fn failed(&mut self, error: Error) {
        self.status_findings.push(failure(error, self.run_dir));
    }

    fn parse<'c>(&mut self, config: &'c NetworkConfig) -> Option<(&'c NetworkConfig, NetConf)> {
        let parsed = LocalPaths::parse(config).and_then(|paths| Ok((paths, NetConf::parse(config)?)));
        match parsed {
            Ok((paths, conf)) => (paths.run_dir == self.run_dir).then_some((config, conf)),
            Err(error) => {
                let object = format!("network {}", config.name);
                self.status_findings.push(Finding::new(Code::InstallIncomplete, object, error));
                None
            }
        }
    }

    /// The networks of the configs, then networks that have only records.
    fn subjects<'c>(&self, parsed: &'c [(&'c NetworkConfig, NetConf)]) -> Vec<InspectedNetwork<'c>> {
        let of_config = |(config, conf): &'c (&NetworkConfig, NetConf)| {
            InspectedNetwork::of_conf(&config.name, conf, &self.ready_attachments(&config.name))
        };
        let is_first = |(index, (config, _)): &(usize, &'c (&NetworkConfig, NetConf))| {
            !parsed[..*index].iter().any(|(earlier, _)| earlier.raw == config.raw)
        };
        let mut subjects: Vec<InspectedNetwork<'c>> =
            parsed.iter().enumerate().filter(is_first).map(|(_, config)| of_config(config)).collect();
        for (network, listed) in &self.records {
            let is_known =
                |subject: &InspectedNetwork<'_>| AttachmentKey::network_dir(&subject.name) == network.name();
            if !subjects.iter().any(is_known) {
                subjects.extend(InspectedNetwork::of_pods(&ready(listed).collect::<Vec<_>>()));
            }
        }
        subjects
    }

    fn ready_attachments(&self, name: &NetworkName) -> Vec<&Attachment> {
        let dir_name = AttachmentKey::network_dir(name);
        let records = self.records.iter().filter(|(network, _)| network.name() == dir_name);
        records.flat_map(|(_, listed)| ready(listed)).collect()
    }

    /// Checks run directory and nft. Without them no pod can be started.
    fn node(&mut self, subjects: &[InspectedNetwork<'_>]) {
        for finding in run_dir_findings(self.run_dir) {
            match finding.severity {
                Severity::NotReady => self.status_findings.push(finding),
                Severity::Degraded => self.other_findings.push(finding),
            }
        }
        // Networks without anti-spoofing filter and masquerade do not need nft.
        if subjects.is_empty() || subjects.iter().any(InspectedNetwork::needs_nft) {
            self.status_findings.extend(nft_missing(self.run_dir));
        }
    }

    fn network(&mut self, subject: &InspectedNetwork<'_>) {
        match subject.bridge_findings(self.run_dir) {
            Ok(findings) => self.status_findings.extend(findings),
            Err(error) => self.failed(error),
        }
        // Not in STATUS: after an error of STATUS a runtime starts no pods, but these pods have to be restarted.
        self.other_findings.extend(subject.mixed_modes());
        self.status_findings.extend(subject.addresses(self.run_dir));
        if let Err(error) = self.overlaps(subject) {
            self.failed(error);
        }
        match subject.dropped() {
            Ok((certain, likely)) => {
                self.status_findings.extend(certain);
                self.other_findings.extend(likely);
            }
            // A failed check does not mean that pods are affected.
            Err(error) => self.other_findings.push(failure(error, self.run_dir).degraded()),
        }
    }

    /// Runtimes send STATUS since CNI 1.1. For older configs only the program is checked.
    fn ipam(&mut self, config: &NetworkConfig) {
        let finding = match config.version >= Version::V1_1_0 {
            true => ipam_status(config, (Delegates::InCniPath, IPAM_TIMEOUT), self.run_dir)
                .map(|fault| fault.finding),
            false => ipam_program(config, Delegates::InCniPath, self.run_dir),
        };
        self.status_findings.extend(finding);
    }

    fn overlaps(&mut self, subject: &InspectedNetwork<'_>) -> Result<(), Error> {
        if subject.subnets.is_empty() {
            return Ok(());
        }
        let observed = ObservedNetworks::of(&mut RtSocket::open()?, &subject.subnets)?;
        let network = subject.for_overlap();
        self.status_findings.extend(overlap::of_status(&network, &observed));
        self.other_findings.extend(overlap::findings_of_config(&network, &observed));
        Ok(())
    }

    /// Checks Podwire's tables. Without nftables they cannot be created, which is already reported.
    fn tables(&mut self) {
        match firewall::drift(self.run_dir) {
            Ok(finding) => self.status_findings.extend(finding),
            Err(Error::Firewall(nft::Error::Unsupported { .. })) => {}
            Err(error) => self.other_findings.push(failure(error, self.run_dir).degraded()),
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
    listed
        .iter()
        .filter(|record| record.phase == RecordPhase::Ready)
        .filter_map(|record| record.attachment.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F14: the finding of the first network must not hide a more severe one of the second.
    #[test]
    fn f14_the_most_severe_finding_of_an_object_is_reported() {
        let finding = |message: &str| Finding::new(Code::IpamUnavailable, "plugin dhcp", message);
        let other = Finding::new(Code::NftMissing, "program nft", "missing");
        let all =
            sorted(vec![finding("limited").degraded(), other, finding("missing"), finding("missing too")]);
        let messages: Vec<&str> = all.iter().map(|finding| finding.message.as_str()).collect();
        let missing = messages.iter().filter(|message| message.starts_with("missing"));
        assert_eq!(missing.count(), 2, "{messages:?}");
        let ipam = all.iter().find(|finding| finding.code == Code::IpamUnavailable).unwrap();
        assert_eq!((ipam.severity, ipam.message.as_str()), (Severity::NotReady, "missing"));
    }
}
