//! Gateway addresses of blocks and subnets that the agent's network had before. While the node has one, packets for its
//! subnet stay on the node.

use std::net::IpAddr;

use ipnet::IpNet;
use netconf::NetConf;
use netlink::{Address, Op};
use types::ROUTE_PROTOCOL;

use super::node::own_gateways;
use super::subnet::needs;
use super::{ReconcileRound, RepairKind};
use crate::Error;
use crate::alias::Alias;
use crate::bridge::Bridge;
use crate::state::RecordPhase;

/// The part of the agent's networks on one gateway device. Networks that share the device are united here: a gateway is
/// removed only if none of them wants it.
pub(super) struct OwnGateways {
    wanted: Vec<IpNet>,
    cidrs: Vec<IpNet>,
}

impl OwnGateways {
    pub(super) fn of<'a>(networks: impl IntoIterator<Item = &'a NetConf>) -> Self {
        let (mut wanted, mut cidrs) = (Vec::new(), Vec::new());
        for conf in networks {
            wanted.extend(own_gateways(&conf.addresses));
            cidrs.extend_from_slice(&conf.cluster);
        }
        Self { wanted, cidrs }
    }

    fn has_cidr_of(&self, gateway: &IpNet) -> bool {
        self.cidrs.iter().any(|net| net.contains(gateway))
    }
}

impl ReconcileRound<'_> {
    pub(super) fn remove_gateways(
        &mut self,
        bridge: &Bridge,
        own: &OwnGateways,
        carried: &[Address],
    ) -> Result<(), Error> {
        let mut left = stale(carried, own, bridge.is_ours());
        // Listed after the addresses: a process that added a gateway has written a record by now.
        for listed in
            if left.is_empty() { Vec::new() } else { self.records()? }.into_iter().flat_map(|it| it.1)
        {
            match (listed.phase, listed.attachment) {
                (RecordPhase::Pending, Some(attachment)) if attachment.is_retired() => {}
                (RecordPhase::Ready, Some(attachment)) => left.retain(|gateway| !needs(&attachment, gateway)),
                // The addresses that it needs are not known.
                (RecordPhase::Pending, _) | (RecordPhase::Ready, None) => return Ok(()),
            }
        }
        self.retain_unneeded(&mut left, own)?;
        for addr in left {
            match self.host.run(&Op::DelAddress { link: bridge.index, addr }) {
                Err(e) if e.is_missing() => {}
                other => {
                    other?;
                    // An ADD must not take the gateway for present.
                    self.order.kernel_cache.inspect(|kernel_cache| kernel_cache.forget_bridges());
                    let what = format_args!(
                        "removed gateway {addr} from bridge {}: no block or pod needs it",
                        bridge.name
                    );
                    self.repaired(RepairKind::Address, what);
                }
            }
        }
        Ok(())
    }

    /// Outside of the agent's networks, pods and agents of other run directories may need a gateway. The aliases of links
    /// name the addresses of those pods.
    fn retain_unneeded(&mut self, left: &mut Vec<IpNet>, own: &OwnGateways) -> Result<(), Error> {
        if left.iter().all(|gateway| own.has_cidr_of(gateway)) {
            return Ok(());
        }
        let links = self.host.links()?;
        let aliases: Vec<Alias<'_>> = links.iter().filter_map(Alias::of).collect();
        let pods: Vec<IpAddr> = aliases.iter().flat_map(Alias::ips).collect();
        // A pod whose alias lacks an address may need any of them.
        let is_known = !aliases.iter().any(|alias| alias.may_lack_addresses);
        let may_remove = is_known && (self.order.is_only_agent)();
        left.retain(|gateway| {
            let is_free = may_remove && !pods.iter().any(|address| gateway.contains(address));
            is_free || own.has_cidr_of(gateway)
        });
        Ok(())
    }
}

/// Managed addresses that no network of the agent wants: those of its networks, and on a managed bridge all others. Without a block the agent
/// does not know yet which it wants. The kernel removes the other addresses of a subnet with the first: an unmanaged one
/// keeps its subnet's gateway.
fn stale(carried: &[Address], own: &OwnGateways, is_managed_bridge: bool) -> Vec<IpNet> {
    let is_managed = |a: &&Address| a.protocol == Some(ROUTE_PROTOCOL) && !is_link_local(a.addr.addr());
    let has_others = |gateway: &IpNet| {
        carried.iter().any(|a| a.protocol != Some(ROUTE_PROTOCOL) && a.addr.trunc() == gateway.trunc())
    };
    let gateways = carried.iter().filter(is_managed).map(|a| a.addr);
    gateways
        .filter(|_| !own.wanted.is_empty())
        .filter(|gateway| !own.wanted.contains(gateway))
        .filter(|gateway| own.has_cidr_of(gateway) || (is_managed_bridge && !has_others(gateway)))
        .collect()
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use testkit::{Lab, Ns};
    use types::AttachMode;

    use super::super::node::tests::round;
    use super::*;
    use crate::bridge::{Gateway, unreachable_subnets};

    fn network(subnets: &str) -> NetConf {
        let config = serde_json::json!({ "cniVersion": "1.1.0", "name": "blue", "subnet": subnets });
        NetConf::parse(&cni::NetworkConfig::from_slice(config.to_string().as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn the_gateways_of_all_networks_stay_on_the_device() {
        let gateways = ["10.88.1.1/24", "10.99.1.1/24", "10.99.2.1/24", "fd88::1/64", "fd99::1/64"];
        let carried = gateways.map(|gateway| Address {
            link: 7,
            addr: gateway.parse().unwrap(),
            broadcast: None,
            nodad: false,
            tentative: false,
            duplicate: false,
            protocol: Some(ROUTE_PROTOCOL),
        });
        let (blue, green) = (network("10.88.1.0/24,fd88::/64"), network("10.99.1.0/24,fd99::/64"));
        let left = |networks: &[&NetConf]| -> Vec<String> {
            let own = OwnGateways::of(networks.iter().copied());
            stale(&carried, &own, true).iter().map(ToString::to_string).collect()
        };
        assert_eq!(left(&[&blue, &green]), ["10.99.2.1/24"]);
        assert_eq!(left(&[&blue]), ["10.99.1.1/24", "10.99.2.1/24", "fd99::1/64"]);
        assert_eq!(left(&[]), Vec::<String>::new(), "without a block it is not known which the agent wants");
    }

    fn subnets(node: &Ns) -> Vec<String> {
        let subnets = || unreachable_subnets(&mut netlink::RtSocket::open().unwrap()).unwrap();
        let mut subnets: Vec<String> = node.enter(subnets).unwrap().iter().map(ToString::to_string).collect();
        subnets.sort();
        subnets
    }

    fn has(addresses: &[String], wanted: &str) -> bool {
        addresses.iter().any(|a| a.contains(wanted))
    }

    /// As the plugin adds it for a pod of another network.
    fn put(node: &Ns, address: &str) {
        node.enter(|| {
            let mut host = netlink::RtSocket::open().unwrap();
            let bridge = host.index_of(&"pw0".try_into().unwrap()).unwrap().unwrap();
            let gateway = Gateway { bridge, address: address.parse().unwrap(), mode: AttachMode::Routed };
            host.run_every(&gateway.ops()).unwrap();
        })
        .unwrap();
    }

    #[test]
    fn a_gateway_of_a_block_that_is_anothers_goes_and_nothing_else() {
        let lab = Lab::new("gateways").unwrap();
        let node = lab.node("n").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let before = round(&node, dir.path(), "10.88.1.0/24,fd88:0:0:1::/64", "routed");
        assert!(has(&before, "10.88.1.1") && has(&before, "fd88:0:0:1::1"), "{before:?}");
        // By hand, and for pods of another run directory.
        node.sh(&["ip", "addr", "add", "10.88.7.1/24", "dev", "pw0"]).unwrap();
        node.sh(&["ip", "link", "add", "pwother", "type", "veth", "peer", "name", "other"]).unwrap();
        let alias = "podwire:green/c1/eth0 10.99.1.2/32 fd99::2/128";
        node.sh(&["ip", "link", "set", "pwother", "alias", alias]).unwrap();
        for address in ["10.99.1.1/24", "fd99::1/64"] {
            put(&node, address);
        }
        let after = round(&node, dir.path(), "10.88.2.0/24,fd88:0:0:2::/64", "routed");
        for gone in ["10.88.1.1", "fd88:0:0:1::1"] {
            assert!(!has(&after, gone), "{after:?}");
        }
        assert_eq!(subnets(&node), ["10.88.2.0/24", "10.99.1.0/24", "fd88:0:0:2::/64", "fd99::/64"]);
        for there in ["10.88.2.1", "fd88:0:0:2::1", "10.88.7.1", "10.99.1.1", "fd99::1"] {
            assert!(has(&after, there), "{there}: {after:?}");
        }
    }

    #[test]
    fn a6_gateways_of_an_earlier_subnet_are_removed_from_the_managed_bridge() {
        for mode in ["routed", "bridge"] {
            let lab = Lab::new("earlier").unwrap();
            let node = lab.node("n").unwrap();
            let dir = tempfile::tempdir().unwrap();
            let before = round(&node, dir.path(), "10.201.0.0/16,fd00:99::/64", mode);
            assert!(has(&before, "10.201.0.1") && has(&before, "fd00:99::1"), "{mode}: {before:?}");
            // The kernel removes an operator's address together with the gateway of its subnet.
            put(&node, "10.202.0.1/24");
            node.sh(&["ip", "addr", "add", "10.202.0.9/24", "dev", "pw0"]).unwrap();
            let after = round(&node, dir.path(), "10.88.1.0/24,fd88:0:0:1::/64", mode);
            for (address, is_there) in
                [("10.201.0.1", false), ("fd00:99::1", false), ("10.202.0.1", true), ("10.202.0.9", true)]
            {
                assert_eq!(has(&after, address), is_there, "{mode} {address}: {after:?}");
            }
            for family in ["-4", "-6"] {
                let routes = node.sh(&["ip", family, "route", "show", "table", "all"]).unwrap();
                let routes = format!("{routes:?}");
                assert!(!routes.contains("10.201.") && !routes.contains("fd00:99:"), "{mode}: {routes}");
            }
        }
    }
}
