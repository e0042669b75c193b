//! Firewall elements of attachments.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use cni::{ErrorCode, PortMapping};
use netconf::NetConf;
use netlink::RtSocket;
use nft::{
    Firewall, FirewallPod, Guard, HostPort, IdleChains, KnownPods, LiveOwners, NetworkChain, OtherPods,
    PodElement, RecordlessPod, Structure, conntrack,
};
use rustix::io::Errno;
use types::{AttachmentKey, Family, Finding, Fix, IfName, NetworkName};

use crate::alias::Alias;
use crate::condition::repair_command;
use crate::kernel_cache::{self, KernelCache};
use crate::state::{
    Addressing, Attachment, HeldAttachment, ListedRecord, NetworkState, NodeState, RecordPhase, StateError,
};
use crate::sysctl::ForwardedFamilies;
use crate::{Error, Warn};

/// Whether the attachment has firewall elements. A pod without them works without nftables.
pub(crate) fn is_needed(attachment: &Attachment) -> bool {
    attachment.spoof_check || attachment.masquerade_outside.is_some() || !attachment.ports.is_empty()
}

/// An attachment in the form that the firewall needs.
pub(crate) struct FirewallMember<'a> {
    attachment: &'a Attachment,
    addresses: Vec<IpAddr>,
    chain: Option<NetworkChain>,
    ports: Vec<HostPort>,
}

impl<'a> FirewallMember<'a> {
    /// None if the attachment has no firewall elements.
    pub(crate) fn of(attachment: &'a Attachment) -> Option<Self> {
        is_needed(attachment).then(|| Self {
            attachment,
            addresses: attachment.ips().collect(),
            chain: attachment
                .masquerade_outside
                .as_ref()
                .map(|cidrs| NetworkChain::new(&attachment.key.network, cidrs)),
            ports: host_ports(attachment).collect(),
        })
    }

    pub(crate) fn attachment(&self) -> &'a Attachment {
        self.attachment
    }

    /// The bridge, if this node is the pod's gateway. A record that was recovered without its config has no gateways.
    fn bridge(&self) -> Option<&'a IfName> {
        let is_gateway = !self.attachment.wiring.gateways.is_empty();
        is_gateway.then_some(&self.attachment.bridge)
    }

    pub(crate) fn pod(&self) -> FirewallPod<'_> {
        FirewallPod {
            link: &self.attachment.host_link,
            mac: self.attachment.pod_mac,
            mode: self.attachment.mode,
            bridge: self.bridge(),
            addresses: &self.addresses,
            masquerade: self.chain.as_ref(),
            guard: guard(self.attachment.spoof_check, self.attachment.addressing),
            ports: &self.ports,
        }
    }
}

pub(crate) fn guard(spoof_check: bool, addressing: Addressing) -> Guard {
    match (spoof_check, addressing) {
        (false, _) => Guard::Off,
        (true, Addressing::Assigned) => Guard::On,
        (true, Addressing::Dhcp) => Guard::Dhcp,
        (true, Addressing::None) => Guard::Mac,
    }
}

/// Refuses a hostIP that can never reach the pod: the pod has no address of its family, or it is not unicast.
pub(crate) fn check_ports(ports: &[PortMapping], pod: ForwardedFamilies) -> Result<(), Error> {
    for port in ports {
        if let Some((host_ip, reason)) = port.host_ip.and_then(|ip| Some((ip, unusable(ip, pod)?))) {
            let message = format!(
                "hostPort {}/{} cannot be published on hostIP {host_ip}: {reason}",
                port.host_port, port.protocol
            );
            return Err(Error::Cni(cni::Error::new(ErrorCode::InvalidConfig, message)));
        }
    }
    Ok(())
}

fn unusable(host_ip: IpAddr, pod: ForwardedFamilies) -> Option<&'static str> {
    match host_ip {
        IpAddr::V4(_) if !pod.ipv4 => {
            Some("the pod has IPv6 addresses only; use a hostIP of that family or none")
        }
        IpAddr::V6(_) if !pod.ipv6 => {
            Some("the pod has IPv4 addresses only; use a hostIP of that family or none")
        }
        ip if ip.is_multicast() => Some("it is a multicast address; use an address of the node or none"),
        IpAddr::V4(ip) if ip.is_broadcast() => {
            Some("it is the broadcast address; use an address of the node or none")
        }
        IpAddr::V6(ip) if ip.is_loopback() => {
            Some("Linux cannot forward from ::1; use 127.0.0.1 or an address of a link")
        }
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

/// A published port with a hostIP that this node does not have now. It becomes active when the node gets the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InactivePortMapping {
    pub key: AttachmentKey,
    pub port: PortMapping,
}

/// The inactive host ports of these attachments. Each hostIP is looked up in the kernel, like in the firewall's rule.
pub fn inactive_ports<'a>(
    attachments: impl IntoIterator<Item = &'a Attachment>,
    host: &mut RtSocket,
) -> Result<Vec<InactivePortMapping>, Error> {
    let mut inactive = Vec::new();
    for attachment in attachments {
        for port in &attachment.ports {
            let Some(host_ip) = port.host_ip.filter(|ip| !ip.is_unspecified()) else { continue };
            if !is_local(host, host_ip)? {
                inactive.push(InactivePortMapping { key: attachment.key.clone(), port: *port });
            }
        }
    }
    Ok(inactive)
}

fn is_local(host: &mut RtSocket, ip: IpAddr) -> Result<bool, Error> {
    match host.route_to(ip) {
        Ok(route) => Ok(route.local),
        Err(error) if error.is_unreachable() || error.is_missing() => Ok(false),
        // Lookups of prohibited or blackholed destinations return these errors.
        Err(error) if matches!(error.errno(), Some(Errno::ACCESS | Errno::INVAL)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A port without a hostIP is published in every family of the pod.
fn host_ports(attachment: &Attachment) -> impl Iterator<Item = HostPort> {
    attachment.ports.iter().flat_map(|port| {
        let same_family = move |pod: &IpAddr| port.host_ip.is_none_or(|host| host.is_ipv4() == pod.is_ipv4());
        attachment.ips().filter(same_family).map(move |pod| HostPort {
            host_ip: port.host_ip,
            host_port: port.host_port,
            protocol: port.protocol,
            pod,
            pod_port: port.container_port,
        })
    })
}

/// Adds the firewall elements of a new attachment. If the tables were flushed, elements of the other pods are restored first. If
/// one of these fails, the new pod is added anyway, and CHECK and STATUS report it.
pub(crate) fn add_pod(
    attachment: &Attachment,
    state: &NodeState,
    kernel_cache: Option<&KernelCache>,
    warn: Warn<'_>,
) -> Result<(), Error> {
    add_pod_after(
        attachment,
        kernel_cache,
        &mut RecordedPods { state, new: Some(&attachment.key), held: None, warn },
    )
}

/// Maximum number of records that are locked at once, below the usual limit of 1024 open files. Further pods are restored one by
/// one.
const MAX_HELD_RECORDS: usize = 512;

/// The attachments of the state directory.
struct RecordedPods<'a> {
    state: &'a NodeState,
    /// The attachment that is being created.
    new: Option<&'a AttachmentKey>,
    /// An attachment with a record that the caller has locked.
    held: Option<&'a Attachment>,
    warn: Warn<'a>,
}

impl RecordedPods<'_> {
    /// Locks and returns ready attachments, so that a concurrent DEL does not leave elements behind. Records that another process
    /// holds and unreadable records are skipped: `restore` waits for the former and reports the latter.
    fn lock_ready(&self) -> Vec<HeldAttachment> {
        let networks = self.state.networks().unwrap_or_default();
        let listed = networks.iter().flat_map(|network| {
            network.list().unwrap_or_default().into_iter().map(move |listed| (network, listed))
        });
        let is_relevant = |listed: &ListedRecord| {
            let is_other = |a: &Attachment| is_needed(a) && Some(&a.key) != self.new;
            listed.phase == RecordPhase::Ready && listed.attachment.as_ref().is_some_and(is_other)
        };
        listed
            .filter(|(_, listed)| is_relevant(listed))
            .filter_map(|(network, listed)| network.find_idle(&listed.stem).ok()?)
            .filter(|held| held.phase() == RecordPhase::Ready)
            .take(MAX_HELD_RECORDS)
            .collect()
    }
}

impl OtherPods for RecordedPods<'_> {
    fn hold(
        &mut self,
        act: &mut dyn FnMut(&[FirewallPod<'_>]) -> Result<(), nft::Error>,
    ) -> Result<(), nft::Error> {
        let records = self.lock_ready();
        let attachments = records.iter().filter_map(HeldAttachment::attachment).chain(self.held);
        let members: Vec<FirewallMember<'_>> = attachments.filter_map(FirewallMember::of).collect();
        act(&members.iter().map(FirewallMember::pod).collect::<Vec<_>>())
    }

    fn restore(&mut self) {
        if self.held.is_some() {
            // The caller restores all pods.
            return;
        }
        if let Err(error) = restore_pods(self.state, self.new) {
            (self.warn)(&format!("cannot restore all pods in the firewall: {error}"));
        }
    }
}

/// Restores the firewall elements of all ready attachments of all networks, except one.
pub(crate) fn restore_pods(state: &NodeState, except: Option<&AttachmentKey>) -> Result<(), Error> {
    let mut errors = Vec::new();
    for network in state.networks()? {
        for listed in network.list()? {
            let is_relevant = |a: &Attachment| is_needed(a) && Some(&a.key) != except;
            let ready = listed.attachment.as_ref().filter(|_| listed.phase == RecordPhase::Ready);
            if let Some(attachment) = ready.filter(|a| is_relevant(a)) {
                errors.extend(restore_pod(state, &network, attachment).err());
            }
        }
    }
    Error::collect(errors)
}

/// Locks the record, so that a concurrent DEL does not leave elements behind. Returns false if the attachment does not exist any
/// more. `listed` is used if the record cannot be read.
pub(crate) fn restore_pod(
    state: &NodeState,
    network: &NetworkState,
    listed: &Attachment,
) -> Result<bool, Error> {
    let held = network.find(&listed.key)?.filter(|held| held.phase() == RecordPhase::Ready);
    let Some(held) = held else { return Ok(false) };
    let attachment = held.attachment().unwrap_or(listed);
    let mut other_pods = RecordedPods { state, new: None, held: Some(attachment), warn: &|_| () };
    add_pod_after(attachment, None, &mut other_pods).map(|()| true)
}

fn add_pod_after(
    attachment: &Attachment,
    kernel_cache: Option<&KernelCache>,
    other_pods: &mut RecordedPods<'_>,
) -> Result<(), Error> {
    let Some(member) = FirewallMember::of(attachment) else { return Ok(()) };
    kernel_cache::with_firewall(kernel_cache, |firewall| firewall.add_pod_after(&member.pod(), other_pods))?;
    // UDP flows to a host port that had no pod would stay untranslated.
    if member.ports.is_empty() { Ok(()) } else { Ok(conntrack::flush_ports(&member.ports)?) }
}

pub(crate) fn remove_pod(attachment: &Attachment, kernel_cache: Option<&KernelCache>) -> Result<(), Error> {
    let Some(member) = FirewallMember::of(attachment) else { return Ok(()) };
    kernel_cache::with_firewall(kernel_cache, |firewall| firewall.remove_pod(&member.pod()))
}

/// Removes the elements of the attachment's addresses. The anti-spoofing filter of its link stays.
pub(crate) fn remove_addresses(
    attachment: &Attachment,
    kernel_cache: Option<&KernelCache>,
) -> Result<(), Error> {
    let Some(member) = FirewallMember::of(attachment) else { return Ok(()) };
    let addresses = FirewallPod { guard: Guard::Off, ..member.pod() };
    kernel_cache::with_firewall(kernel_cache, |firewall| firewall.remove_pod(&addresses))
}

/// Removes the elements of the attachment's link and host ports. Elements that contain only its addresses stay, because another
/// pod has the same addresses.
pub(crate) fn remove_link(attachment: &Attachment) -> Result<(), Error> {
    let Some(member) = FirewallMember::of(attachment) else { return Ok(()) };
    Firewall::open()?.remove_pod(&FirewallPod { addresses: &[], ..member.pod() })?;
    sweep(std::slice::from_ref(&attachment.host_link), &[])
}

/// The chain that masquerades the pods of a network, if they are masqueraded.
pub(crate) fn chain_of(name: &NetworkName, conf: &NetConf) -> Option<NetworkChain> {
    conf.ip_masq.then(|| NetworkChain::new(name, &conf.cluster))
}

/// Removes firewall chains without pods of these networks, except the chain that this process retains. Networks are given by
/// directory name. Processes of other run directories remove their own chains.
pub(crate) fn prune(
    idle: IdleChains<'_>,
    networks: &[String],
    kernel_cache: Option<&KernelCache>,
) -> Result<(), Error> {
    let retained = kernel_cache.and_then(KernelCache::retained_chain);
    match Firewall::open().and_then(|mut firewall| firewall.prune(idle, networks, retained.as_deref())) {
        // Without nftables there are no chains.
        Ok(_) | Err(nft::Error::Unsupported { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes firewall elements by links and addresses, for pods without a complete record.
pub(crate) fn sweep(links: &[IfName], addresses: &[IpAddr]) -> Result<(), Error> {
    match Firewall::open().and_then(|mut firewall| firewall.sweep(&RecordlessPod { links, addresses })) {
        // Without nftables there are no elements.
        Ok(()) | Err(nft::Error::Unsupported { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes firewall elements of claimed addresses without a record.
pub(crate) fn remove_addresses_without_record(addresses: &[IpAddr]) -> Result<(), StateError> {
    sweep(&[], addresses).map_err(|error| {
        let range: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        StateError::FormerOwner { range: range.join(", "), reason: error.to_string() }
    })
}

/// Removes conntrack entries of all unused addresses of a range.
pub(crate) fn remove_conntrack(
    range: &ipam::Range,
    is_used: &dyn Fn(IpAddr) -> bool,
) -> Result<(), StateError> {
    let family = if range.is_ipv4() { Family::V4 } else { Family::V6 };
    conntrack::sweep(family, &|ip| range.allocatable(ip) && !is_used(ip))
        .map_err(|e| StateError::FormerOwner { range: range.to_string(), reason: e.to_string() })
}

pub(crate) fn missing(attachment: &Attachment) -> Result<Vec<String>, Error> {
    let Some(member) = FirewallMember::of(attachment) else { return Ok(Vec::new()) };
    let missing = Firewall::open()?.missing(&member.pod())?;
    Ok(missing.into_iter().map(|what| format!("firewall {what}")).collect())
}

/// At most this many orphaned elements are named and removed by the reported command.
const MAX_NAMED: usize = 20;

/// Reports elements without a pod, and elements that a running pod should not have. An orphaned host port blocks other pods and
/// forwards to the next pod with the address. Changes nothing. Pods of other run directories are known from their links. If an
/// alias may lack addresses, only elements of links are reported.
pub fn orphans(run_dir: &Path) -> Result<Option<Finding>, Error> {
    let state = NodeState::open_existing(run_dir)?;
    let (mut tables, mut host) = (Firewall::open()?, RtSocket::open()?);
    let mut elements = orphans_now(&mut tables, &mut host, state.as_ref())?;
    if !elements.is_empty() {
        // A DEL may have finished between the two lists. An ADD of another run directory adds elements before its link.
        let second = orphans_now(&mut tables, &mut host, state.as_ref())?;
        elements.retain(|orphan| second.contains(orphan));
    }
    if elements.is_empty() {
        return Ok(None);
    }
    let names: Vec<&str> = elements.iter().map(|orphan| orphan.what.as_str()).take(MAX_NAMED).collect();
    let more = elements.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let message = format!("the firewall has elements that no pod should have: {}{more}", names.join(", "));
    let deletions: Vec<String> =
        elements.iter().take(MAX_NAMED).map(|orphan| format!("delete element {}", orphan.element)).collect();
    let finding = Finding::new(types::Code::FirewallOrphans, "tables podwire", message);
    Ok(Some(finding.fix(Fix::words(["nft", &deletions.join("; ")]))))
}

fn orphans_now(
    tables: &mut Firewall,
    host: &mut RtSocket,
    state: Option<&NodeState>,
) -> Result<BTreeSet<PodElement>, Error> {
    // Read before the records, because an ADD writes its record first.
    let elements = tables.pod_elements()?.elements;
    let LivePods { owners, .. } = LivePods::observe(host, state)?;
    Ok(elements
        .into_iter()
        .filter(|element| owners.is_orphan(element) || owners.is_unwanted(element))
        .collect())
}

/// The pods of this node, from records, claims and links.
#[derive(Debug, Default)]
pub(crate) struct LivePods {
    pub(crate) owners: LiveOwners,
    /// There are managed links without a readable record, for example of other run directories.
    pub(crate) has_unrecorded_links: bool,
}

impl LivePods {
    pub(crate) fn observe(host: &mut RtSocket, state: Option<&NodeState>) -> Result<Self, Error> {
        let (mut pods, links) = (Self::default(), host.links()?);
        let (mut keys, mut has_unreadable) = (BTreeSet::new(), false);
        for network in state.map_or(Ok(Vec::new()), NodeState::networks)? {
            pods.owners.addresses.extend(network.claimed()?);
            for listed in network.list()? {
                let Some(attachment) = listed.attachment else {
                    has_unreadable = true;
                    continue;
                };
                add_known(&mut pods.owners.known, &attachment, listed.phase)?;
                pods.owners.addresses.extend(attachment.ips());
                pods.owners.links.insert(attachment.host_link.to_string());
                keys.insert((network.name(), attachment.key.file_stem()));
            }
        }
        for link in links {
            if let Some(alias) = Alias::of(&link) {
                pods.owners.addresses.extend(alias.ips());
                let is_unrecorded = !keys.contains(&(alias.network.to_owned(), alias.stem()));
                pods.has_unrecorded_links |= is_unrecorded;
                pods.owners.has_more_addresses |= is_unrecorded && alias.may_lack_addresses;
                if is_unrecorded {
                    // A pod of another run directory, or with an unreadable record.
                    pods.owners.known.set_shared(&link.name, alias.ips());
                }
            }
            pods.owners.links.insert(link.name);
        }
        if has_unreadable || pods.owners.has_more_addresses {
            pods.owners.known.set_addresses_shared();
        }
        Ok(pods)
    }
}

/// The desired elements of these ready attachments.
pub(crate) fn known(attachments: &[Attachment]) -> Result<KnownPods, Error> {
    let mut known = KnownPods::default();
    attachments.iter().try_for_each(|attachment| add_known(&mut known, attachment, RecordPhase::Ready))?;
    Ok(known)
}

/// A record that was recovered from a link lacks some elements that its ADD added, such as host ports. A pending record is about
/// to change. Neither owns its elements exclusively.
fn add_known(known: &mut KnownPods, attachment: &Attachment, phase: RecordPhase) -> Result<(), Error> {
    if let Some(member) = FirewallMember::of(attachment) {
        known.add_elements(&member.pod())?;
    }
    match (phase, attachment.netns_cookie) {
        (RecordPhase::Ready, Some(_)) => known.set_exclusive(&attachment.host_link, attachment.ips()),
        (RecordPhase::Ready, None) | (RecordPhase::Pending, _) => {}
    }
    Ok(())
}

/// Compares the tables with the attachments of a run directory. Changes nothing.
pub fn drift(run_dir: &Path) -> Result<Option<Finding>, Error> {
    let faults = faults(run_dir)?;
    let message = format!("Podwire's tables differ from the desired state: {}", faults.join(", "));
    let finding = Finding::new(types::Code::FirewallDrift, "tables podwire", message);
    Ok((!faults.is_empty()).then(|| finding.fix(repair_command(run_dir))))
}

fn faults(run_dir: &Path) -> Result<Vec<String>, Error> {
    let Some(state) = NodeState::open_existing(run_dir)? else { return Ok(Vec::new()) };
    let faults = faults_of(&state)?;
    if faults.is_empty() {
        return Ok(faults);
    }
    // A concurrent DEL removes elements before the record. Locking each record waits until it has finished.
    for attachment in ready(&state)? {
        if let Some(network) = state.existing_network(&attachment.key.network) {
            network.find(&attachment.key)?;
        }
    }
    let second = faults_of(&state)?;
    Ok(faults.into_iter().filter(|fault| second.contains(fault)).collect())
}

fn faults_of(state: &NodeState) -> Result<Vec<String>, Error> {
    let attachments = ready(state)?;
    let members: Vec<FirewallMember<'_>> = attachments.iter().filter_map(FirewallMember::of).collect();
    let pods: Vec<FirewallPod<'_>> = members.iter().map(FirewallMember::pod).collect();
    let mut tables = Firewall::open()?;
    let mut faults = tables.drift(&Structure::of(&pods))?;
    let incomplete = tables.missing_of(&pods)?;
    let names = incomplete.iter().filter_map(|index| Some(&members.get(*index)?.attachment().key));
    faults.extend(names.map(|key| format!("elements of {key} are missing")));
    Ok(faults)
}

/// Whether tables that cannot be repaired in place are replaced. A replacement removes elements of pods of other run directories
/// and of pods with an ADD in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacing {
    Allowed,
    Refused,
}

/// Repairs the tables and restores all pods. The rules of running pods stay active all the time.
pub fn repair(run_dir: &Path, replacing: Replacing) -> Result<(), Error> {
    let Some(state) = NodeState::open_existing(run_dir)? else { return Ok(()) };
    let attachments = ready(&state)?;
    let members: Vec<FirewallMember<'_>> = attachments.iter().filter_map(FirewallMember::of).collect();
    let pods: Vec<FirewallPod<'_>> = members.iter().map(FirewallMember::pod).collect();
    let mut tables = Firewall::open()?;
    let incomplete = tables.missing_of(&pods)?;
    match replacing {
        Replacing::Allowed => tables.repair(&Structure::of(&pods), &pods)?,
        Replacing::Refused => tables.repair_in_place(&Structure::of(&pods), &pods)?,
    }
    remove_deleted(&state, &attachments)?;
    // UDP flows that arrived in the meantime would stay untranslated.
    let ports: Vec<HostPort> = incomplete
        .iter()
        .filter_map(|index| members.get(*index))
        .flat_map(|member| member.ports.clone())
        .collect();
    if ports.is_empty() { Ok(()) } else { Ok(conntrack::flush_ports(&ports)?) }
}

fn ready(state: &NodeState) -> Result<Vec<Attachment>, Error> {
    let mut attachments = Vec::new();
    for network in state.networks()? {
        let ready = network.list()?.into_iter().filter(|listed| listed.phase == RecordPhase::Ready);
        attachments.extend(ready.filter_map(|listed| listed.attachment));
    }
    Ok(attachments)
}

/// Removes elements of pods that were deleted while all pods were restored. No other process would remove them.
pub(crate) fn remove_deleted(state: &NodeState, attachments: &[Attachment]) -> Result<(), Error> {
    for attachment in attachments {
        if !has_owner(state, attachment)? {
            remove_pod(attachment, None)?;
        }
    }
    Ok(())
}

fn has_owner(state: &NodeState, attachment: &Attachment) -> Result<bool, Error> {
    let Some(network) = state.existing_network(&attachment.key.network) else { return Ok(false) };
    let stem = attachment.key.file_stem();
    // A later DEL removes the elements. A DEL in progress may be past that step, so this waits until it has finished.
    if network.path_of(&stem).exists() || network.find_stem(&stem)?.is_some() {
        return Ok(true);
    }
    // Another pod that got the address in the meantime needs the elements.
    Ok(attachment.ips().any(|ip| network.is_claimed(ip)))
}

#[cfg(test)]
mod tests {
    use testkit::Lab;

    use super::*;

    #[test]
    fn a8_no_address_is_orphaned_while_an_alias_may_lack_one() {
        let lab = Lab::new("shortalias").unwrap();
        let node = lab.node("n").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let sh = |command: &str| node.sh(&["sh", "-c", command]).unwrap();
        let reported = || {
            let finding = node.enter(|| orphans(dir.path()).unwrap()).unwrap();
            finding.and_then(|finding| finding.fix).map_or(String::new(), |fix| fix.to_string())
        };
        sh("nft 'add table inet podwire; add set inet podwire bound4 { type ipv4_addr; };
            add set inet podwire ports { type ifname; };
            add element inet podwire bound4 { 10.50.0.77 }; add element inet podwire ports { pwgone }'");
        sh("ip link add pwother type veth peer name peer");
        sh("ip link set pwother alias 'podwire:red/c1/eth0 10.60.0.2/32 in=shop/front/web'");
        let all = reported();
        assert!(all.contains("10.50.0.77") && all.contains("pwgone"), "{all}");
        let finding = node.enter(|| orphans(dir.path()).unwrap()).unwrap().unwrap();
        assert!(finding.message.contains("drops traffic from 10.50.0.77"), "{}", finding.message);
        // Long but complete: the long word comes after all addresses.
        let word = "t".repeat(150);
        sh(&format!("ip link set pwother alias 'podwire:red/c1/eth0 10.60.0.2/32 in={word}/front'"));
        assert_eq!(reported(), all);
        let id = "c".repeat(170);
        sh(&format!("ip link set pwother alias 'podwire:network/{id}/eth0 fd00:1:2:3:4:5:6:7/128'"));
        let links = reported();
        assert!(!links.contains("10.50.0.77") && links.contains("pwgone"), "{links}");
        sh("ip link del pwother");
        assert_eq!(reported(), all);
    }
}
