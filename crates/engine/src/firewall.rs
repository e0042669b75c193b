//! The attachment as the firewall sees it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use cni::{ErrorCode, PortMapping};
use netconf::NetConf;
use netlink::RtSocket;
use nft::{
    Firewall, FirewallPod, Guard, HostPort, Idle, KnownPods, LiveOwners, NetworkChain, OtherPods, PodElement,
    Stray, Structure, conntrack,
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

/// Does the attachment have anything in the firewall? One that asks for nothing needs no nftables at all.
pub(crate) fn is_needed(attachment: &Attachment) -> bool {
    attachment.spoof_check || attachment.masquerade_outside.is_some() || !attachment.ports.is_empty()
}

/// What the firewall wants to know of an attachment.
pub(crate) struct FirewallMember<'a> {
    attachment: &'a Attachment,
    addresses: Vec<IpAddr>,
    chain: Option<NetworkChain>,
    ports: Vec<HostPort>,
}

impl<'a> FirewallMember<'a> {
    /// None: the attachment has nothing in the firewall.
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

    /// Where this node is the pod's gateway. A record that was made from a link without its config knows neither.
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

/// Refuses a hostIP that can never lead to the pod: of a family that the pod does not have, or no unicast address.
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

/// A published port whose hostIP is no address of this node now. It leads to its pod as soon as the node has the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InactivePortMapping {
    pub key: AttachmentKey,
    pub port: PortMapping,
}

/// The inactive host ports of these attachments. Asks the kernel about each hostIP, as the firewall's rule does.
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
        // A prohibited or blackholed destination is answered with an error of its own.
        Err(error) if matches!(error.errno(), Some(Errno::ACCESS | Errno::INVAL)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A port without a host address is published in every family that the pod has.
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

/// Puts a new attachment in force. If it finds that somebody flushed our tables, the others are put back first. That one of
/// them cannot be is nothing the new one has to suffer for: CHECK and STATUS tell.
pub(crate) fn add_pod(
    attachment: &Attachment,
    state: &NodeState,
    kernel_cache: Option<&KernelCache>,
    warn: Warn<'_>,
) -> Result<(), Error> {
    add_pod_after(
        attachment,
        kernel_cache,
        &mut OfState { state, new: Some(&attachment.key), held: None, warn },
    )
}

/// So many records are held open at once, of the 1024 files that a process may have. Pods above that are put back one by one.
const HELD: usize = 512;

/// The attachments of the state directory.
struct OfState<'a> {
    state: &'a NodeState,
    /// The one that is being made.
    new: Option<&'a AttachmentKey>,
    /// One whose record the caller holds already.
    held: Option<&'a Attachment>,
    warn: Warn<'a>,
}

impl OfState<'_> {
    /// Those that are ready, with their records held: a DEL at the same time must not be followed by what it has just removed.
    /// One that another process works on is left out, and so is one whose record cannot be read: `restore` waits for the first
    /// and tells of the second.
    fn ready(&self) -> Vec<HeldAttachment> {
        let networks = self.state.networks().unwrap_or_default();
        let listed = networks.iter().flat_map(|network| {
            network.list().unwrap_or_default().into_iter().map(move |listed| (network, listed))
        });
        let is_wanted = |listed: &ListedRecord| {
            let is_other = |a: &Attachment| is_needed(a) && Some(&a.key) != self.new;
            listed.phase == RecordPhase::Ready && listed.attachment.as_ref().is_some_and(is_other)
        };
        listed
            .filter(|(_, listed)| is_wanted(listed))
            .filter_map(|(network, listed)| network.find_idle(&listed.stem).ok()?)
            .filter(|held| held.phase() == RecordPhase::Ready)
            .take(HELD)
            .collect()
    }
}

impl OtherPods for OfState<'_> {
    fn hold(
        &mut self,
        act: &mut dyn FnMut(&[FirewallPod<'_>]) -> Result<(), nft::Error>,
    ) -> Result<(), nft::Error> {
        let records = self.ready();
        let attachments = records.iter().filter_map(HeldAttachment::attachment).chain(self.held);
        let members: Vec<FirewallMember<'_>> = attachments.filter_map(FirewallMember::of).collect();
        act(&members.iter().map(FirewallMember::pod).collect::<Vec<_>>())
    }

    fn restore(&mut self) {
        if self.held.is_some() {
            // The caller puts back all.
            return;
        }
        if let Err(error) = put_back(self.state, self.new) {
            (self.warn)(&format!("not all pods could be put back into the firewall's tables: {error}"));
        }
    }
}

/// Puts all attachments in force that are ready, of all networks, but for one.
pub(crate) fn put_back(state: &NodeState, except: Option<&AttachmentKey>) -> Result<(), Error> {
    let mut errors = Vec::new();
    for network in state.networks()? {
        for listed in network.list()? {
            let wanted = |a: &Attachment| is_needed(a) && Some(&a.key) != except;
            let ready = listed.attachment.as_ref().filter(|_| listed.phase == RecordPhase::Ready);
            if let Some(attachment) = ready.filter(|a| wanted(a)) {
                errors.extend(put_one_back(state, &network, attachment).err());
            }
        }
    }
    Error::collect(errors)
}

/// With its record held: a DEL at the same time must not be followed by what it has just removed. False: it is no more.
/// `known` is what is put back if the record cannot be read.
pub(crate) fn put_one_back(
    state: &NodeState,
    network: &NetworkState,
    known: &Attachment,
) -> Result<bool, Error> {
    let held = network.find(&known.key)?.filter(|held| held.phase() == RecordPhase::Ready);
    let Some(held) = held else { return Ok(false) };
    let attachment = held.attachment().unwrap_or(known);
    let mut others = OfState { state, new: None, held: Some(attachment), warn: &|_| () };
    add_pod_after(attachment, None, &mut others).map(|()| true)
}

fn add_pod_after(
    attachment: &Attachment,
    kernel_cache: Option<&KernelCache>,
    others: &mut OfState<'_>,
) -> Result<(), Error> {
    let Some(member) = FirewallMember::of(attachment) else { return Ok(()) };
    kernel_cache::with_firewall(kernel_cache, |firewall| firewall.add_pod_after(&member.pod(), others))?;
    // Datagrams that kept coming while nobody had the port would go on to nowhere.
    if member.ports.is_empty() { Ok(()) } else { Ok(conntrack::flush_ports(&member.ports)?) }
}

pub(crate) fn remove_pod(attachment: &Attachment, kernel_cache: Option<&KernelCache>) -> Result<(), Error> {
    let Some(member) = FirewallMember::of(attachment) else { return Ok(()) };
    kernel_cache::with_firewall(kernel_cache, |firewall| firewall.remove_pod(&member.pod()))
}

/// Removes what belongs to the attachment's addresses. Its link stays guarded.
pub(crate) fn remove_addresses(
    attachment: &Attachment,
    kernel_cache: Option<&KernelCache>,
) -> Result<(), Error> {
    let Some(member) = FirewallMember::of(attachment) else { return Ok(()) };
    let addresses = FirewallPod { guard: Guard::Off, ..member.pod() };
    kernel_cache::with_firewall(kernel_cache, |firewall| firewall.remove_pod(&addresses))
}

/// Removes what belongs to the attachment's link and host ports. Elements of its addresses alone stay, for another pod that has
/// the same addresses.
pub(crate) fn remove_link(attachment: &Attachment) -> Result<(), Error> {
    let Some(member) = FirewallMember::of(attachment) else { return Ok(()) };
    Firewall::open()?.remove_pod(&FirewallPod { addresses: &[], ..member.pod() })?;
    sweep(std::slice::from_ref(&attachment.host_link), &[])
}

/// The chain that masquerades the pods of a network, if they are masqueraded.
pub(crate) fn chain_of(name: &NetworkName, conf: &NetConf) -> Option<NetworkChain> {
    conf.ip_masq.then(|| NetworkChain::new(name, &conf.cluster))
}

/// Removes the firewall's chains of these networks that have no pods, but for the chain that the agent of this process keeps.
/// Networks are named as their directories are: those of other run directories are left to their processes.
pub(crate) fn prune(
    idle: Idle<'_>,
    networks: &[String],
    kernel_cache: Option<&KernelCache>,
) -> Result<(), Error> {
    let kept = kernel_cache.and_then(KernelCache::kept_chain);
    match Firewall::open().and_then(|mut firewall| firewall.prune(idle, networks, kept.as_deref())) {
        // Without nftables there is nothing either.
        Ok(_) | Err(nft::Error::Unsupported { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes what a pod has in the firewall of which only links and addresses are known.
pub(crate) fn sweep(links: &[IfName], addresses: &[IpAddr]) -> Result<(), Error> {
    match Firewall::open().and_then(|mut firewall| firewall.sweep(&Stray { links, addresses })) {
        // Without nftables there is nothing either.
        Ok(()) | Err(nft::Error::Unsupported { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes what the firewall has of addresses that are claimed and have no record.
pub(crate) fn forget_addresses(addresses: &[IpAddr]) -> Result<(), StateError> {
    sweep(&[], addresses).map_err(|error| {
        let range: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        StateError::Clean { range: range.join(", "), reason: error.to_string() }
    })
}

/// Removes the connections of all addresses of a range that nobody has now.
pub(crate) fn forget_flows(range: &ipam::Range, is_used: &dyn Fn(IpAddr) -> bool) -> Result<(), StateError> {
    let family = if range.is_ipv4() { Family::V4 } else { Family::V6 };
    conntrack::sweep(family, &|ip| range.allocatable(ip) && !is_used(ip))
        .map_err(|e| StateError::Clean { range: range.to_string(), reason: e.to_string() })
}

pub(crate) fn missing(attachment: &Attachment) -> Result<Vec<String>, Error> {
    let Some(member) = FirewallMember::of(attachment) else { return Ok(Vec::new()) };
    let missing = Firewall::open()?.missing(&member.pod())?;
    Ok(missing.into_iter().map(|what| format!("firewall {what}")).collect())
}

/// So many orphaned elements are named, and removed by the command that is reported with them.
const NAMED: usize = 20;

/// Elements of pods that are gone, and elements that a running pod should not have. A host port among them is refused to other
/// pods, and leads to the next holder of the address. Changes nothing. Pods of other run directories are known by their links;
/// while the alias of one may lack addresses, only elements of links are reported.
pub fn orphans(run_dir: &Path) -> Result<Option<Finding>, Error> {
    let state = NodeState::open_existing(run_dir)?;
    let (mut tables, mut host) = (Firewall::open()?, RtSocket::open()?);
    let mut found = orphans_now(&mut tables, &mut host, state.as_ref())?;
    if !found.is_empty() {
        // A DEL may have ended between the two lists, and an ADD of another run directory has elements before its link.
        let replay = orphans_now(&mut tables, &mut host, state.as_ref())?;
        found.retain(|orphan| replay.contains(orphan));
    }
    if found.is_empty() {
        return Ok(None);
    }
    let names: Vec<&str> = found.iter().map(|orphan| orphan.what.as_str()).take(NAMED).collect();
    let more = found.len().saturating_sub(NAMED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    let what = format!("the firewall has elements that no pod should have: {}{rest}", names.join(", "));
    let deletions: Vec<String> =
        found.iter().take(NAMED).map(|orphan| format!("delete element {}", orphan.element)).collect();
    let finding = Finding::new(types::Code::FirewallOrphans, "tables podwire", what);
    Ok(Some(finding.fix(Fix::words(["nft", &deletions.join("; ")]))))
}

fn orphans_now(
    tables: &mut Firewall,
    host: &mut RtSocket,
    state: Option<&NodeState>,
) -> Result<BTreeSet<PodElement>, Error> {
    // Read before the records: an ADD writes its record first.
    let owned = tables.pod_elements()?.elements;
    let Living { alive, .. } = Living::now(host, state)?;
    Ok(owned.into_iter().filter(|element| alive.lacks(element) || alive.disowns(element)).collect())
}

/// The pods of this node, as far as records, claims and links tell.
#[derive(Debug, Default)]
pub(crate) struct Living {
    pub(crate) alive: LiveOwners,
    /// There are managed links that no readable record knows, as pods of other run directories have them.
    pub(crate) has_others: bool,
}

impl Living {
    pub(crate) fn now(host: &mut RtSocket, state: Option<&NodeState>) -> Result<Self, Error> {
        let (mut living, links) = (Self::default(), host.links()?);
        let (mut keys, mut is_unread) = (BTreeSet::new(), false);
        for network in state.map_or(Ok(Vec::new()), NodeState::networks)? {
            living.alive.addresses.extend(network.claimed()?);
            for listed in network.list()? {
                let Some(attachment) = listed.attachment else {
                    is_unread = true;
                    continue;
                };
                know(&mut living.alive.known, &attachment, listed.phase)?;
                living.alive.addresses.extend(attachment.ips());
                living.alive.links.insert(attachment.host_link.to_string());
                keys.insert((network.name(), attachment.key.file_stem()));
            }
        }
        for link in links {
            if let Some(alias) = Alias::of(&link) {
                living.alive.addresses.extend(alias.ips());
                let is_other = !keys.contains(&(alias.network.to_owned(), alias.stem()));
                living.has_others |= is_other;
                living.alive.has_more_addresses |= is_other && alias.may_lack_addresses;
                if is_other {
                    // A pod of another run directory, or one whose record cannot be read.
                    living.alive.known.leave(&link.name, alias.ips());
                }
            }
            living.alive.links.insert(link.name);
        }
        if is_unread || living.alive.has_more_addresses {
            living.alive.known.leave_addresses();
        }
        Ok(living)
    }
}

/// The elements that these attachments, which are ready, should have.
pub(crate) fn known(attachments: &[Attachment]) -> Result<KnownPods, Error> {
    let mut known = KnownPods::default();
    attachments.iter().try_for_each(|attachment| know(&mut known, attachment, RecordPhase::Ready))?;
    Ok(known)
}

/// A record that was recovered from a link does not have everything that its ADD added to the firewall, such as host ports. A
/// pending one is about to change.
fn know(known: &mut KnownPods, attachment: &Attachment, phase: RecordPhase) -> Result<(), Error> {
    if let Some(member) = FirewallMember::of(attachment) {
        known.want(&member.pod())?;
    }
    match (phase, attachment.netns_cookie) {
        (RecordPhase::Ready, Some(_)) => known.own(&attachment.host_link, attachment.ips()),
        (RecordPhase::Ready, None) | (RecordPhase::Pending, _) => {}
    }
    Ok(())
}

/// Whether the tables are not as all attachments of a run directory need them. Changes nothing.
pub fn drift(run_dir: &Path) -> Result<Option<Finding>, Error> {
    let faults = faults(run_dir)?;
    let message = format!("Podwire's tables are not as they should be: {}", faults.join(", "));
    let found = Finding::new(types::Code::FirewallDrift, "tables podwire", message);
    Ok((!faults.is_empty()).then(|| found.fix(repair_command(run_dir))))
}

fn faults(run_dir: &Path) -> Result<Vec<String>, Error> {
    let Some(state) = NodeState::open_existing(run_dir)? else { return Ok(Vec::new()) };
    let found = faults_of(&state)?;
    if found.is_empty() {
        return Ok(found);
    }
    // A DEL at the same time removes elements before the record: its end is waited for.
    for attachment in ready(&state)? {
        if let Some(network) = state.existing_network(&attachment.key.network) {
            network.find(&attachment.key)?;
        }
    }
    let replay = faults_of(&state)?;
    Ok(found.into_iter().filter(|fault| replay.contains(fault)).collect())
}

fn faults_of(state: &NodeState) -> Result<Vec<String>, Error> {
    let attachments = ready(state)?;
    let members: Vec<FirewallMember<'_>> = attachments.iter().filter_map(FirewallMember::of).collect();
    let pods: Vec<FirewallPod<'_>> = members.iter().map(FirewallMember::pod).collect();
    let mut tables = Firewall::open()?;
    let mut faults = tables.drift(&Structure::of(&pods))?;
    let lacking = tables.missing_of(&pods)?;
    let names = lacking.iter().filter_map(|place| Some(&members.get(*place)?.attachment().key));
    faults.extend(names.map(|key| format!("{key} is not, or not wholly, in the tables")));
    Ok(faults)
}

/// Whether tables that cannot be repaired in place are replaced. Pods of other run directories, and pods whose ADD is in
/// progress, lose their elements then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacing {
    Allowed,
    Refused,
}

/// Repairs the tables without a moment in which a running pod is not in force, and puts all pods back.
pub fn repair(run_dir: &Path, replacing: Replacing) -> Result<(), Error> {
    let Some(state) = NodeState::open_existing(run_dir)? else { return Ok(()) };
    let attachments = ready(&state)?;
    let members: Vec<FirewallMember<'_>> = attachments.iter().filter_map(FirewallMember::of).collect();
    let pods: Vec<FirewallPod<'_>> = members.iter().map(FirewallMember::pod).collect();
    let mut tables = Firewall::open()?;
    let lacking = tables.missing_of(&pods)?;
    match replacing {
        Replacing::Allowed => tables.repair(&Structure::of(&pods), &pods)?,
        Replacing::Refused => tables.repair_in_place(&Structure::of(&pods), &pods)?,
    }
    take_back(&state, &attachments)?;
    // Datagrams that kept coming meanwhile would go on to nowhere.
    let ports: Vec<HostPort> =
        lacking.iter().filter_map(|place| members.get(*place)).flat_map(|it| it.ports.clone()).collect();
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

/// Pods that were deleted while all were put back: no other process would remove their elements.
pub(crate) fn take_back(state: &NodeState, attachments: &[Attachment]) -> Result<(), Error> {
    for attachment in attachments {
        if !is_kept(state, attachment)? {
            remove_pod(attachment, None)?;
        }
    }
    Ok(())
}

fn is_kept(state: &NodeState, attachment: &Attachment) -> Result<bool, Error> {
    let Some(network) = state.existing_network(&attachment.key.network) else { return Ok(false) };
    let stem = attachment.key.file_stem();
    // A DEL that comes after this check removes the elements. A DEL in progress may be past that: its end is waited for.
    if network.path_of(&stem).exists() || network.find_stem(&stem)?.is_some() {
        return Ok(true);
    }
    // Another pod that has the address by now has it in the tables too.
    Ok(attachment.ips().any(|ip| network.is_claimed(ip)))
}

#[cfg(test)]
mod tests {
    use testkit::Lab;

    use super::*;

    #[test]
    fn a8_no_address_is_orphaned_while_an_alias_may_lack_one() {
        let lab = Lab::new("cutalias").unwrap();
        let node = lab.node("n").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let sh = |words: &str| node.sh(&["sh", "-c", words]).unwrap();
        let reported = || {
            let found = node.enter(|| orphans(dir.path()).unwrap()).unwrap();
            found.and_then(|found| found.fix).map_or(String::new(), |fix| fix.to_string())
        };
        sh("nft 'add table inet podwire; add set inet podwire bound4 { type ipv4_addr; };
            add set inet podwire ports { type ifname; };
            add element inet podwire bound4 { 10.50.0.77 }; add element inet podwire ports { pwgone }'");
        sh("ip link add pwother type veth peer name peer");
        sh("ip link set pwother alias 'podwire:red/c1/eth0 10.60.0.2/32 in=shop/front/web'");
        let all = reported();
        assert!(all.contains("10.50.0.77") && all.contains("pwgone"), "{all}");
        let found = node.enter(|| orphans(dir.path()).unwrap()).unwrap().unwrap();
        assert!(found.message.contains("drops traffic from 10.50.0.77"), "{}", found.message);
        // Complete: the words that make it long come after all addresses.
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
