//! The position of this node, and the addresses that it publishes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::alias::LinkMark;
use model::{LocalNode, Transport};

use super::super::inputs::{NodePosition, PeerContents};
use super::super::tunnel;
use super::super::underlay::{self, Position};
use super::Routes;

/// How long an address may be missing before it is withdrawn.
const GRACE: Duration = Duration::from_secs(10);

impl Routes {
    /// Determines links, addresses and MTU of this node.
    pub(super) fn find_position(&mut self) -> Result<(), netlink::Error> {
        let config = Arc::clone(&self.config);
        let candidates = self.kernel.underlay_candidates(config.node_interface.as_ref())?;
        let is_managed = |link: &netlink::Link| {
            link.name == config.network.bridge.as_str() || LinkMark::of(link).is_some()
        };
        let position =
            underlay::find(&config, &candidates, is_managed, &self.known.position.known_addresses());
        let sources = self
            .allocations
            .get()
            .map(|allocation| allocation.gateways().collect::<Vec<_>>())
            .unwrap_or_default();
        let sources: Vec<IpAddr> = sources
            .into_iter()
            .filter(|ip| candidates.addresses.iter().any(|a| a.addr.addr() == *ip))
            .collect();
        self.known.position = position;
        self.set_local_node(sources);
        // A node that has just started joins before the slower steps of the comparison.
        if self.reports.addresses.borrow().is_none() {
            self.publish_position();
        }
        Ok(())
    }

    /// Reports the position to membership. Peers use the addresses from then on, so tunnels are created before.
    pub(super) fn publish_position(&mut self) {
        let position = &self.known.position;
        let (lost, mtu) = (position.lost.clone(), pod_mtu(position, &self.config));
        let (found, addresses) = (NodePosition { lost, mtu }, position.addresses());
        // Before the addresses: membership joins when it has them, and pods get the MTU from the start.
        self.reports.position.send_if_modified(|before| {
            let is_changed = *before != found;
            *before = found;
            is_changed
        });
        // A link that is missing for a moment keeps its MAC, like its address.
        if !position.macs.is_empty() || position.lost.is_empty() {
            let macs = position.macs.clone();
            self.reports.macs.send_if_modified(|before| {
                let is_other = *before != macs;
                *before = macs;
                is_other
            });
        }
        self.publish(addresses);
    }

    /// Publishes a changed address at once. An address that is missing without a replacement may return soon (a flapping link, a renewed
    /// lease), and without it all peers would remove their routes.
    fn publish(&mut self, mut addresses: Vec<IpAddr>) {
        let before = self.reports.addresses.borrow().clone();
        let published = before.clone().unwrap_or_default();
        let has_family = |list: &[IpAddr], of: &IpAddr| list.iter().any(|ip| ip.is_ipv4() == of.is_ipv4());
        let missing: Vec<IpAddr> =
            published.iter().filter(|ip| !has_family(&addresses, ip)).copied().collect();
        if missing.is_empty() {
            self.known.missing_since = None;
        } else {
            let since = *self.known.missing_since.get_or_insert_with(Instant::now);
            if since.elapsed() < GRACE {
                addresses.extend(missing);
                addresses.sort_by_key(IpAddr::is_ipv6);
                self.known.compare_at = self.known.compare_at.min(since + GRACE);
            }
        }
        if before.as_ref() != Some(&addresses) {
            self.reports.addresses.send_replace(Some(addresses));
        }
    }

    /// The peers as this node knows them.
    pub(super) fn contents(&self) -> PeerContents {
        let (mesh, own) = (&self.known.mesh, &self.record.name);
        let claims = mesh.claims().filter(|(_, owner)| *owner != own);
        PeerContents {
            nodes: mesh.stored().cloned().collect(),
            claims: claims.map(|(block, owner)| (*block, owner.clone())).collect(),
        }
    }

    pub(super) fn set_local_node(&mut self, sources: Vec<IpAddr>) {
        self.known.mesh.set_local_node(LocalNode {
            name: self.record.name.clone(),
            blocks: self.blocks.clone(),
            block_layouts: self.block_layouts.clone(),
            transport: self.config.cluster.transport,
            underlays: self.known.position.underlays.clone(),
            tunnels: self.known.tunnels,
            sources,
        });
    }
}

/// The MTU that fits every path: that of the underlay, minus the headers of the tunnel unless no tunnel is used.
fn pod_mtu(position: &Position, config: &config::Config) -> Option<u32> {
    let underlay = position.mtu?;
    let outer = position.underlays.iter().map(|underlay| underlay.address).find(IpAddr::is_ipv4);
    let outer = outer.or_else(|| position.underlays.first().map(|underlay| underlay.address))?;
    let overhead = match config.cluster.transport {
        Transport::Direct => 0,
        Transport::Auto | Transport::Vxlan => tunnel::overhead(outer),
    };
    underlay.checked_sub(overhead)
}
