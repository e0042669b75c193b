//! The tunnel devices of this node.

use std::net::IpAddr;

use ipnet::IpNet;
use model::{Transport, Tunnels};
use netlink::{Link, Vxlan};
use tracing::info;
use types::{Code, Finding, IfName};

use super::super::tunnel::{self, Tunnel, TunnelError};
use super::Routes;
use crate::allocation::TunnelSize;

impl Routes {
    /// The wanted tunnel devices, IPv4 and IPv6. They are wanted even if no route uses them: for a peer with another prefix length of
    /// the underlay, this node may be behind a router, so it sends through the tunnel. The same applies to a peer with another
    /// configured transport, for example while nodes are changed one by one.
    fn tunnels_wanted(&self) -> (bool, bool) {
        let (v4, v6) = self.known.mesh.tunnels_wanted();
        let is_direct = |transport: Transport| transport == Transport::Direct;
        let peer_may_tunnel = !self.is_alone
            && (!is_direct(self.config.cluster.transport)
                || self.known.mesh.peers().any(|peer| peer.transport.is_some_and(|its| !is_direct(its))));
        let has_v4 = self.known.position.underlays.iter().any(|underlay| underlay.address.is_ipv4());
        (v4 || (peer_may_tunnel && has_v4), v6 || (peer_may_tunnel && !has_v4))
    }

    pub(super) fn lacks_tunnel(&self) -> bool {
        let ((v4, v6), Tunnels { v4: has_v4, v6: has_v6 }) = (self.tunnels_wanted(), self.known.tunnels);
        (v4 && has_v4.is_none()) || (v6 && has_v6.is_none())
    }

    /// Creates or repairs the tunnel devices that are wanted or exist. A failure is reported and does not affect other paths.
    pub(super) fn reconcile_tunnels(&mut self) {
        let (v4, v6) = self.tunnels_wanted();
        let mut tunnels = self.known.tunnels;
        let (mut findings, mut conflicting) = (Vec::new(), Vec::new());
        let has = |index: Option<u32>| index.is_some();
        let peer_table = self.reconcile_peer_table((v4 || has(tunnels.v4), v6 || has(tunnels.v6)));
        let has_peer_table = peer_table.is_ok();
        findings.extend(peer_table.err());
        for (is_wanted, is_v4) in [(v4, true), (v6, false)] {
            let index = if is_v4 { &mut tunnels.v4 } else { &mut tunnels.v6 };
            // An existing device that is not wanted stays: the next peer may need it, and packets may be in flight.
            if !is_wanted && index.is_none() {
                continue;
            }
            let Some(tunnel) = self.tunnel(is_v4) else { continue };
            let mut done = Vec::new();
            // Without the table, a new device would accept packets of every host.
            match tunnel.reconcile(&mut self.kernel.socket, has_peer_table, &mut done) {
                Ok(kept) => {
                    *index = kept;
                    // A changed configuration is no repair.
                    let wanted = &mut self.known.applied_tunnels[usize::from(is_v4)];
                    let is_repair = wanted.as_ref() == Some(&tunnel);
                    *wanted = Some(tunnel);
                    let repairs = if is_repair { std::mem::take(&mut done) } else { Vec::new() };
                    self.record_repairs("tunnel", repairs.len(), &repairs);
                }
                Err(error) => {
                    if let TunnelError::Unmanaged { index: unmanaged, .. } = error {
                        *index = None;
                        conflicting.push(unmanaged);
                    }
                    let object =
                        self.tunnel_name(is_v4).map_or_else(String::new, |name| format!("link {name}"));
                    findings.push(Finding::new(Code::TunnelFailed, object, error));
                }
            }
            done.iter().for_each(|what| info!("{what}"));
        }
        if !findings.is_empty() {
            self.retry();
        }
        (self.known.tunnel_findings, self.known.conflicting_links) = (findings, conflicting);
        let is_changed = tunnels != self.known.tunnels;
        self.known.tunnels = tunnels;
        self.tunnel_sizes.set(self.current_tunnel_sizes());
        if is_changed {
            let sources = self.known.mesh.local_node().sources.clone();
            self.set_local_node(sources);
        }
    }

    /// Whether peers or tunnels are from another network configuration, and the store has not listed its nodes. A changed margin would
    /// replace the accepted sources and remove the address of the tunnel. A changed VNI or port would replace the device.
    pub(super) fn is_mismatched(&mut self) -> Result<bool, netlink::Error> {
        if self.known.is_complete {
            return Ok(false);
        }
        if self.known.has_other_layout() {
            return Ok(true);
        }
        let names = [self.tunnel_name(true), self.tunnel_name(false)];
        for name in names.into_iter().flatten() {
            if self.kernel.socket.link(&name)?.is_some_and(|link| self.is_of_other_settings(&link)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the link is a managed tunnel with another VNI or port.
    fn is_of_other_settings(&self, link: &Link) -> bool {
        let (alias, mesh) = (engine::alias::of_tunnel(&self.config.network.name), &self.config.cluster);
        let has_others = |vxlan: Vxlan| (vxlan.vni, vxlan.port) != (mesh.vni, mesh.vxlan_port);
        link.alias.as_ref() == Some(&alias) && link.vxlan.is_some_and(has_others)
    }

    fn tunnel(&self, v4: bool) -> Option<Tunnel> {
        let (network, mesh) = (&self.config.network, &self.config.cluster);
        let underlay = self.known.position.underlays.iter().find(|u| u.address.is_ipv4() == v4)?;
        let mtu = self.known.position.mtu?.checked_sub(tunnel::overhead(underlay.address))?;
        let block = self.blocks.iter().map(IpNet::network).find(IpAddr::is_ipv4);
        Some(Tunnel {
            name: self.tunnel_name(v4)?,
            network: network.name.clone(),
            mac: self.record.tunnel_mac,
            mtu,
            vni: mesh.vni,
            port: mesh.vxlan_port,
            local: underlay.address,
            address: block.map(IpNet::from),
            subnets: self.block_layouts.iter().map(model::BlockLayout::subnet).collect(),
            checksum: self.checksum(v4),
        })
    }

    pub(super) fn tunnel_name(&self, v4: bool) -> Option<IfName> {
        let mesh = &self.config.cluster;
        if v4 { mesh.tunnel4().ok() } else { mesh.tunnel6().ok() }
    }

    fn current_tunnel_sizes(&self) -> Vec<TunnelSize> {
        let Tunnels { v4, v6 } = self.known.tunnels;
        let exists = |tunnel: &&Tunnel| if tunnel.local.is_ipv4() { v4.is_some() } else { v6.is_some() };
        let tunnels = self.known.applied_tunnels.iter().flatten().filter(exists);
        tunnels.map(|tunnel| TunnelSize { name: tunnel.name.clone(), mtu: tunnel.mtu }).collect()
    }
}
