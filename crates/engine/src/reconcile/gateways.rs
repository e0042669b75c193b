//! Removes gateway addresses of former blocks and subnets of the agent's network. While the node has such an address, packets
//! for its subnet stay on the node.

use std::net::IpAddr;

use ipnet::IpNet;
use netconf::NetConf;
use netlink::{Address, Op};
use types::ROUTE_PROTOCOL;

use super::node::own_gateways;
use super::subnet::needs_gateway;
use super::{ReconcileRound, RepairKind};
use crate::Error;
use crate::alias::Alias;
use crate::bridge::Bridge;
use crate::state::RecordPhase;

/// The gateways and CIDRs of the agent's networks on one bridge. If several networks share the bridge, a gateway is removed only
/// if none of them needs it.
pub(super) struct OwnGateways {
    desired: Vec<IpNet>,
    cidrs: Vec<IpNet>,
}

impl OwnGateways {
    pub(super) fn of<'a>(networks: impl IntoIterator<Item = &'a NetConf>) -> Self {
        let (mut desired, mut cidrs) = (Vec::new(), Vec::new());
        for conf in networks {
            desired.extend(own_gateways(&conf.addresses));
            cidrs.extend_from_slice(&conf.cluster);
        }
        Self { desired, cidrs }
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
        addresses: &[Address],
    ) -> Result<(), Error> {
        let mut stale = stale(addresses, own, bridge.is_managed());
        // Records are listed after the addresses, because a process writes its record before it adds a gateway.
        for listed in
            if stale.is_empty() { Vec::new() } else { self.records()? }.into_iter().flat_map(|it| it.1)
        {
            match (listed.phase, listed.attachment) {
                (RecordPhase::Pending, Some(attachment)) if attachment.needs_only_ipam_del() => {}
                (RecordPhase::Ready, Some(attachment)) => {
                    stale.retain(|gateway| !needs_gateway(&attachment, gateway));
                }
                // Its addresses are unknown, so every gateway may be needed.
                (RecordPhase::Pending, _) | (RecordPhase::Ready, None) => return Ok(()),
            }
        }
        self.retain_unneeded(&mut stale, own)?;
        for addr in stale {
            match self.host.run(&Op::DelAddress { link: bridge.index, addr }) {
                Err(e) if e.is_missing() => {}
                other => {
                    other?;
                    // The cached bridge contains the removed gateway.
                    self.request.kernel_cache.inspect(|kernel_cache| kernel_cache.forget_bridges());
                    let message = format_args!(
                        "removed gateway {addr} from bridge {}: no block or pod needs it",
                        bridge.name
                    );
                    self.repaired(RepairKind::Address, message);
                }
            }
        }
        Ok(())
    }

    /// Outside of the agent's CIDRs, pods and agents of other run directories may need a gateway. The aliases of links contain the
    /// addresses of those pods.
    fn retain_unneeded(&mut self, stale: &mut Vec<IpNet>, own: &OwnGateways) -> Result<(), Error> {
        if stale.iter().all(|gateway| own.has_cidr_of(gateway)) {
            return Ok(());
        }
        let links = self.host.links()?;
        let aliases: Vec<Alias<'_>> = links.iter().filter_map(Alias::of).collect();
        let pods: Vec<IpAddr> = aliases.iter().flat_map(Alias::ips).collect();
        // A pod with an incomplete alias may need any gateway.
        let is_complete = !aliases.iter().any(|alias| alias.may_lack_addresses);
        let may_remove = is_complete && (self.request.is_only_agent)();
        stale.retain(|gateway| {
            let is_free = may_remove && !pods.iter().any(|address| gateway.contains(address));
            is_free || own.has_cidr_of(gateway)
        });
        Ok(())
    }
}

/// Managed addresses that no network of the agent needs: addresses in its CIDRs, and on a managed bridge all other managed ones.
/// While the agent has no block, it does not know its gateways, and nothing is stale. The kernel removes secondary addresses of
/// a subnet with the primary one, so a gateway with an unmanaged address in its subnet stays.
fn stale(addresses: &[Address], own: &OwnGateways, is_managed_bridge: bool) -> Vec<IpNet> {
    let is_managed = |a: &&Address| a.protocol == Some(ROUTE_PROTOCOL) && !is_link_local(a.addr.addr());
    let has_unmanaged = |gateway: &IpNet| {
        addresses.iter().any(|a| a.protocol != Some(ROUTE_PROTOCOL) && a.addr.trunc() == gateway.trunc())
    };
    let gateways = addresses.iter().filter(is_managed).map(|a| a.addr);
    gateways
        .filter(|_| !own.desired.is_empty())
        .filter(|gateway| !own.desired.contains(gateway))
        .filter(|gateway| own.has_cidr_of(gateway) || (is_managed_bridge && !has_unmanaged(gateway)))
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
    fn the_gateways_of_all_networks_stay_on_the_bridge() {
        let gateways = ["10.88.1.1/24", "10.99.1.1/24", "10.99.2.1/24", "fd88::1/64", "fd99::1/64"];
        let addresses = gateways.map(|gateway| Address {
            link: 7,
            addr: gateway.parse().unwrap(),
            broadcast: None,
            nodad: false,
            tentative: false,
            duplicate: false,
            protocol: Some(ROUTE_PROTOCOL),
        });
        let (blue, green) = (network("10.88.1.0/24,fd88::/64"), network("10.99.1.0/24,fd99::/64"));
        let stale_of = |networks: &[&NetConf]| -> Vec<String> {
            let own = OwnGateways::of(networks.iter().copied());
            stale(&addresses, &own, true).iter().map(ToString::to_string).collect()
        };
        assert_eq!(stale_of(&[&blue, &green]), ["10.99.2.1/24"]);
        assert_eq!(stale_of(&[&blue]), ["10.99.1.1/24", "10.99.2.1/24", "fd99::1/64"]);
        assert_eq!(stale_of(&[]), Vec::<String>::new(), "without a block the gateways are unknown");
    }

    fn subnets(node: &Ns) -> Vec<String> {
        let subnets = || unreachable_subnets(&mut netlink::RtSocket::open().unwrap()).unwrap();
        let mut subnets: Vec<String> = node.enter(subnets).unwrap().iter().map(ToString::to_string).collect();
        subnets.sort();
        subnets
    }

    fn has(addresses: &[String], expected: &str) -> bool {
        addresses.iter().any(|a| a.contains(expected))
    }

    /// Adds a gateway like the plugin does for a pod of another network.
    fn add_gateway(node: &Ns, address: &str) {
        node.enter(|| {
            let mut host = netlink::RtSocket::open().unwrap();
            let bridge = host.index_of(&"pw0".try_into().unwrap()).unwrap().unwrap();
            let gateway = Gateway { bridge, address: address.parse().unwrap(), mode: AttachMode::Routed };
            host.run_every(&gateway.ops()).unwrap();
        })
        .unwrap();
    }

    #[test]
    fn only_gateways_of_former_blocks_are_removed() {
        let lab = Lab::new("gateways").unwrap();
        let node = lab.node("n").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let before = round(&node, dir.path(), "10.88.1.0/24,fd88:0:0:1::/64", "routed");
        assert!(has(&before, "10.88.1.1") && has(&before, "fd88:0:0:1::1"), "{before:?}");
        // One added by the operator, and two for pods of another run directory.
        node.sh(&["ip", "addr", "add", "10.88.7.1/24", "dev", "pw0"]).unwrap();
        node.sh(&["ip", "link", "add", "pwother", "type", "veth", "peer", "name", "other"]).unwrap();
        let alias = "podwire:green/c1/eth0 10.99.1.2/32 fd99::2/128";
        node.sh(&["ip", "link", "set", "pwother", "alias", alias]).unwrap();
        for address in ["10.99.1.1/24", "fd99::1/64"] {
            add_gateway(&node, address);
        }
        let after = round(&node, dir.path(), "10.88.2.0/24,fd88:0:0:2::/64", "routed");
        for removed in ["10.88.1.1", "fd88:0:0:1::1"] {
            assert!(!has(&after, removed), "{after:?}");
        }
        assert_eq!(subnets(&node), ["10.88.2.0/24", "10.99.1.0/24", "fd88:0:0:2::/64", "fd99::/64"]);
        for expected in ["10.88.2.1", "fd88:0:0:2::1", "10.88.7.1", "10.99.1.1", "fd99::1"] {
            assert!(has(&after, expected), "{expected}: {after:?}");
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
            // The kernel would remove an operator's address together with the gateway of its subnet.
            add_gateway(&node, "10.202.0.1/24");
            node.sh(&["ip", "addr", "add", "10.202.0.9/24", "dev", "pw0"]).unwrap();
            let after = round(&node, dir.path(), "10.88.1.0/24,fd88:0:0:1::/64", mode);
            for (address, is_expected) in
                [("10.201.0.1", false), ("fd00:99::1", false), ("10.202.0.1", true), ("10.202.0.9", true)]
            {
                assert_eq!(has(&after, address), is_expected, "{mode} {address}: {after:?}");
            }
            for family in ["-4", "-6"] {
                let routes = node.sh(&["ip", family, "route", "show", "table", "all"]).unwrap();
                let routes = format!("{routes:?}");
                assert!(!routes.contains("10.201.") && !routes.contains("fd00:99:"), "{mode}: {routes}");
            }
        }
    }
}
