//! Uninstall: everything of ours leaves the kernel and the disk, and what cannot be given back is said. Where pods of
//! another run directory live on the node, only what this directory knows goes: theirs stay, with all that they need.

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
use crate::detach::{delete_link, remove_stray};
use crate::state::{Addressing, LOCKS, ListedRecord, NodeState, RunDirs};
use crate::{Caller, Error, firewall, gc};

/// What cleanup did.
#[derive(Debug, Default)]
pub struct CleanupReport {
    pub done: Vec<String>,
    /// Settings that stay because another program needs them by now. No problem.
    pub kept: Vec<String>,
    /// What the operator has to decide or remove.
    pub left: Vec<String>,
    /// Problems that left nothing behind.
    pub warnings: Vec<String>,
}

impl CleanupReport {
    /// Removes everything of ours in this network namespace, also the pods of other run directories.
    pub fn of_everything(run_dir: &Path) -> Result<Self, Error> {
        clean(run_dir, None, Scope::Everything)
    }
}

/// Removes what Podwire made in this network namespace, and its state. Nothing that is not marked as ours is touched, and
/// nothing of another run directory's pods. `configured` is this directory's network and bridge, where a configuration tells
/// them: it does so even when the directory was lost.
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
    // The records tell it, so before they go.
    let own = Own::of(state.as_ref(), configured)?;
    if let Some(state) = &state {
        remove_attachments(state, &mut report)?;
    }
    let mut host = RtSocket::open()?;
    let others = match scope {
        Scope::Own => OtherNetworks::find(&mut host, &own)?,
        Scope::Everything => OtherNetworks::default(),
    };
    let mut leaving = Leaving { scope, own, others, strange_tunnels: 0, host, report };
    leaving.remove_tunnels()?;
    leaving.remove_peer_routes()?;
    leaving.remove_links()?;
    leaving.remove_bridges()?;
    leaving.remove_gateways()?;
    leaving.remove_subnets()?;
    leaving.remove_tables()?;
    leaving.remove_network_tables()?;
    leaving.withdraw_rules();
    match state {
        Some(state) => leaving.restore_sysctls(&state)?,
        None => leaving.report_sysctls(),
    }
    let Leaving { others, mut report, host, .. } = leaving;
    let listed = RunDirs::new(host.netns_cookie()?, run_dir).forget();
    listed.map_err(|error| {
        Error::NotAvailable(format!("cannot remove {} from {LOCKS}: {error}", run_dir.display()))
    })?;
    report.left.extend(others.sentences());
    remove_directory(run_dir, &mut report)?;
    Ok(report)
}

/// What the run directory knows.
#[derive(Debug, Default)]
struct Own {
    /// As aliases call them.
    networks: BTreeSet<String>,
    bridges: BTreeSet<String>,
    /// With the bridge that carries them.
    gateways: BTreeSet<(String, IpNet)>,
}

impl Own {
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

/// Networks of other run directories whose pods live on this node.
#[derive(Debug, Default)]
struct OtherNetworks {
    /// How many links each has.
    networks: BTreeMap<String, usize>,
    addresses: Vec<IpAddr>,
}

impl OtherNetworks {
    fn find(host: &mut RtSocket, own: &Own) -> Result<Self, Error> {
        let mut others = Self::default();
        for link in host.links()? {
            let alias = Alias::of(&link).filter(|alias| !own.networks.contains(alias.network));
            let Some(alias) = alias else { continue };
            *others.networks.entry(alias.network.to_owned()).or_default() += 1;
            others.addresses.extend(alias.ips());
        }
        Ok(others)
    }

    fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    fn has(&self, link: &Link) -> bool {
        Alias::of(link).is_some_and(|alias| self.networks.contains_key(alias.network))
    }

    /// Do their pods have addresses of this subnet? Its gateway is then theirs too.
    fn live_in(&self, subnet: &IpNet) -> bool {
        self.addresses.iter().any(|address| subnet.contains(address))
    }

    /// For messages.
    fn names(&self) -> String {
        let names: Vec<&str> = self.networks.keys().map(String::as_str).collect();
        format!("network {} of another run directory", names.join(", "))
    }

    fn sentences(&self) -> impl Iterator<Item = String> {
        self.networks.iter().map(|(network, count)| {
            format!(
                "network {network} stays, with {}: it is of another run directory, and \
                 `podwire cleanup --run-dir` of that directory removes it",
                types::count(*count as u64, "link")
            )
        })
    }
}

/// With what an agent left in it: lock, socket, tombstones. One of an earlier boot goes too, and one in which nothing was
/// attached yet; a directory that nobody of ours ever locked is not ours.
fn remove_directory(run_dir: &Path, report: &mut CleanupReport) -> Result<(), Error> {
    let is_there = |name: &str| run_dir.join(name).symlink_metadata().is_ok_and(|meta| meta.is_file());
    if !["podwire.lock", "agent.lock"].into_iter().any(is_there) {
        return Ok(());
    }
    let socket = netconf::default_socket(run_dir);
    if socket.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket())
        && let Err(error) = fs::remove_file(&socket)
    {
        report.left.push(format!("{} stays: {error}", socket.display()));
    }
    NodeState::open(run_dir)?.remove()?;
    let rest: Vec<String> = fs::read_dir(run_dir)
        .map(|entries| {
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        })
        .unwrap_or_default();
    if rest.is_empty() {
        report.done.push(format!("state directory {} removed", run_dir.display()));
    } else {
        report.done.push(format!("state in {} removed", run_dir.display()));
        let rest = rest.join(", ");
        report.left.push(format!(
            "directory {} stays: it holds files that Podwire did not write ({rest})",
            run_dir.display()
        ));
    }
    Ok(())
}

fn remove_attachments(state: &NodeState, report: &mut CleanupReport) -> Result<(), Error> {
    for network in state.networks()? {
        let all = network.list()?;
        let count = all.len();
        report.left.extend(leases(&all));
        let find = |listed: &ListedRecord| Ok(network.find_stem(&listed.stem)?);
        let warnings = Mutex::new(Vec::new());
        let warn = |message: &str| {
            warnings.lock().unwrap_or_else(PoisonError::into_inner).push(message.to_owned());
        };
        let errors = gc::undo_all(all, find, |held| gc::undo_held(held, &Caller::standalone(&warn)));
        report.warnings.extend(warnings.into_inner().unwrap_or_else(PoisonError::into_inner));
        report.left.extend(errors.iter().map(|error| format!("attachment not removed: {error}")));
        if count > errors.len() {
            let removed = types::count((count - errors.len()) as u64, "attachment");
            report.done.push(format!("{removed} of {} removed", network.name()));
        }
    }
    Ok(())
}

/// No config is known here, so that no IPAM plugin can be called: which addresses of which plugin stay taken.
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
            "IPAM plugin {plugin} was not called and keeps the addresses of {}: release them there",
            pods.join(", ")
        )
    };
    pods.into_iter().map(line).collect()
}

/// The kernel's part, after the attachments.
struct Leaving {
    scope: Scope,
    own: Own,
    others: OtherNetworks,
    /// Those of other run directories.
    strange_tunnels: usize,
    host: RtSocket,
    report: CleanupReport,
}

impl Leaving {
    /// Links whose record is gone.
    fn remove_links(&mut self) -> Result<(), Error> {
        for link in self.host.links()? {
            if Alias::of(&link).is_none() || self.others.has(&link) {
                continue;
            }
            if self.others.is_empty() {
                delete_link(&mut self.host, link.index)?;
            } else {
                // The tables stay: what they have of it goes by itself.
                remove_stray(&mut self.host, &link, None)?;
            }
            self.report.done.push(format!("link {} removed", link.name));
        }
        Ok(())
    }

    /// The bridges that we made and nobody else uses.
    fn remove_bridges(&mut self) -> Result<(), Error> {
        let links = self.host.links()?;
        for bridge in links.iter().filter(|link| is_marked(link)) {
            let name = &bridge.name;
            if let Some(port) = links.iter().find(|port| port.master == Some(bridge.index)) {
                self.report.left.push(format!("bridge {name} stays: {} is a port of it", port.name));
            } else if self.may_need(bridge)? {
                let others = self.others.names();
                self.report.left.push(format!("bridge {name} stays: {others} may need it"));
            } else {
                delete_link(&mut self.host, bridge.index)?;
                self.report.done.push(format!("bridge {name} removed"));
            }
        }
        Ok(())
    }

    /// In mode `routed` a bridge has no ports: that it carries their gateway tells, and whether it is known here at all.
    fn may_need(&mut self, bridge: &Link) -> Result<bool, Error> {
        if self.others.is_empty() {
            return Ok(false);
        }
        let carried = self.host.addresses(Some(bridge.index))?;
        let is_own = self.own.bridges.contains(&bridge.name);
        Ok(!is_own || carried.iter().any(|address| self.others.live_in(&address.addr)))
    }

    /// The gateways that we put on bridges that stay; those on others went with them. Only bridges: where this node is
    /// itself a pod, an address with our mark on another link is its own. Kernels before 5.18 keep no mark: there they
    /// stay.
    fn remove_gateways(&mut self) -> Result<(), Error> {
        let is_bridge = |link: &Link| link.kind.as_deref() == Some("bridge");
        for bridge in self.host.links()?.into_iter().filter(is_bridge) {
            let name = &bridge.name;
            let all = self.host.addresses(Some(bridge.index))?;
            let (ours, rest): (Vec<Address>, Vec<Address>) =
                all.into_iter().partition(|a| a.protocol == Some(ROUTE_PROTOCOL));
            for gateway in ours.iter().map(|address| address.addr) {
                if !self.others.is_empty() && !self.own.gateways.contains(&(name.clone(), gateway)) {
                    continue;
                }
                // The kernel removes the later addresses of a subnet together with its first.
                let hangs = rest.iter().find(|other| other.addr.trunc() == gateway.trunc());
                let why = match hangs {
                    Some(other) => Some(format!("{} may hang on it", other.addr)),
                    None => {
                        self.others.live_in(&gateway).then(|| format!("{} needs it", self.others.names()))
                    }
                };
                if let Some(why) = why {
                    self.report.left.push(format!("address {gateway} of bridge {name} stays: {why}"));
                    continue;
                }
                self.host.run(&Op::DelAddress { link: bridge.index, addr: gateway })?;
                self.report.done.push(format!("address {gateway} of bridge {name} removed"));
            }
        }
        Ok(())
    }

    /// The unreachable routes to subnets whose gateway went.
    fn remove_subnets(&mut self) -> Result<(), Error> {
        for subnet in remove_stale_subnets(&mut self.host)? {
            self.report.done.push(format!("unreachable route to {subnet} removed"));
        }
        Ok(())
    }

    /// The elements of our pods went with them; what is left is chains without any.
    fn remove_tables(&mut self) -> Result<(), Error> {
        if !self.others.is_empty() {
            let networks: Vec<String> = self.own.networks.iter().cloned().collect();
            firewall::prune(nft::Idle::RemoveAll, &networks, None)?;
            let others = self.others.names();
            self.report.left.push(format!("nftables tables podwire stay: {others} uses them"));
        } else if nft::Firewall::open()?.cleanup()? {
            self.report.done.push("nftables tables podwire removed".to_owned());
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

    /// Two links of two networks, with a bridge that carries the gateway of the second, and no state at all.
    const SCENE: [&str; 6] = [
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

    /// Which links are there after `clean`, in a namespace of their own.
    fn links_after(clean: impl Fn(&Path) -> CleanupReport + Sync) -> (Vec<String>, CleanupReport) {
        let in_a_namespace = || {
            for line in SCENE {
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
    fn f7_only_the_configured_network_goes_while_another_lives() {
        let (network, bridge) = ("blue".try_into().unwrap(), "blue0".try_into().unwrap());
        let (links, report) = links_after(|dir| cleanup(dir, Some((&network, &bridge))).unwrap());
        assert_eq!(links, ["pwred", "red0"], "{report:?}");
        assert!(report.left.iter().any(|line| line.starts_with("network red stays")), "{report:?}");
    }

    /// A bridge that a config names is not ours to remove while it carries another network's gateway.
    #[test]
    fn f7_a_bridge_with_anothers_gateway_stays() {
        let (network, bridge) = ("blue".try_into().unwrap(), "red0".try_into().unwrap());
        let (links, report) = links_after(|dir| cleanup(dir, Some((&network, &bridge))).unwrap());
        assert_eq!(links, ["pwred", "blue0", "red0"], "{report:?}");
    }

    #[test]
    fn f7_everything_means_the_pods_of_others_too() {
        let (links, report) = links_after(|dir| CleanupReport::of_everything(dir).unwrap());
        assert_eq!((links.len(), report.left.len()), (0, 0), "{links:?} {report:?}");
    }
}
