//! Where this node is, and what the others are told of it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::alias::Mark;
use model::{Facts, NodeRecord, StoredNode, Transport};
use tokio::time::Instant;

use super::super::tunnel;
use super::super::underlay::{self, Position};
use super::Routes;
use crate::membership::command::Contents;

/// How long an address may be away before others are told.
const GRACE: Duration = Duration::from_secs(10);

impl Routes {
    /// Where we are: links, addresses, MTU. What changed is published.
    pub(super) fn find_position(&mut self) -> Result<(), netlink::Error> {
        let config = Arc::clone(&self.shared.config);
        let around = self.kernel.surroundings(config.node_interface.as_ref())?;
        let is_ours =
            |link: &netlink::Link| link.name == config.network.bridge.as_str() || Mark::of(link).is_some();
        let position = underlay::find(&config, &around, is_ours, &self.known.position.known_addresses());
        let sources = self.shared.gateways();
        let sources: Vec<IpAddr> =
            sources.into_iter().filter(|ip| around.addresses.iter().any(|a| a.addr.addr() == *ip)).collect();
        self.publish(position.addresses());
        self.shared.set_lost_addresses(&position.lost);
        self.shared.set_mtu(pod_mtu(&position, &config));
        self.known.position = position;
        self.set_facts(sources);
        Ok(())
    }

    /// Another address is told at once. One that is gone without another in its place may come back in a moment (a link that
    /// flaps, a lease that is renewed), and all others would drop their routes meanwhile.
    fn publish(&mut self, mut addresses: Vec<IpAddr>) {
        let before = self.addresses.borrow().clone();
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
                self.known.look_at = self.known.look_at.min(since + GRACE);
            }
        }
        if before.as_ref() != Some(&addresses) {
            self.addresses.send_replace(Some(addresses));
        }
    }

    /// The cluster as this node knows it, its own record included.
    pub(super) fn contents(&self) -> Contents {
        let mesh = &self.known.mesh;
        let addresses = self.addresses.borrow().clone().unwrap_or_default();
        let record = NodeRecord { addresses, blocks: self.shared.blocks(), ..self.record.clone() };
        let listed = self.shared.contact.listed();
        let unread = listed.as_ref().map(|listed| listed.unread.clone()).unwrap_or_default();
        let own_claims = record.blocks.iter().map(|block| (*block, record.name.clone()));
        let others = mesh.claims().filter(|(_, owner)| **owner != record.name);
        let claims = others.map(|(block, owner)| (*block, owner.clone())).chain(own_claims).collect();
        let peers = mesh.stored().filter(|node| !unread.contains_key(&node.record.name)).cloned();
        Contents {
            claims,
            nodes: peers.chain([StoredNode { record, created: 0 }]).collect(),
            unread: unread.into_iter().collect(),
            alive: listed.map(|listed| listed.alive),
        }
    }

    pub(super) fn set_facts(&mut self, sources: Vec<IpAddr>) {
        let network = &self.shared.config.network;
        self.known.mesh.set_facts(Facts {
            name: self.record.name.clone(),
            blocks: self.shared.blocks(),
            subnets: network.subnets.clone(),
            margin: self.shared.config.cluster.margin,
            transport: self.shared.config.cluster.transport,
            underlays: self.known.position.underlays.clone(),
            tunnels: self.known.tunnels,
            sources,
        });
    }
}

/// What fits through whichever way a packet may take: the tunnel's headers take their part, unless there is none.
fn pod_mtu(position: &Position, config: &config::Config) -> Option<u32> {
    let underlay = position.mtu?;
    let outer = position.underlays.iter().map(|underlay| underlay.address).find(IpAddr::is_ipv4);
    let outer = outer.or_else(|| position.underlays.first().map(|underlay| underlay.address))?;
    let part = match config.cluster.transport {
        Transport::Direct => 0,
        Transport::Auto | Transport::Vxlan => tunnel::overhead(outer),
    };
    underlay.checked_sub(part)
}
