//! Repairs one attachment: its link, routes, neighbours and limits. Its record is locked, so no DEL can run concurrently.

use std::net::IpAddr;
use std::path::Path;

use netlink::{Link, LinkRef, Mode, NetNs, Op, RtSocket, SetLink};
use types::AttachMode;

use super::diff::{self, HostDrift};
use super::observe::ObservedHost;
use super::{AttachmentVerdict, RELEASE_LATER, ReconcileRound, RepairKind};
use crate::bridge::{self, Bridge, Spec};
use crate::policy::{self, LinkGroup};
use crate::state::{Addressing, Attachment, HeldAttachment, NetworkState, RecordPhase};
use crate::sysctl::HostSettings;
use crate::veth::{self, NeighbourCaches, VethSetup, host_route};
use crate::{Error, detach, dscp, firewall, layer2, settle, shaping, sysctl};

impl ReconcileRound<'_> {
    pub(super) fn attachment(
        &mut self,
        network: &NetworkState,
        attachment: &Attachment,
        observed: &ObservedHost,
    ) -> Result<AttachmentVerdict, Error> {
        let mut faults = diff::faults(attachment, observed);
        faults.extend(self.group_drift(attachment, observed));
        let unclaimed =
            !attachment.delegated && !network.has_claims(&attachment.key.file_stem(), attachment.ips());
        if faults.is_empty() && !unclaimed {
            return Ok(AttachmentVerdict::Present);
        }
        // The host was observed without a lock. Another process may have removed the attachment, or be doing so.
        let Some(held) = lock_record(network, attachment)? else {
            self.outcome.has_locked_records = true;
            return Ok(AttachmentVerdict::Gone);
        };
        if faults.contains(&HostDrift::LinkMissing) {
            return self.recreate_link(held, attachment);
        }
        if unclaimed {
            self.restore_claims(network, &held, attachment)?;
        }
        let Some(link) = self.host.link(&attachment.host_link)? else {
            return Ok(AttachmentVerdict::Present);
        };
        let mut errors = Vec::new();
        for fault in &faults {
            match self.repair_host_drift(attachment, &link, fault) {
                Ok(()) => self.repaired(fault.kind(), format_args!("attachment {}: {fault}", attachment.key)),
                // The remaining faults are repaired anyway.
                Err(error) => errors.push(error),
            }
        }
        Error::collect(errors).map(|()| AttachmentVerdict::Present)
    }

    /// Whether the host end has another group than the pod's policies need.
    fn group_drift(&self, attachment: &Attachment, observed: &ObservedHost) -> Option<HostDrift> {
        let policies = self.request.policies.filter(|_| !attachment.addresses.is_empty())?;
        let link = observed.links.get(attachment.host_link.as_str())?;
        policies.has_drift(&attachment.key, LinkGroup(link.group)).then_some(HostDrift::Group)
    }

    pub(super) fn restore_claims(
        &mut self,
        network: &NetworkState,
        held: &HeldAttachment,
        attachment: &Attachment,
    ) -> Result<(), Error> {
        let addresses: Vec<IpAddr> = attachment.ips().collect();
        for address in network.restore_claims(held, &addresses)? {
            self.repaired(
                RepairKind::Record,
                format_args!("attachment {}: the claim of {address} was missing", attachment.key),
            );
        }
        Ok(())
    }

    fn repair_host_drift(
        &mut self,
        attachment: &Attachment,
        link: &Link,
        fault: &HostDrift,
    ) -> Result<(), Error> {
        let change = SetLink::of(LinkRef::Index(link.index));
        let hairpin = Some(attachment.wiring.hairpin);
        match fault {
            HostDrift::LinkMissing => Ok(()),
            HostDrift::LinkDown => Ok(self.host.run(&Op::SetLink(SetLink { up: Some(true), ..change }))?),
            HostDrift::Arp if attachment.mode == AttachMode::Routed && !sysctl::may_accept_arp() => {
                sysctl::ignore_arp(&attachment.host_link)
            }
            // The kernel removes the neighbours with this change. The same send replaces neighbours that a packet created in
            // between with the host end's MAC. That packet is lost.
            HostDrift::Arp => {
                let mut ops = vec![Op::SetLink(SetLink { no_arp: true, ..change })];
                if attachment.mode == AttachMode::Routed {
                    ops.extend(attachment.ips().map(|ip| veth::neighbour_op(attachment, link.index, ip)));
                }
                Ok(self.host.run_every(&ops)?)
            }
            HostDrift::NoAlias => {
                let alias = attachment.alias();
                Ok(self.host.run(&Op::SetLink(SetLink { alias: Some(&alias), ..change }))?)
            }
            HostDrift::NotAPort => {
                let bridge = self.bridge_of(attachment)?;
                let joined = SetLink { master: Some(bridge.index), ..change };
                self.host.run_every(&[Op::SetLink(joined), Op::SetLink(SetLink { hairpin, ..change })])?;
                if attachment.addressing == Addressing::None
                    && let Err(error) = layer2::refuse_gateway(&mut self.host, &bridge)
                {
                    self.host.run(&Op::SetLink(SetLink { master: Some(0), ..change }))?;
                    return Err(error);
                }
                // The bridge may be a new one.
                veth::allow_loopback_clients(attachment, &bridge, &self.state.sysctls())
            }
            HostDrift::Hairpin => Ok(self.host.run(&Op::SetLink(SetLink { hairpin, ..change }))?),
            HostDrift::Group => {
                self.request.policies.map_or(Ok(()), |policies| policies.restore_pod(attachment))
            }
            HostDrift::NoRoute(ip) => {
                let route = host_route(*ip, link.index);
                Ok(self.host.run(&Op::AddRoute { route, mode: Mode::Exclusive })?)
            }
            HostDrift::NoNeighbour(ip) => {
                Ok(self.host.run(&veth::neighbour_op(attachment, link.index, *ip))?)
            }
        }
    }

    fn bridge_of(&mut self, attachment: &Attachment) -> Result<Bridge, Error> {
        let link = self.host.link(&attachment.bridge)?;
        let mtu = if link.is_some() { None } else { Some(attachment.mtu) };
        bridge::ensure(&mut self.host, &Spec { name: &attachment.bridge, mtu, promisc: false }, link)
    }

    /// Called if the link is missing. If the pod's namespace still exists, the link was deleted and is created again (F4).
    /// Otherwise the pod does not exist any more, and its addresses are released.
    fn recreate_link(
        &mut self,
        held: HeldAttachment,
        attachment: &Attachment,
    ) -> Result<AttachmentVerdict, Error> {
        // Another process may have created it in the meantime.
        if self.host.link(&attachment.host_link)?.is_some() {
            return Ok(AttachmentVerdict::Present);
        }
        let netns = match NetNs::open(Path::new(&attachment.netns)) {
            Ok(netns) => netns,
            Err(e) if e.is_gone() => return self.collect(held, attachment),
            // The state of the namespace is unknown, so nothing is changed.
            Err(e) => return Err(e.into()),
        };
        let mut pod = RtSocket::open_in(&netns)?;
        if attachment.netns_cookie != Some(pod.netns_cookie()?) {
            return self.collect(held, attachment);
        }
        if pod.link(&attachment.key.ifname)?.is_some() {
            let ifname = attachment.key.ifname.clone();
            return Err(Error::LinkExists { ifname, netns: attachment.netns.clone() });
        }
        let bridge = self.bridge_of(attachment)?;
        let log = self.state.sysctls();
        let settings = HostSettings::open(self.request.kernel_cache)?;
        let setup = VethSetup { attachment, bridge: &bridge, netns: &netns, log: &log, settings: &settings };
        firewall::add_pod(attachment, &self.state, None, &self.request.warn)?;
        let group = policy::add_pod(self.request.policies, attachment);
        let profile = policy::profile(self.request.policies, attachment.placement.as_ref());
        dscp::add_pod(attachment, profile.as_ref(), (self.request.kernel_cache, self.request.policies));
        let placed = veth::create_pair(&mut self.host, &setup, &attachment.wiring.gateways, group)?;
        policy::link_created(self.request.policies, attachment, group);
        if let Err(error) =
            layer2::refuse_shared_bridge(&mut self.host, attachment.addressing, &bridge, &placed)
        {
            // The next round retries.
            let index = self.host.index_of(&attachment.host_link)?;
            index.map_or(Ok(()), |index| detach::delete_link(&mut self.host, index))?;
            return Err(error);
        }
        // It has the same address and MAC as before, so caches of neighbours are valid.
        let pod_end = veth::configure_pod_end(&self.host, &mut pod, &setup, NeighbourCaches::Clean)?;
        let host_index = pod_end.host_index;
        if attachment.mode == AttachMode::Routed {
            veth::route_to_pod(&mut self.host, attachment, host_index)?;
        }
        veth::allow_loopback_clients(attachment, &bridge, &log)?;
        shaping::apply(&mut self.host, attachment, host_index, profile.as_ref())?;
        settle::wait(&mut self.host, &mut pod, attachment)?;
        self.repaired(
            RepairKind::Link,
            format_args!("attachment {}: {} and was created again", attachment.key, HostDrift::LinkMissing),
        );
        Ok(AttachmentVerdict::Present)
    }

    fn collect(&mut self, held: HeldAttachment, attachment: &Attachment) -> Result<AttachmentVerdict, Error> {
        detach::undo_without_plugin(held, Some(&attachment.key), &self.request.caller())?;
        let ips: Vec<String> = attachment.ips().map(|ip| ip.to_string()).collect();
        let addresses = match attachment.delegated {
            true => format!("{} removed from the kernel; {RELEASE_LATER}", ips.join(", ")),
            false => format!("{} released", ips.join(", ")),
        };
        self.repaired(
            RepairKind::Collected,
            format_args!("attachment {}: its namespace does not exist; {addresses}", attachment.key),
        );
        Ok(AttachmentVerdict::Gone)
    }
}

/// Locks the record if it is unchanged and no other process holds it.
pub(super) fn lock_record(
    network: &NetworkState,
    attachment: &Attachment,
) -> Result<Option<HeldAttachment>, Error> {
    let held = network.find_idle(&attachment.key.file_stem())?;
    Ok(held.filter(|held| held.phase() == RecordPhase::Ready && held.attachment() == Some(attachment)))
}
