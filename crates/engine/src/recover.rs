//! Recovers the state of a network if its state directory was lost while pods run, for example because the operator removed
//! it or changed `runDir`. The aliases of the links contain the owner and the addresses. Only the first request that finds no
//! state of its network runs this.

use cni::NetworkConfig;
use ipnet::IpNet;
use netconf::{Addresses, LocalPaths, NetConf};
use netlink::{Link, RtSocket};
use types::{AttachMode, AttachmentKey, IfName, NetworkName};

use crate::alias::Alias;
use crate::state::{Addressing, Attachment, NetworkState, NodeState, PodAddress, RecoveredLink, Wiring};
use crate::{Caller, Error, lease};

/// Sources of information besides the links.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Hints<'a> {
    /// The current config of the network.
    pub(crate) conf: Option<&'a NetConf>,
    /// Further networks of the same name. An address belongs to at most one network.
    pub(crate) others: &'a [&'a NetConf],
    /// Records from before the loss. They are more complete than a link's alias.
    pub(crate) earlier_records: &'a [Attachment],
}

/// The network's state. It is created if it does not exist.
pub(crate) fn network(
    state: &NodeState,
    name: &NetworkName,
    conf: Option<&NetConf>,
) -> Result<NetworkState, Error> {
    network_with(state, name, Hints { conf, ..Hints::default() })
}

pub(crate) fn network_with(
    state: &NodeState,
    name: &NetworkName,
    hints: Hints<'_>,
) -> Result<NetworkState, Error> {
    state.network(name, || recovered_links(name, hints))
}

/// The network's state for requests that only remove. If there is none and no link of the network exists, none is created.
pub(crate) fn existing(
    config: &NetworkConfig,
    paths: &LocalPaths,
    caller: &Caller<'_>,
) -> Result<Option<NetworkState>, Error> {
    let existing =
        NodeState::open_existing(&paths.run_dir)?.and_then(|state| state.existing_network(&config.name));
    if existing.is_some() {
        return Ok(existing);
    }
    // A config that became invalid must not prevent the removal of a pod.
    let conf = caller.network(config).ok();
    if recovered_links(&config.name, Hints { conf: conf.as_ref(), ..Hints::default() })?.is_empty() {
        return Ok(None);
    }
    network(&NodeState::open(&paths.run_dir)?, &config.name, conf.as_ref()).map(Some)
}

impl<'a> Hints<'a> {
    /// The network that provided these addresses.
    fn conf_of(&self, addresses: &[IpNet]) -> Option<&'a NetConf> {
        let has_address =
            |conf: &&&NetConf| addresses.first().is_some_and(|first| range(conf, first).is_some());
        self.others.iter().find(has_address).copied().or(self.conf)
    }
}

fn recovered_links(network: &NetworkName, hints: Hints<'_>) -> Result<Vec<RecoveredLink>, Error> {
    let links = RtSocket::open()?.links()?;
    let pairs = links.iter().filter(|link| link.kind.as_deref() == Some("veth"));
    Ok(pairs.filter_map(|link| recovered_link(network, link, hints)).collect())
}

/// Stem, addresses and record of a host end, as far as its alias contains them.
pub(crate) fn recovered_link(network: &NetworkName, link: &Link, hints: Hints<'_>) -> Option<RecoveredLink> {
    let alias = alias_in(network, link)?;
    let stem = alias.stem();
    let is_same = |a: &&Attachment| {
        a.key.network == *network && a.key.file_stem() == stem && a.host_link.as_str() == link.name
    };
    let earlier = hints.earlier_records.iter().find(is_same).cloned();
    let attachment = earlier.or_else(|| attachment(network, link, &alias, hints.conf_of(&alias.addresses)));
    Some(RecoveredLink { stem, addresses: alias.ips().collect(), attachment })
}

/// The alias of a link of the network.
fn alias_in<'a>(network: &NetworkName, link: &'a Link) -> Option<Alias<'a>> {
    Alias::of(link).filter(|alias| alias.network == AttachmentKey::network_dir(network))
}

/// The attachment as far as the link's alias contains it. None if the alias has only the digest of a long container ID.
pub(crate) fn attachment_of(network: &NetworkName, link: &Link, hints: Hints<'_>) -> Option<Attachment> {
    let alias = alias_in(network, link)?;
    attachment(network, link, &alias, hints.conf_of(&alias.addresses))
}

/// The alias does not contain all fields. The others come from the current config. If it is unknown, they are chosen such that
/// a DEL removes everything.
fn attachment(
    network: &NetworkName,
    link: &Link,
    alias: &Alias<'_>,
    conf: Option<&NetConf>,
) -> Option<Attachment> {
    let (container, ifname) = (alias.id.try_into().ok()?, alias.ifname.try_into().ok()?);
    let key = AttachmentKey { network: network.clone(), container, ifname };
    let host_link = IfName::try_from(link.name.as_str()).ok()?;
    let (addressing, addresses) = (alias.addressing, alias.addresses.as_slice());
    let has_addresses = addressing != Addressing::None;
    let pod = |address: &IpNet| PodAddress {
        address: *address,
        gateway: conf.and_then(|c| range(c, address)).map(ipam::Range::gateway),
    };
    Some(Attachment {
        schema: addressing.schema(),
        netns: String::new(),
        netns_cookie: None,
        mode: if has_addresses { mode(link, addresses) } else { AttachMode::Bridge },
        bridge: conf.map_or_else(|| host_link.clone(), |c| c.bridge.clone()),
        host_mac: link.mac.unwrap_or_else(|| key.host_mac()),
        pod_mac: alias.mac.unwrap_or_else(|| key.pod_mac()),
        mtu: link.mtu,
        addresses: addresses.iter().map(pod).collect(),
        delegated: addressing == Addressing::Dhcp
            || conf.is_some_and(|c| matches!(c.addresses, Addresses::Delegated(_))),
        ipam_plugin: conf.and_then(lease::plugin),
        addressing,
        masquerade_outside: conf
            .map_or(Some(Vec::new()), |c| c.ip_masq.then(|| c.cluster.clone()))
            .filter(|_| has_addresses),
        spoof_check: conf.is_none_or(|c| c.spoof_check),
        ports: Vec::new(),
        bandwidth: None,
        pod: None,
        // The network's placement is not used: it could put the pod into a group to which it does not belong.
        placement: alias.placement.clone(),
        request: None,
        wiring: conf.map(|conf| wiring(conf, addresses)).unwrap_or_default(),
        created: 0,
        host_link,
        key,
    })
}

/// The bridge of a port may have been removed. In mode `routed` a pod's prefix is a single address.
fn mode(link: &Link, addresses: &[IpNet]) -> AttachMode {
    let single = addresses.iter().all(|net| net.prefix_len() == net.max_prefix_len());
    if link.master.is_none() && single { AttachMode::Routed } else { AttachMode::Bridge }
}

fn wiring(conf: &NetConf, addresses: &[IpNet]) -> Wiring {
    let ips: Vec<_> = addresses.iter().map(IpNet::addr).collect();
    let ranges = addresses.iter().filter(|_| conf.is_gateway).filter_map(|address| range(conf, address));
    let gateways = ranges.filter_map(|range| IpNet::new(range.gateway(), range.prefix_len()).ok()).collect();
    Wiring { routes: conf.pod_routes(&ips), gateways, hairpin: conf.hairpin, ..Wiring::default() }
}

fn range<'a>(conf: &'a NetConf, address: &IpNet) -> Option<&'a ipam::Range> {
    let Addresses::Own(pools) = &conf.addresses else { return None };
    let (set, range) = pools.find(address.addr())?;
    pools.sets().get(set)?.ranges().get(range)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::Lab;

    use super::*;

    #[test]
    fn a13_a_recovered_record_has_the_gateways_of_its_config() {
        let lab = Lab::new("recovered").unwrap();
        let node = lab.node("n").unwrap();
        for command in [
            "ip link add pw0 type bridge",
            "ip link add pwabc type veth peer name peer",
            "ip link set pwabc master pw0",
            "ip link set pwabc alias 'podwire:blue/c1/eth0 10.88.1.2/24 fd88:0:0:1::2/64 10.99.0.2/24'",
        ] {
            node.sh(&["sh", "-c", command]).unwrap();
        }
        for (is_gateway, expected) in [(true, vec!["10.88.1.1/24", "fd88:0:0:1::1/64"]), (false, vec![])] {
            let config = json!({"cniVersion": "1.1.0", "name": "blue", "type": "podwire-cni", "bridge": "pw0",
                "subnet": "10.88.1.0/24,fd88:0:0:1::/64", "isGateway": is_gateway, "mode": "bridge"});
            let conf =
                NetConf::parse(&NetworkConfig::from_slice(config.to_string().as_bytes()).unwrap()).unwrap();
            let hints = Hints { conf: Some(&conf), ..Hints::default() };
            let links = node.enter(|| recovered_links(&"blue".try_into().unwrap(), hints).unwrap()).unwrap();
            let record = links[0].attachment.as_ref().unwrap();
            let gateways: Vec<String> = record.wiring.gateways.iter().map(ToString::to_string).collect();
            assert_eq!(gateways, expected);
            // With a gateway, the pod's addresses are bound to the bridge.
            let member = crate::firewall::FirewallMember::of(record).unwrap();
            assert_eq!(member.pod().bridge.is_some(), is_gateway);
        }
    }

    #[test]
    fn b11_recovered_records_keep_their_addressing() {
        let lab = Lab::new("recovered-l2").unwrap();
        let node = lab.node("n").unwrap();
        // The bridge was deleted, and the config is unknown.
        for command in [
            "ip link add pwabc type veth peer name peer",
            "ip link set pwabc alias 'podwire:blue/c1/eth0 ipam=none in=shop/front'",
            "ip link add pwdef type veth peer name peer2",
            "ip link set pwdef alias 'podwire:blue/c2/eth0 ipam=dhcp 10.55.0.50/24'",
        ] {
            node.sh(&["sh", "-c", command]).unwrap();
        }
        let recover = || recovered_links(&"blue".try_into().unwrap(), Hints::default()).unwrap();
        let mut records: Vec<Attachment> =
            node.enter(recover).unwrap().into_iter().filter_map(|link| link.attachment).collect();
        records.sort_by(|a, b| a.key.cmp(&b.key));
        let [layer2, dhcp] = records.as_slice() else { panic!("{records:?}") };
        assert_eq!((layer2.addressing, layer2.mode), (Addressing::None, AttachMode::Bridge));
        assert_eq!((layer2.masquerade_outside.as_ref(), layer2.delegated), (None, false));
        assert_eq!(
            (dhcp.addressing, dhcp.mode, dhcp.delegated),
            (Addressing::Dhcp, AttachMode::Bridge, true)
        );
    }
}
