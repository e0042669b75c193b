//! What belongs to the node and not to one pod: bridges with their gateways, and forwarding.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};
use netconf::Addresses;
use netlink::{Address, Link, LinkRef, Mode, Op, Route, RouteFilter, SetLink};
use types::{AttachMode, AttachmentKey, Code, Finding, IfName, Mac, NetworkName, ROUTE_PROTOCOL};

use super::diff::knows_bridge;
use super::gateways::OwnGateways;
use super::subnet::{self, RouteRemoval, needs};
use super::{ReconcileRound, RepairKind};
use crate::alias::BRIDGE_ALIAS;
use crate::bridge::{self, Bridge, Gateway, Spec};
use crate::state::{Attachment, ListedRecord, NetworkState, RecordPhase};
use crate::sysctl::{self, ForwardedFamilies, HostSettings};
use crate::{Error, layer2, settle};

/// Reading a link lets it carry at once since Linux 6.9; before, it takes a moment. Where IPv6 is off there is no
/// link-local address to come.
const LOOKS: u32 = 100;
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// A bridge that was not in force when the round began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renewed {
    Made,
    PutUp,
}

/// A bridge as the records and the agent's own network want it.
#[derive(Debug, Default)]
struct WantedBridge {
    mtu: Option<u32>,
    /// With the kind of pods that need them. Where both do, the bridge's pods need more.
    gateways: BTreeMap<IpNet, AttachMode>,
}

impl WantedBridge {
    fn add_gateway(&mut self, gateway: IpNet, mode: AttachMode) {
        match mode {
            AttachMode::Bridge => self.gateways.insert(gateway, mode),
            AttachMode::Routed => Some(*self.gateways.entry(gateway).or_insert(mode)),
        };
    }
}

impl ReconcileRound<'_> {
    pub(super) fn node(&mut self, records: &[(NetworkState, Vec<ListedRecord>)]) {
        for (name, wanted) in self.bridges(records) {
            if let Err(error) = self.bridge(&name, &wanted) {
                self.bridge_trouble(&name, error);
            }
        }
        match bridge::remove_stale_subnets(&mut self.host) {
            Ok(removed) => removed.iter().for_each(|subnet| {
                self.repaired(
                    RepairKind::Route,
                    format_args!("removed the unreachable route to {subnet}, which has no gateway here"),
                );
            }),
            Err(error) => self.trouble("unreachable routes", error),
        }
    }

    /// The bridges of running pods that exist, without the rest of the node. A bridge that several networks share is restored
    /// with the gateways of all of them.
    pub(super) fn existing_bridges(&mut self, only: Option<&NetworkName>) -> Result<(), Error> {
        let records = self.records()?;
        let is_asked = |network: &NetworkState| {
            only.is_none_or(|only| AttachmentKey::network_dir(only) == network.name())
        };
        let asked = records.iter().filter(|(network, _)| is_asked(network)).flat_map(|(_, listed)| listed);
        let asked: BTreeSet<IfName> =
            asked.filter_map(|one| one.attachment.as_ref()).map(|pod| pod.bridge.clone()).collect();
        let ready = records.iter().flat_map(|(_, listed)| listed).filter(|l| l.phase == RecordPhase::Ready);
        self.outcome.attachments = ready.filter_map(|l| l.attachment.clone()).collect();
        let mut failed = Vec::new();
        for (name, wanted) in self.bridges(&records).into_iter().filter(|(name, _)| asked.contains(name)) {
            match self.host.link(&name) {
                Ok(Some(_)) => failed.extend(self.bridge(&name, &wanted).err()),
                Ok(None) => {}
                Err(error) => failed.push(error.into()),
            }
        }
        self.settle_bridges();
        failed.extend(std::mem::take(&mut self.outcome.findings).into_iter().map(Error::Degraded));
        Error::collect(failed)
    }

    fn bridges(&self, records: &[(NetworkState, Vec<ListedRecord>)]) -> BTreeMap<IfName, WantedBridge> {
        let mut bridges: BTreeMap<IfName, WantedBridge> = BTreeMap::new();
        let ready = records.iter().flat_map(|(_, listed)| listed).filter(|l| l.phase == RecordPhase::Ready);
        for attachment in ready.filter_map(|l| l.attachment.as_ref()).filter(|a| knows_bridge(a)) {
            let wanted = bridges.entry(attachment.bridge.clone()).or_default();
            wanted.mtu = Some(attachment.mtu);
            for gateway in &attachment.wiring.gateways {
                wanted.add_gateway(*gateway, attachment.mode);
            }
        }
        if let Some((_, conf)) = self.order.network {
            let wanted = bridges.entry(conf.bridge.clone()).or_default();
            wanted.mtu = conf.mtu.or(wanted.mtu);
            for gateway in own_gateways(&conf.addresses) {
                wanted.add_gateway(gateway, conf.mode);
            }
        }
        // A record that was restored from a link alone does not name its gateways.
        let ready = records.iter().flat_map(|(_, listed)| listed).filter_map(|l| l.attachment.as_ref());
        for attachment in ready.filter(|a| a.mode == AttachMode::Bridge) {
            for (gateway, mode) in bridges.values_mut().flat_map(|wanted| &mut wanted.gateways) {
                if needs(attachment, gateway) {
                    *mode = AttachMode::Bridge;
                }
            }
        }
        bridges
    }

    fn bridge(&mut self, name: &IfName, wanted: &WantedBridge) -> Result<(), Error> {
        let found = self.host.link(name)?;
        let found = found.map(|link| self.mark(name, link)).transpose()?;
        let (was_there, was_up) = (found.is_some(), found.as_ref().is_some_and(|link| link.up));
        // An MTU that somebody gave the bridge stays, as it does when a pod is attached.
        let own = self.order.network.filter(|(_, conf)| conf.bridge == *name);
        let mtu = if was_there { own.and_then(|(_, conf)| conf.mtu) } else { wanted.mtu };
        let promisc = own.is_some_and(|(_, conf)| conf.promisc);
        let ours = found.as_ref().filter(|link| bridge::is_marked(link));
        if ours.is_some_and(|link| !link.up) {
            skip_detection(name)?;
        }
        // It gets its first one from the kernel when it begins to carry.
        let link_local =
            ours.filter(|link| link.up && link.running).and_then(|link| link.mac).map(link_local);
        let bridge = bridge::ensure(&mut self.host, &Spec { name, mtu, promisc }, found)?;
        match (was_there, was_up) {
            (false, _) => {
                skip_detection(name)?;
                self.renewed.push((name.clone(), Renewed::Made));
                self.repaired(RepairKind::Bridge, format_args!("bridge {name} made"));
            }
            (true, false) => {
                self.renewed.push((name.clone(), Renewed::PutUp));
                self.repaired(RepairKind::Bridge, format_args!("bridge {name} was down"));
            }
            (true, true) => {}
        }
        if bridge.is_ours() {
            self.keep_settings(&bridge)?;
        }
        let addresses = self.host.addresses(Some(bridge.index))?;
        if let Some((_, conf)) = own {
            self.remove_gateways(&bridge, &OwnGateways::of([conf]), &addresses)?;
        }
        let carried: Vec<IpNet> = addresses.iter().map(|a| a.addr).collect();
        let log = self.state.sysctls();
        let lacks = |gateway: &IpNet| !bridge::carries(&addresses, gateway);
        for (&address, &mode) in wanted.gateways.iter().filter(|(gateway, _)| lacks(gateway)) {
            let gateway = Gateway { bridge: bridge.index, address, mode };
            let placed = bridge::put_gateway(&mut self.host, &bridge, &gateway, &log)?;
            layer2::refuse_ports(&mut self.host, &bridge, &[placed])?;
            if let Some((_, conf)) = own {
                bridge::resolve_conflicts(&mut self.host, &bridge, conf, &placed)?;
            }
            settle::wait_for_address(&mut self.host, address.addr())?;
            bridge::adopt(&mut self.host, &bridge, &log)?;
            self.repaired(RepairKind::Address, format_args!("address {address} put on bridge {name}"));
        }
        self.subnets(&bridge, wanted, &addresses)?;
        let has_ipv6 = wanted.gateways.keys().any(|gateway| gateway.addr().is_ipv6());
        if let Some(address) = link_local.filter(|_| has_ipv6 && !carried.iter().any(is_link_local)) {
            let gateway = Gateway { bridge: bridge.index, address, mode: AttachMode::Bridge };
            bridge::put_gateway(&mut self.host, &bridge, &gateway, &log)?;
            self.repaired(RepairKind::Address, format_args!("address {address} put on bridge {name}"));
        }
        self.forwarding(&wanted.gateways)
    }

    /// The routes to the subnets of a bridge's gateways, as their pods need them: see [`Gateway`].
    fn subnets(&mut self, bridge: &Bridge, wanted: &WantedBridge, carried: &[Address]) -> Result<(), Error> {
        let unreachable = bridge::unreachable_subnets(&mut self.host)?;
        let over_bridge =
            self.host.routes(RouteFilter { link: Some(bridge.index), ..RouteFilter::default() })?;
        for (&address, &mode) in &wanted.gateways {
            let gateway = Gateway { bridge: bridge.index, address, mode };
            let Some(route) = gateway.subnet_route() else { continue };
            let surplus = over_bridge.iter().find(|route| gateway.is_over_bridge(route));
            let is_there = match mode {
                AttachMode::Routed => unreachable.contains(&route.dst),
                AttachMode::Bridge => surplus.is_some(),
            };
            if !is_there {
                match self.host.run(&Op::AddRoute { route, mode: Mode::Exclusive }) {
                    Err(e) if e.is_exists() => {}
                    other => {
                        other?;
                        self.repaired(RepairKind::Route, format_args!("restored the {route}"));
                    }
                }
            }
            // On an unmanaged bridge the address and its route may be the operator's.
            let is_managed = |a: &&Address| a.addr == address && a.protocol == Some(ROUTE_PROTOCOL);
            let may_remove = bridge.is_ours() || carried.iter().any(|a| is_managed(&a));
            match (mode, surplus) {
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
            RouteRemoval::Removed => {
                self.repaired(
                    RepairKind::Route,
                    format_args!("removed the {route}: routed pods do not use it"),
                );
            }
            RouteRemoval::Needed => {}
            RouteRemoval::MayBeNeeded(record) => {
                let record = record.display();
                let what = format!(
                    "the {route} stays, and with it addresses that no pod has make neighbour entries: \
                     {record} cannot be read, and its pod may need the route"
                );
                let found = Finding::new(Code::RecordUnreadable, format_args!("file {record}"), what);
                self.outcome.findings.push(found);
            }
        }
        Ok(())
    }

    /// A bridge that had our mark gets it back: without it cleanup would take it for somebody else's.
    fn mark(&mut self, name: &IfName, link: Link) -> Result<Link, Error> {
        let Some(kernel_cache) = self.order.kernel_cache else { return Ok(link) };
        if bridge::is_marked(&link) || !kernel_cache.was_own_bridge(name, link.index) {
            return Ok(link);
        }
        let change = SetLink::of(LinkRef::Index(link.index));
        self.host.run(&Op::SetLink(SetLink { alias: Some(BRIDGE_ALIAS), ..change }))?;
        // An ADD may have taken it for somebody else's meanwhile.
        kernel_cache.forget_bridges();
        self.repaired(RepairKind::Bridge, format_args!("bridge {name} marked as ours again"));
        Ok(Link { alias: Some(BRIDGE_ALIAS.to_owned()), ..link })
    }

    /// What a bridge of ours was made with.
    fn keep_settings(&mut self, bridge: &Bridge) -> Result<(), Error> {
        if let Some(kernel_cache) = self.order.kernel_cache {
            kernel_cache.remember_own_bridge(bridge);
        }
        if self.host.snoops_multicast(bridge.index)? == Some(true) {
            let change = SetLink::of(LinkRef::Index(bridge.index));
            self.host.run(&Op::SetLink(SetLink { no_snooping: true, ..change }))?;
            self.repaired(
                RepairKind::Bridge,
                format_args!("multicast snooping of bridge {} switched off", bridge.name),
            );
        }
        if let Some(changed) = sysctl::keep_advertisements_out(&bridge.name)? {
            self.repaired(RepairKind::Sysctl, format_args!("{} set to 0", changed.display()));
        }
        Ok(())
    }

    /// Called when the pods are on their bridges again.
    pub(super) fn settle_bridges(&mut self) {
        for (name, how) in std::mem::take(&mut self.renewed) {
            let is_on_it = |a: &Attachment| a.mode == AttachMode::Bridge && a.bridge == name;
            if self.outcome.attachments.iter().any(is_on_it)
                && let Err(error) = self.settle_bridge(&name, how)
            {
                self.bridge_trouble(&name, error);
            }
        }
    }

    /// Waits until the bridge carries and asks for neighbours. Left alone, the kernel takes up to a second for it.
    fn settle_bridge(&mut self, name: &IfName, how: Renewed) -> Result<(), Error> {
        for _ in 0..LOOKS {
            let Some(bridge) = self.host.link(name)? else { return Ok(()) };
            let addresses = self.host.addresses(Some(bridge.index))?;
            if bridge.running && addresses.iter().any(|a| is_link_local(&a.addr) && !a.tentative) {
                break;
            }
            std::thread::sleep(LOOK_PAUSE);
        }
        match how {
            Renewed::Made => self.announce(name),
            Renewed::PutUp => Ok(()),
        }
    }

    /// A bridge that was made anew has another MAC: pods on it would send to the one that is gone until they ask again,
    /// which takes them up to a minute. The kernel tells the neighbours when a MAC is set, also to what it is.
    fn announce(&mut self, name: &IfName) -> Result<(), Error> {
        sysctl::announce_addresses(name)?;
        let Some(bridge) = self.host.link(name)? else { return Ok(()) };
        let change = SetLink::of(LinkRef::Index(bridge.index));
        Ok(self.host.run(&Op::SetLink(SetLink { mac: bridge.mac, ..change }))?)
    }

    fn forwarding(&mut self, gateways: &BTreeMap<IpNet, AttachMode>) -> Result<(), Error> {
        let families = ForwardedFamilies {
            ipv4: gateways.keys().any(|gateway| gateway.addr().is_ipv4()),
            ipv6: gateways.keys().any(|gateway| gateway.addr().is_ipv6()),
        };
        let (log, settings) = (self.state.sysctls(), HostSettings::open(self.order.kernel_cache)?);
        for changed in sysctl::enable_forwarding(&mut self.host, &log, families, &settings)? {
            self.repaired(RepairKind::Sysctl, format_args!("{} set to 1", changed.display()));
        }
        Ok(())
    }
}

fn is_link_local(address: &IpNet) -> bool {
    matches!(address, IpNet::V6(v6) if v6.addr().is_unicast_link_local())
}

/// As the kernel makes it of a MAC. It makes one once: whoever flushes a bridge's addresses takes it for good, and with it
/// what neighbours are asked from.
fn link_local(mac: Mac) -> IpNet {
    let [a, b, c, d, e, f] = mac.octets();
    let address = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    IpNet::V6(Ipv6Net::new_assert(address.into(), 64))
}

/// A router asks for neighbours from its link-local address, and asks nobody as long as the kernel looks for duplicates of
/// it: the pods of a bridge that comes up would not be reached for a second or two. Nobody else has the MAC of a bridge of
/// ours, nor the address that is made of it.
fn skip_detection(bridge: &IfName) -> Result<(), Error> {
    let path = Path::new("/proc/sys/net/ipv6/conf").join(bridge.as_str()).join("accept_dad");
    match fs::write(&path, "0") {
        // IPv6 is not in this kernel.
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map_err(|source| Error::Sysctl { path, value: "0".to_owned(), source }),
    }
}

/// The gateways of a network whose addresses are ours to give.
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
    use crate::reconcile::{Order, reconcile};

    /// A round of an agent that has these blocks.
    pub(in crate::reconcile) fn round(node: &Ns, run_dir: &Path, blocks: &str, mode: &str) -> Vec<String> {
        let config = json!({"cniVersion": "1.1.0", "name": "blue", "type": "podwire-cni", "bridge": "pw0",
            "subnet": blocks, "network": "10.88.0.0/16,fd88::/48", "isGateway": true, "mode": mode});
        let conf =
            NetConf::parse(&cni::NetworkConfig::from_slice(config.to_string().as_bytes()).unwrap()).unwrap();
        let name = NetworkName::try_from("blue").unwrap();
        let network = Some((&name, &conf));
        let order = Order {
            run_dir,
            network,
            mode: Some((&name, conf.mode)),
            memory: &[],
            kernel_cache: None,
            is_only_agent: || true,
            warn: |message| panic!("{message}"),
        };
        let outcome = node.enter(|| reconcile(order).unwrap()).unwrap();
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
