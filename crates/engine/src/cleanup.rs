//! Uninstall: removes Podwire's objects from the kernel and the disk, and reports objects that remain. While pods of another run
//! directory exist on the node, only objects of this run directory are removed. Objects that the other pods need stay.

mod dependants;
mod peers;
mod sysctls;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use ipnet::IpNet;
use netlink::{Address, Link, Op, RtSocket};
use types::{AttachmentKey, IfName, NetworkName, ROUTE_PROTOCOL};

use crate::alias::Alias;
use crate::bridge::{is_marked, remove_stale_subnets};
use crate::detach::{delete_link, remove_orphan_link};
use crate::state::{Addressing, LOCKS, ListedRecord, NodeState, RunDirs};
use crate::{Caller, Error, firewall, gc};

/// The result of a cleanup.
#[derive(Debug, Default)]
pub struct CleanupReport {
    /// Removed objects and restored settings.
    pub changes: Vec<String>,
    /// Settings that stay because another program needs them. This is no problem.
    pub kept_settings: Vec<String>,
    /// Objects that the operator has to check or remove.
    pub remaining: Vec<String>,
    /// Problems that left no objects behind.
    pub warnings: Vec<String>,
}

impl CleanupReport {
    /// Removes all of Podwire's objects in this network namespace, including pods of other run directories.
    pub fn of_everything(run_dir: &Path) -> Result<Self, Error> {
        clean(run_dir, None, Scope::Everything)
    }
}

/// Removes Podwire's objects in this network namespace, and its state. Objects without Podwire's mark and pods of other run
/// directories are not changed. `configured` is the network and bridge of this run directory, if a config is available. It is
/// needed if the run directory was lost.
pub fn cleanup(run_dir: &Path, configured: Option<(&NetworkName, &IfName)>) -> Result<CleanupReport, Error> {
    clean(run_dir, configured, Scope::Own)
}

#[derive(Debug, Clone, Copy)]
enum Scope {
    Own,
    Everything,
}

fn clean(
    run_dir: &Path,
    configured: Option<(&NetworkName, &IfName)>,
    scope: Scope,
) -> Result<CleanupReport, Error> {
    let mut report = CleanupReport::default();
    let state = NodeState::open_existing(run_dir)?;
    // The records are read before they are removed.
    let own = OwnObjects::of(state.as_ref(), configured)?;
    if let Some(state) = &state {
        remove_attachments(state, &mut report)?;
    }
    let mut host = RtSocket::open()?;
    let other_networks = match scope {
        Scope::Own => OtherNetworks::find(&mut host, &own)?,
        Scope::Everything => OtherNetworks::default(),
    };
    let mut cleanup = CleanupRun { scope, own, other_networks, other_tunnels: 0, host, report };
    cleanup.remove_tunnels()?;
    cleanup.remove_peer_routes()?;
    cleanup.remove_links()?;
    cleanup.remove_bridges()?;
    cleanup.remove_gateways()?;
    cleanup.remove_subnets()?;
    cleanup.remove_tables()?;
    cleanup.remove_network_tables()?;
    cleanup.remove_accept_rules();
    match state {
        Some(state) => cleanup.restore_sysctls(&state)?,
        None => cleanup.report_sysctls(),
    }
    let CleanupRun { other_networks, mut report, host, .. } = cleanup;
    let forgotten = RunDirs::new(host.netns_cookie()?, run_dir).forget();
    forgotten.map_err(|error| {
        Error::NotAvailable(format!("cannot remove {} from {LOCKS}: {error}", run_dir.display()))
    })?;
    report.remaining.extend(other_networks.messages());
    remove_directory(run_dir, &mut report)?;
    Ok(report)
}

/// Names of objects that the run directory uses.
#[derive(Debug, Default)]
struct OwnObjects {
    /// As named in aliases.
    networks: BTreeSet<String>,
    bridges: BTreeSet<String>,
    /// With the name of their bridge.
    gateways: BTreeSet<(String, IpNet)>,
}

impl OwnObjects {
    fn of(state: Option<&NodeState>, configured: Option<(&NetworkName, &IfName)>) -> Result<Self, Error> {
        let mut own = Self::default();
        if let Some((network, bridge)) = configured {
            own.networks.insert(AttachmentKey::network_dir(network));
            own.bridges.insert(bridge.to_string());
        }
        let networks = state.map_or(Ok(Vec::new()), NodeState::networks)?;
        for network in networks {
            own.networks.insert(network.name());
            for attachment in network.list()?.into_iter().filter_map(|listed| listed.attachment) {
                let bridge = attachment.bridge.to_string();
                own.gateways.extend(attachment.wiring.gateways.iter().map(|ip| (bridge.clone(), *ip)));
                own.bridges.insert(bridge);
            }
        }
        Ok(own)
    }
}

/// Networks of other run directories with pods on this node.
#[derive(Debug, Default)]
struct OtherNetworks {
    /// Number of links per network.
    networks: BTreeMap<String, usize>,
    addresses: Vec<IpAddr>,
}

impl OtherNetworks {
    fn find(host: &mut RtSocket, own: &OwnObjects) -> Result<Self, Error> {
        let mut other = Self::default();
        for link in host.links()? {
            let alias = Alias::of(&link).filter(|alias| !own.networks.contains(alias.network));
            let Some(alias) = alias else { continue };
            *other.networks.entry(alias.network.to_owned()).or_default() += 1;
            other.addresses.extend(alias.ips());
        }
        Ok(other)
    }

    fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    fn has(&self, link: &Link) -> bool {
        Alias::of(link).is_some_and(|alias| self.networks.contains_key(alias.network))
    }

    /// Whether their pods have addresses in this subnet. Then they need its gateway.
    fn has_address_in(&self, subnet: &IpNet) -> bool {
        self.addresses.iter().any(|address| subnet.contains(address))
    }

    /// The names, for messages.
    fn names(&self) -> String {
        let names: Vec<&str> = self.networks.keys().map(String::as_str).collect();
        format!("network {} of another run directory", names.join(", "))
    }

    fn messages(&self) -> impl Iterator<Item = String> {
        self.networks.iter().map(|(network, count)| {
            format!(
                "network {network} stays, with {}: it belongs to another run directory, and \
                 `podwire cleanup --run-dir` of that directory removes it",
                types::count(*count as u64, "link")
            )
        })
    }
}

/// Removes the run directory, including lock, socket and tombstones of an agent. A directory of an earlier boot or without
/// attachments is removed too. A directory without a lock file of Podwire is not Podwire's.
fn remove_directory(run_dir: &Path, report: &mut CleanupReport) -> Result<(), Error> {
    let is_file = |name: &str| run_dir.join(name).symlink_metadata().is_ok_and(|meta| meta.is_file());
    if !["podwire.lock", "agent.lock"].into_iter().any(is_file) {
        return Ok(());
    }
    let socket = netconf::default_socket(run_dir);
    if socket.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket())
        && let Err(error) = fs::remove_file(&socket)
    {
        report.remaining.push(format!("{} stays: {error}", socket.display()));
    }
    NodeState::open(run_dir)?.remove()?;
    let remaining: Vec<String> = fs::read_dir(run_dir)
        .map(|entries| {
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        })
        .unwrap_or_default();
    if remaining.is_empty() {
        report.changes.push(format!("state directory {} removed", run_dir.display()));
    } else {
        report.changes.push(format!("state in {} removed", run_dir.display()));
        let remaining = remaining.join(", ");
        report.remaining.push(format!(
            "directory {} stays: it contains files that Podwire did not write ({remaining})",
            run_dir.display()
        ));
    }
    Ok(())
}

fn remove_attachments(state: &NodeState, report: &mut CleanupReport) -> Result<(), Error> {
    for network in state.networks()? {
        let all = network.list()?;
        let count = all.len();
        report.remaining.extend(leases(&all));
        let find = |listed: &ListedRecord| Ok(network.find_stem(&listed.stem)?);
        let warnings = Mutex::new(Vec::new());
        let warn = |message: &str| {
            warnings.lock().unwrap_or_else(PoisonError::into_inner).push(message.to_owned());
        };
        let errors = gc::undo_all(all, find, |held| gc::undo_held(held, &Caller::standalone(&warn)));
        report.warnings.extend(warnings.into_inner().unwrap_or_else(PoisonError::into_inner));
        report.remaining.extend(errors.iter().map(|error| format!("attachment not removed: {error}")));
        if count > errors.len() {
            let removed = types::count((count - errors.len()) as u64, "attachment");
            report.changes.push(format!("{removed} of {} removed", network.name()));
        }
    }
    Ok(())
}

/// Reports addresses that stay allocated in IPAM plugins. No plugin can be called, because no config is known here.
fn leases(all: &[ListedRecord]) -> Vec<String> {
    let mut pods: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for attachment in all.iter().filter_map(|l| l.attachment.as_ref()).filter(|a| a.delegated) {
        let is_dhcp = attachment.addressing == Addressing::Dhcp;
        let unnamed = if is_dhcp { "dhcp" } else { "that the network's config names" };
        let plugin = attachment.ipam_plugin.as_deref().unwrap_or(unnamed);
        let ips: Vec<String> = attachment.ips().map(|ip| ip.to_string()).collect();
        let ips = if ips.is_empty() { String::new() } else { format!(" ({})", ips.join(", ")) };
        pods.entry(plugin).or_default().push(format!("{}{ips}", attachment.key));
    }
    let line = |(plugin, pods): (&str, Vec<String>)| {
        format!(
            "IPAM plugin {plugin} was not called and still has the addresses of {} allocated: release them there",
            pods.join(", ")
        )
    };
    pods.into_iter().map(line).collect()
}

/// Removes kernel objects after the attachments were removed.
struct CleanupRun {
    scope: Scope,
    own: OwnObjects,
    other_networks: OtherNetworks,
    /// Number of tunnels of other run directories.
    other_tunnels: usize,
    host: RtSocket,
    report: CleanupReport,
}

impl CleanupRun {
    /// Removes links without a record.
    fn remove_links(&mut self) -> Result<(), Error> {
        for link in self.host.links()? {
            if Alias::of(&link).is_none() || self.other_networks.has(&link) {
                continue;
            }
            if self.other_networks.is_empty() {
                delete_link(&mut self.host, link.index)?;
            } else {
                // The tables stay, so elements of the link have to be removed.
                remove_orphan_link(&mut self.host, &link, None)?;
            }
            self.report.changes.push(format!("link {} removed", link.name));
        }
        Ok(())
    }

    /// Removes bridges that Podwire created and that are not in use.
    fn remove_bridges(&mut self) -> Result<(), Error> {
        let links = self.host.links()?;
        for bridge in links.iter().filter(|link| is_marked(link)) {
            let name = &bridge.name;
            if let Some(port) = links.iter().find(|port| port.master == Some(bridge.index)) {
                self.report.remaining.push(format!("bridge {name} stays: {} is a port of it", port.name));
            } else if self.may_be_needed(bridge)? {
                let networks = self.other_networks.names();
                self.report.remaining.push(format!("bridge {name} stays: {networks} may need it"));
            } else {
                delete_link(&mut self.host, bridge.index)?;
                self.report.changes.push(format!("bridge {name} removed"));
            }
        }
        Ok(())
    }

    /// Whether a network of another run directory may need the bridge: it has their gateway, or this run directory does not use
    /// it. Ports are no indication, because in mode `routed` a bridge has none.
    fn may_be_needed(&mut self, bridge: &Link) -> Result<bool, Error> {
        if self.other_networks.is_empty() {
            return Ok(false);
        }
        let addresses = self.host.addresses(Some(bridge.index))?;
        let is_own = self.own.bridges.contains(&bridge.name);
        Ok(!is_own || addresses.iter().any(|address| self.other_networks.has_address_in(&address.addr)))
    }

    /// Removes Podwire's gateways from bridges that stay. Only bridges are checked: if this node is itself a pod of Podwire,
    /// addresses of other links with the same protocol are its own. Kernels before 5.18 do not store the protocol of an address.
    /// There the gateways stay.
    fn remove_gateways(&mut self) -> Result<(), Error> {
        let is_bridge = |link: &Link| link.kind.as_deref() == Some("bridge");
        for bridge in self.host.links()?.into_iter().filter(is_bridge) {
            let name = &bridge.name;
            let all = self.host.addresses(Some(bridge.index))?;
            let (gateways, unmanaged): (Vec<Address>, Vec<Address>) =
                all.into_iter().partition(|a| a.protocol == Some(ROUTE_PROTOCOL));
            for gateway in gateways.iter().map(|address| address.addr) {
                if !self.other_networks.is_empty() && !self.own.gateways.contains(&(name.clone(), gateway)) {
                    continue;
                }
                // The kernel removes secondary addresses of a subnet together with the primary one.
                let secondary = unmanaged.iter().find(|other| other.addr.trunc() == gateway.trunc());
                let reason = match secondary {
                    Some(other) => Some(format!("{} may be a secondary address of it", other.addr)),
                    None => self
                        .other_networks
                        .has_address_in(&gateway)
                        .then(|| format!("{} needs it", self.other_networks.names())),
                };
                if let Some(reason) = reason {
                    self.report.remaining.push(format!("address {gateway} of bridge {name} stays: {reason}"));
                    continue;
                }
                self.host.run(&Op::DelAddress { link: bridge.index, addr: gateway })?;
                self.report.changes.push(format!("address {gateway} of bridge {name} removed"));
            }
        }
        Ok(())
    }

    /// Removes unreachable routes to subnets without a gateway.
    fn remove_subnets(&mut self) -> Result<(), Error> {
        for subnet in remove_stale_subnets(&mut self.host)? {
            self.report.changes.push(format!("unreachable route to {subnet} removed"));
        }
        Ok(())
    }

    /// Elements of pods were removed with the pods. Only chains without elements remain.
    fn remove_tables(&mut self) -> Result<(), Error> {
        if !self.other_networks.is_empty() {
            let networks: Vec<String> = self.own.networks.iter().cloned().collect();
            firewall::prune(nft::IdleChains::RemoveAll, &networks, None)?;
            let other_networks = self.other_networks.names();
            self.report.remaining.push(format!("nftables tables podwire stay: {other_networks} uses them"));
        } else if nft::Firewall::open()?.cleanup()? {
            self.report.changes.push("nftables tables podwire removed".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use netlink::NetNs;

    use super::*;
    use crate::alias::BRIDGE_ALIAS;

    /// Links of two networks, a bridge with the gateway of the second network, and no state.
    const SETUP: [&str; 6] = [
        "link add pwblue type veth peer name peer-blue",
        "link set pwblue alias podwire:blue/a/eth0",
        "link add pwred type veth peer name peer-red",
        "link add blue0 type bridge",
        "link add red0 type bridge",
        "addr add 10.61.0.1/24 dev red0",
    ];

    fn ip(words: &[&str]) {
        assert!(Command::new("ip").args(words).status().unwrap().success(), "{words:?}");
    }

    /// The managed links that exist after `clean`, in a new namespace.
    fn links_after(clean: impl Fn(&Path) -> CleanupReport + Sync) -> (Vec<String>, CleanupReport) {
        let in_a_namespace = || {
            for line in SETUP {
                ip(&line.split(' ').collect::<Vec<_>>());
            }
            ip(&["link", "set", "pwred", "alias", "podwire:red/b/eth0 10.61.0.2/32"]);
            for bridge in ["blue0", "red0"] {
                ip(&["link", "set", bridge, "alias", BRIDGE_ALIAS]);
            }
            let report = clean(Path::new("/nonexistent/podwire"));
            let links = RtSocket::open().unwrap().links().unwrap();
            let marked = links.into_iter().filter(|link| link.alias.is_some());
            (marked.map(|link| link.name).collect(), report)
        };
        NetNs::create().unwrap().run(in_a_namespace).unwrap()
    }

    #[test]
    fn f7_only_the_configured_network_is_removed_while_another_exists() {
        let (network, bridge) = ("blue".try_into().unwrap(), "blue0".try_into().unwrap());
        let (links, report) = links_after(|dir| cleanup(dir, Some((&network, &bridge))).unwrap());
        assert_eq!(links, ["pwred", "red0"], "{report:?}");
        assert!(report.remaining.iter().any(|line| line.starts_with("network red stays")), "{report:?}");
    }

    /// A configured bridge is not removed while it has the gateway of another network.
    #[test]
    fn f7_a_bridge_with_another_networks_gateway_stays() {
        let (network, bridge) = ("blue".try_into().unwrap(), "red0".try_into().unwrap());
        let (links, report) = links_after(|dir| cleanup(dir, Some((&network, &bridge))).unwrap());
        assert_eq!(links, ["pwred", "blue0", "red0"], "{report:?}");
    }

    #[test]
    fn f7_cleanup_of_everything_removes_other_run_directories_pods() {
        let (links, report) = links_after(|dir| CleanupReport::of_everything(dir).unwrap());
        assert_eq!((links.len(), report.remaining.len()), (0, 0), "{links:?} {report:?}");
    }
}
