//! Reconciles objects of the node: bridges with their gateways, and forwarding.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};
use netconf::Addresses;
use netlink::{Address, Link, LinkRef, Mode, Op, Route, RouteFilter, SetLink};
use types::{AttachMode, AttachmentKey, Code, Finding, IfName, Mac, NetworkName, ROUTE_PROTOCOL};

use super::diff::has_bridge_name;
use super::gateways::OwnGateways;
use super::subnet::{self, RouteNeed, needs_gateway};
use super::{ReconcileRound, RepairKind};
use crate::alias::BRIDGE_ALIAS;
use crate::bridge::{self, Bridge, Gateway, Spec};
use crate::state::{Attachment, ListedRecord, NetworkState, RecordPhase};
use crate::sysctl::{self, ForwardedFamilies, HostSettings};
use crate::{Error, layer2, settle};

/// Since Linux 6.9, reading a link updates its carrier state at once. Older kernels need a moment. If IPv6 is disabled, the
/// bridge never gets a link-local address, so the number of attempts is limited.
const ATTEMPTS: u32 = 100;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(1);

/// A change of a bridge in this round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BridgeChange {
    Created,
    SetUp,
}

/// The desired state of a bridge, from the records and the agent's network.
#[derive(Debug, Default)]
struct DesiredBridge {
    mtu: Option<u32>,
    /// The gateways and the mode of their pods. If both modes need a gateway, mode `bridge` is used, because only bridged pods need
    /// the route over the bridge.
    gateways: BTreeMap<IpNet, AttachMode>,
}

impl DesiredBridge {
    fn add_gateway(&mut self, gateway: IpNet, mode: AttachMode) {
        match mode {
            AttachMode::Bridge => self.gateways.insert(gateway, mode),
            AttachMode::Routed => Some(*self.gateways.entry(gateway).or_insert(mode)),
        };
    }
}

impl ReconcileRound<'_> {
    pub(super) fn reconcile_node(&mut self, records: &[(NetworkState, Vec<ListedRecord>)]) {
        for (name, desired) in self.desired_bridges(records) {
            if let Err(error) = self.reconcile_bridge(&name, &desired) {
                self.report_bridge_failure(&name, error);
            }
        }
        match bridge::remove_stale_subnets(&mut self.host) {
            Ok(removed) => removed.iter().for_each(|subnet| {
                self.repaired(
                    RepairKind::Route,
                    format_args!("removed the route of type unreachable to {subnet}, which has no gateway"),
                );
            }),
            Err(error) => self.report_failure("unreachable routes", error),
        }
    }

    /// Restores existing bridges of running pods, and nothing else of the node. A bridge that several networks share is restored
    /// with the gateways of all of them.
    pub(super) fn restore_existing_bridges(&mut self, only: Option<&NetworkName>) -> Result<(), Error> {
        let records = self.records()?;
        let is_selected = |network: &NetworkState| {
            only.is_none_or(|only| AttachmentKey::network_dir(only) == network.name())
        };
        let selected =
            records.iter().filter(|(network, _)| is_selected(network)).flat_map(|(_, listed)| listed);
        let selected: BTreeSet<IfName> =
            selected.filter_map(|record| record.attachment.as_ref()).map(|pod| pod.bridge.clone()).collect();
        let ready = records.iter().flat_map(|(_, listed)| listed).filter(|l| l.phase == RecordPhase::Ready);
        self.outcome.attachments = ready.filter_map(|l| l.attachment.clone()).collect();
        let mut failed = Vec::new();
        for (name, desired) in
            self.desired_bridges(&records).into_iter().filter(|(name, _)| selected.contains(name))
        {
            match self.host.link(&name) {
                Ok(Some(_)) => failed.extend(self.reconcile_bridge(&name, &desired).err()),
                Ok(None) => {}
                Err(error) => failed.push(error.into()),
            }
        }
        self.wait_for_changed_bridges();
        failed.extend(std::mem::take(&mut self.outcome.findings).into_iter().map(Error::Degraded));
        Error::collect(failed)
    }

    fn desired_bridges(
        &self,
        records: &[(NetworkState, Vec<ListedRecord>)],
    ) -> BTreeMap<IfName, DesiredBridge> {
        let mut bridges: BTreeMap<IfName, DesiredBridge> = BTreeMap::new();
        let ready = records.iter().flat_map(|(_, listed)| listed).filter(|l| l.phase == RecordPhase::Ready);
        for attachment in ready.filter_map(|l| l.attachment.as_ref()).filter(|a| has_bridge_name(a)) {
            let desired = bridges.entry(attachment.bridge.clone()).or_default();
            desired.mtu = Some(attachment.mtu);
            for gateway in &attachment.wiring.gateways {
                desired.add_gateway(*gateway, attachment.mode);
            }
        }
        if let Some((_, conf)) = self.request.network {
            let desired = bridges.entry(conf.bridge.clone()).or_default();
            desired.mtu = conf.mtu.or(desired.mtu);
            for conf in self.request.other_networks.iter().chain([&conf]) {
                for gateway in own_gateways(&conf.addresses) {
                    desired.add_gateway(gateway, conf.mode);
                }
            }
        }
        // A record that was recovered from a link without its config has no gateways.
        let ready = records.iter().flat_map(|(_, listed)| listed).filter_map(|l| l.attachment.as_ref());
        for attachment in ready.filter(|a| a.mode == AttachMode::Bridge) {
            for (gateway, mode) in bridges.values_mut().flat_map(|desired| &mut desired.gateways) {
                if needs_gateway(attachment, gateway) {
                    *mode = AttachMode::Bridge;
                }
            }
        }
        bridges
    }

    fn reconcile_bridge(&mut self, name: &IfName, desired: &DesiredBridge) -> Result<(), Error> {
        let link = self.host.link(name)?;
        let link = link.map(|link| self.restore_mark(name, link)).transpose()?;
        let (existed, was_up) = (link.is_some(), link.as_ref().is_some_and(|link| link.up));
        // The MTU of an existing bridge is kept unless it is configured, as in an ADD.
        let own = self.request.network.filter(|(_, conf)| conf.bridge == *name);
        let mtu = if existed { own.and_then(|(_, conf)| conf.mtu) } else { desired.mtu };
        let promisc = own.is_some_and(|(_, conf)| conf.promisc);
        let managed = link.as_ref().filter(|link| bridge::is_marked(link));
        if managed.is_some_and(|link| !link.up) {
            disable_dad(name)?;
        }
        // The kernel adds the first link-local address when the bridge gets carrier.
        let link_local =
            managed.filter(|link| link.up && link.running).and_then(|link| link.mac).map(link_local);
        let bridge = bridge::ensure(&mut self.host, &Spec { name, mtu, promisc }, link)?;
        match (existed, was_up) {
            (false, _) => {
                disable_dad(name)?;
                self.changed_bridges.push((name.clone(), BridgeChange::Created));
                self.repaired(RepairKind::Bridge, format_args!("created bridge {name}"));
            }
            (true, false) => {
                self.changed_bridges.push((name.clone(), BridgeChange::SetUp));
                self.repaired(RepairKind::Bridge, format_args!("bridge {name} was down"));
            }
            (true, true) => {}
        }
        if bridge.is_managed() {
            self.restore_settings(&bridge)?;
        }
        let addresses = self.host.addresses(Some(bridge.index))?;
        if let Some((_, conf)) = own {
            self.remove_gateways(
                &bridge,
                &OwnGateways::of(self.request.other_networks.iter().copied().chain([conf])),
                &addresses,
            )?;
        }
        let existing: Vec<IpNet> = addresses.iter().map(|a| a.addr).collect();
        let log = self.state.sysctls();
        let is_missing = |gateway: &IpNet| !bridge::has_gateway(&addresses, gateway);
        for (&address, &mode) in desired.gateways.iter().filter(|(gateway, _)| is_missing(gateway)) {
            let gateway = Gateway { bridge: bridge.index, address, mode };
            let placed = bridge::add_gateway(&mut self.host, &bridge, &gateway, &log)?;
            layer2::refuse_ports(&mut self.host, &bridge, &[placed])?;
            if let Some((_, conf)) = own {
                bridge::resolve_conflicts(&mut self.host, &bridge, conf, &placed)?;
            }
            settle::wait_for_address(&mut self.host, address.addr())?;
            bridge::prepare_unmanaged(&mut self.host, &bridge, &log)?;
            self.repaired(RepairKind::Address, format_args!("added address {address} to bridge {name}"));
        }
        self.restore_subnet_routes(&bridge, desired, &addresses)?;
        let has_ipv6 = desired.gateways.keys().any(|gateway| gateway.addr().is_ipv6());
        if let Some(address) = link_local.filter(|_| has_ipv6 && !existing.iter().any(is_link_local)) {
            let gateway = Gateway { bridge: bridge.index, address, mode: AttachMode::Bridge };
            bridge::add_gateway(&mut self.host, &bridge, &gateway, &log)?;
            self.repaired(RepairKind::Address, format_args!("added address {address} to bridge {name}"));
        }
        self.enable_forwarding(&desired.gateways)
    }

    /// Restores the routes to the subnets of a bridge's gateways: see [`Gateway`].
    fn restore_subnet_routes(
        &mut self,
        bridge: &Bridge,
        desired: &DesiredBridge,
        addresses: &[Address],
    ) -> Result<(), Error> {
        let unreachable = bridge::unreachable_subnets(&mut self.host)?;
        let over_bridge =
            self.host.routes(RouteFilter { link: Some(bridge.index), ..RouteFilter::default() })?;
        for (&address, &mode) in &desired.gateways {
            let gateway = Gateway { bridge: bridge.index, address, mode };
            let Some(route) = gateway.subnet_route() else { continue };
            let bridge_route = over_bridge.iter().find(|route| gateway.is_over_bridge(route));
            let exists = match mode {
                AttachMode::Routed => unreachable.contains(&route.dst),
                AttachMode::Bridge => bridge_route.is_some(),
            };
            if !exists {
                match self.host.run(&Op::AddRoute { route, mode: Mode::Exclusive }) {
                    Err(e) if e.is_exists() => {}
                    other => {
                        other?;
                        let restored = match mode {
                            AttachMode::Routed => format!(
                                "route of type unreachable to {}, which rejects packets to free addresses",
                                route.dst
                            ),
                            AttachMode::Bridge => route.to_string(),
                        };
                        self.repaired(RepairKind::Route, format_args!("restored the {restored}"));
                    }
                }
            }
            // On an unmanaged bridge the operator may have added the address and its route.
            let is_managed = |a: &&Address| a.addr == address && a.protocol == Some(ROUTE_PROTOCOL);
            let may_remove = bridge.is_managed() || addresses.iter().any(|a| is_managed(&a));
            match (mode, bridge_route) {
                (AttachMode::Routed, Some(route)) if may_remove => {
                    self.remove_subnet_route(bridge, &gateway, route)?;
                }
                (AttachMode::Routed, Some(_) | None) | (AttachMode::Bridge, _) => {}
            }
        }
        Ok(())
    }

    fn remove_subnet_route(
        &mut self,
        bridge: &Bridge,
        gateway: &Gateway,
        route: &Route,
    ) -> Result<(), Error> {
        match subnet::remove(&mut self.host, &self.state, (bridge, gateway), route)? {
            RouteNeed::NotNeeded => {
                self.repaired(
                    RepairKind::Route,
                    format_args!("removed the {route}: routed pods do not use it"),
                );
            }
            RouteNeed::Needed => {}
            RouteNeed::MayBeNeeded(record) => {
                let record = record.display();
                let message = format!(
                    "the {route} was not removed, so packets to addresses without a pod create neighbour entries: \
                     {record} cannot be read, and its pod may need the route"
                );
                let finding = Finding::new(Code::RecordUnreadable, format_args!("file {record}"), message);
                self.outcome.findings.push(finding);
            }
        }
        Ok(())
    }

    /// Restores the lost mark of a managed bridge. Without it, cleanup would treat the bridge as unmanaged.
    fn restore_mark(&mut self, name: &IfName, link: Link) -> Result<Link, Error> {
        let Some(kernel_cache) = self.request.kernel_cache else { return Ok(link) };
        if bridge::is_marked(&link) || !kernel_cache.was_managed_bridge(name, link.index) {
            return Ok(link);
        }
        let change = SetLink::of(LinkRef::Index(link.index));
        self.host.run(&Op::SetLink(SetLink { alias: Some(BRIDGE_ALIAS), ..change }))?;
        // An ADD may have cached it as unmanaged in the meantime.
        kernel_cache.forget_bridges();
        self.repaired(RepairKind::Bridge, format_args!("restored the alias of bridge {name}"));
        Ok(Link { alias: Some(BRIDGE_ALIAS.to_owned()), ..link })
    }

    /// Restores settings that a managed bridge was created with.
    fn restore_settings(&mut self, bridge: &Bridge) -> Result<(), Error> {
        if let Some(kernel_cache) = self.request.kernel_cache {
            kernel_cache.remember_managed_bridge(bridge);
        }
        if self.host.snoops_multicast(bridge.index)? == Some(true) {
            let change = SetLink::of(LinkRef::Index(bridge.index));
            self.host.run(&Op::SetLink(SetLink { no_snooping: true, ..change }))?;
            self.repaired(
                RepairKind::Bridge,
                format_args!("disabled multicast snooping of bridge {}", bridge.name),
            );
        }
        if let Some(path) = sysctl::restore_accept_ra(&bridge.name)? {
            self.repaired(RepairKind::Sysctl, format_args!("{} set to 0", path.display()));
        }
        Ok(())
    }

    /// Called after the pods were reconnected to their bridges.
    pub(super) fn wait_for_changed_bridges(&mut self) {
        for (name, change) in std::mem::take(&mut self.changed_bridges) {
            let is_port = |a: &Attachment| a.mode == AttachMode::Bridge && a.bridge == name;
            if self.outcome.attachments.iter().any(is_port)
                && let Err(error) = self.wait_for_bridge(&name, change)
            {
                self.report_bridge_failure(&name, error);
            }
        }
    }

    /// Waits until the bridge has carrier and can resolve neighbours. Reading its state avoids a delay of up to a second.
    fn wait_for_bridge(&mut self, name: &IfName, change: BridgeChange) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let Some(bridge) = self.host.link(name)? else { return Ok(()) };
            let addresses = self.host.addresses(Some(bridge.index))?;
            if bridge.running && addresses.iter().any(|a| is_link_local(&a.addr) && !a.tentative) {
                break;
            }
            std::thread::sleep(ATTEMPT_PAUSE);
        }
        match change {
            BridgeChange::Created => self.announce(name),
            BridgeChange::SetUp => Ok(()),
        }
    }

    /// A new bridge has another MAC. Without an announcement, its pods would send to the old MAC for up to a minute. The kernel
    /// sends announcements when a MAC is set, also if it does not change.
    fn announce(&mut self, name: &IfName) -> Result<(), Error> {
        sysctl::announce_addresses(name)?;
        let Some(bridge) = self.host.link(name)? else { return Ok(()) };
        let change = SetLink::of(LinkRef::Index(bridge.index));
        Ok(self.host.run(&Op::SetLink(SetLink { mac: bridge.mac, ..change }))?)
    }

    fn enable_forwarding(&mut self, gateways: &BTreeMap<IpNet, AttachMode>) -> Result<(), Error> {
        let families = ForwardedFamilies {
            ipv4: gateways.keys().any(|gateway| gateway.addr().is_ipv4()),
            ipv6: gateways.keys().any(|gateway| gateway.addr().is_ipv6()),
        };
        let (log, settings) = (self.state.sysctls(), HostSettings::open(self.request.kernel_cache)?);
        for path in sysctl::enable_forwarding(&mut self.host, &log, families, &settings)? {
            self.repaired(RepairKind::Sysctl, format_args!("{} set to 1", path.display()));
        }
        Ok(())
    }
}

fn is_link_local(address: &IpNet) -> bool {
    matches!(address, IpNet::V6(v6) if v6.addr().is_unicast_link_local())
}

/// The link-local address that the kernel derives from a MAC. The kernel adds it only once: if a program flushes the bridge's
/// addresses, it stays missing, and neighbour solicitations have no source address.
fn link_local(mac: Mac) -> IpNet {
    let [a, b, c, d, e, f] = mac.octets();
    let address = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    IpNet::V6(Ipv6Net::new_assert(address.into(), 64))
}

/// Disables duplicate address detection. During detection the bridge cannot send neighbour solicitations from its link-local
/// address, so pods on a bridge that comes up would be unreachable for a second or two. The MAC of a managed bridge is unique,
/// and so is the address that is derived from it.
fn disable_dad(bridge: &IfName) -> Result<(), Error> {
    let path = Path::new("/proc/sys/net/ipv6/conf").join(bridge.as_str()).join("accept_dad");
    match fs::write(&path, "0") {
        // The kernel has no IPv6.
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map_err(|source| Error::Sysctl { path, value: "0".to_owned(), source }),
    }
}

/// The gateways of a network with addresses that Podwire assigns.
pub(super) fn own_gateways(addresses: &Addresses) -> Vec<IpNet> {
    let Addresses::Own(pools) = addresses else { return Vec::new() };
    let ranges = pools.sets().iter().flat_map(ipam::RangeSet::ranges);
    ranges.filter_map(|range| IpNet::new(range.gateway(), range.subnet().prefix_len()).ok()).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use netconf::NetConf;
    use serde_json::json;
    use testkit::{Lab, Ns, inspect};
    use types::NetworkName;

    use super::*;
    use crate::reconcile::{ReconcileRequest, reconcile};

    /// Runs a round of an agent with these blocks. Returns the addresses of the bridge.
    pub(in crate::reconcile) fn round(node: &Ns, run_dir: &Path, blocks: &str, mode: &str) -> Vec<String> {
        let config = json!({"cniVersion": "1.1.0", "name": "blue", "type": "podwire-cni", "bridge": "pw0",
            "subnet": blocks, "network": "10.88.0.0/16,fd88::/48", "isGateway": true, "mode": mode});
        let conf =
            NetConf::parse(&cni::NetworkConfig::from_slice(config.to_string().as_bytes()).unwrap()).unwrap();
        let name = NetworkName::try_from("blue").unwrap();
        let network = Some((&name, &conf));
        let request = ReconcileRequest {
            run_dir,
            network,
            other_networks: &[],
            mode: Some((&name, conf.mode)),
            earlier_records: &[],
            kernel_cache: None,
            policies: None,
            is_only_agent: || true,
            warn: |message| panic!("{message}"),
        };
        let outcome = node.enter(|| reconcile(request).unwrap()).unwrap();
        assert_eq!(outcome.findings, []);
        inspect::addresses(node, "pw0").unwrap().iter().map(|a| a.net.to_string()).collect()
    }

    #[test]
    fn a6_an_operators_route_on_an_unmanaged_bridge_stays() {
        let lab = Lab::new("operator").unwrap();
        let node = lab.node("n").unwrap();
        let dir = tempfile::tempdir().unwrap();
        node.sh(&["ip", "link", "add", "pw0", "type", "bridge"]).unwrap();
        node.sh(&["ip", "link", "set", "pw0", "up"]).unwrap();
        node.sh(&["ip", "addr", "add", "10.88.1.1/24", "dev", "pw0"]).unwrap();
        let routes = || inspect::routes(&node, inspect::Family::V4).unwrap();
        let over_bridge = || routes().iter().any(|r| r.dst == "10.88.1.0/24" && r.dev.is_some());
        assert!(over_bridge());
        round(&node, dir.path(), "10.88.1.0/24,fd88:0:0:1::/64", "routed");
        assert!(over_bridge(), "{:?}", routes());
        assert!(routes().iter().any(|r| r.dst == "10.88.1.0/24" && r.dev.is_none()), "{:?}", routes());
    }
}
