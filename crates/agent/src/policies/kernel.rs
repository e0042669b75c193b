//! The firewall's table of policies, and the groups of host ends. Sockets are opened again after an error, because a reply may be
//! pending on them.

use std::net::IpAddr;

use engine::policy::LinkGroup;
use netlink::{Op, RtSocket};
use nft::desired::policy::{MarkBit, OwnNode, PolicyOptions, PolicySizes, table};
use nft::{DeniedPackets, Firewall, RulesetMonitor, Surplus};
use policy::PolicyElement;
use types::IfName;

use super::pods::LocalPod;

/// The bit of flow marks that marks forbidden flows.
const FORBIDDEN_BIT: u8 = 31;
/// Denied packets that are logged per second and direction.
const LOGS_PER_SECOND: u32 = 10;

#[expect(clippy::expect_used, reason = "marks have 32 bits")]
pub(super) fn forbidden_bit() -> MarkBit {
    MarkBit::new(FORBIDDEN_BIT).expect("a bit of a mark")
}

pub(super) struct PolicyKernel {
    firewall: Option<Firewall>,
    links: Option<RtSocket>,
    sizes: PolicySizes,
    /// None if the kernel cannot log.
    logs_per_second: Option<u32>,
}

impl PolicyKernel {
    pub(super) fn new() -> Self {
        Self {
            firewall: None,
            links: None,
            sizes: PolicySizes::default(),
            logs_per_second: Some(LOGS_PER_SECOND),
        }
    }

    /// Lets the monitor ignore the changes of this socket.
    pub(super) fn hide_from(&mut self, monitor: &mut RulesetMonitor) -> Result<(), nft::Error> {
        self.with_firewall(|firewall| monitor.ignore_policy_elements_of(firewall))
    }

    /// Applies the whole table, and repairs drift. Returns the changes in words.
    pub(super) fn keep(
        &mut self,
        elements: &[PolicyElement],
        own_node: OwnNode,
        surplus: Surplus,
    ) -> Result<Vec<String>, nft::Error> {
        self.sizes = self.sizes.raised_for(elements);
        match self.try_keep(elements, own_node, surplus) {
            Err(nft::Error::Unsupported { .. } | nft::Error::Structure { .. })
                if self.logs_per_second.take().is_some() =>
            {
                self.try_keep(elements, own_node, surplus)
            }
            other => other,
        }
    }

    fn try_keep(
        &mut self,
        elements: &[PolicyElement],
        own_node: OwnNode,
        surplus: Surplus,
    ) -> Result<Vec<String>, nft::Error> {
        let forbidden = forbidden_bit();
        let (sizes, logs_per_second) = (self.sizes, self.logs_per_second);
        let table = table(&PolicyOptions { forbidden, own_node, logs_per_second, sizes });
        self.with_firewall(|firewall| firewall.reconcile_policies(&table, elements, surplus))
    }

    /// One transaction.
    pub(super) fn apply(
        &mut self,
        replaced: &[PolicyElement],
        set: &[PolicyElement],
    ) -> Result<(), nft::Error> {
        if replaced.is_empty() && set.is_empty() {
            return Ok(());
        }
        self.with_firewall(|firewall| firewall.apply_policy(replaced, set))
    }

    pub(super) fn remove(&mut self, removed: &[PolicyElement]) -> Result<(), nft::Error> {
        if removed.is_empty() {
            return Ok(());
        }
        self.with_firewall(|firewall| firewall.remove_policy(removed))
    }

    /// Whether there is a table, also of an earlier agent.
    pub(super) fn has_table(&mut self) -> Result<bool, nft::Error> {
        self.with_firewall(Firewall::has_policies)
    }

    /// Returns whether the table existed.
    pub(super) fn remove_table(&mut self) -> Result<bool, nft::Error> {
        self.with_firewall(Firewall::remove_policies)
    }

    pub(super) fn denied(&mut self) -> Result<DeniedPackets, nft::Error> {
        self.with_firewall(Firewall::denied_packets)
    }

    /// Sets the groups of links that have another one. Links that do not exist are skipped. Returns the number of changes.
    pub(super) fn set_groups(&mut self, pods: &[(&LocalPod, LinkGroup)]) -> Result<usize, netlink::Error> {
        if pods.is_empty() {
            return Ok(0);
        }
        self.with_links(|links| {
            let names: Vec<&IfName> = pods.iter().map(|(pod, _)| &pod.link).collect();
            let found = links.links_by_name(&names)?;
            let differing = found.into_iter().zip(pods).filter_map(|(link, (pod, group))| {
                // By index: a message without index and name would change all links of a group.
                let link =
                    link.filter(|link| engine::alias::is_of(link, &pod.key) && link.group != group.0)?;
                Some(Op::SetLinkGroup { link: link.index, group: group.0 })
            });
            let ops: Vec<Op<'_>> = differing.collect();
            let mut changed = 0;
            for result in links.run_all(&ops)? {
                match result {
                    Ok(()) => changed += 1,
                    Err(error) if error.is_missing() => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(changed)
        })
    }

    /// All addresses of this node, also those of gateways and tunnels.
    pub(super) fn node_addresses(&mut self) -> Result<Vec<IpAddr>, netlink::Error> {
        self.with_links(|links| {
            let mut addresses: Vec<IpAddr> =
                links.addresses(None)?.iter().map(|address| address.addr.addr()).collect();
            addresses.retain(|ip| !ip.is_loopback());
            addresses.sort_unstable();
            addresses.dedup();
            Ok(addresses)
        })
    }

    fn with_firewall<T>(
        &mut self,
        act: impl FnOnce(&mut Firewall) -> Result<T, nft::Error>,
    ) -> Result<T, nft::Error> {
        let mut firewall = self.firewall.take().map_or_else(Firewall::open, Ok)?;
        let result = act(&mut firewall)?;
        self.firewall = Some(firewall);
        Ok(result)
    }

    fn with_links<T>(
        &mut self,
        act: impl FnOnce(&mut RtSocket) -> Result<T, netlink::Error>,
    ) -> Result<T, netlink::Error> {
        let mut links = self.links.take().map_or_else(RtSocket::open, Ok)?;
        let result = act(&mut links)?;
        self.links = Some(links);
        Ok(result)
    }
}
