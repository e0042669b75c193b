//! One attachment: its link and what hangs on it, put back. Its record is held meanwhile, so that no DEL comes between.

use std::net::IpAddr;
use std::path::Path;

use netlink::{Link, LinkRef, Mode, NetNs, Op, RtSocket, SetLink};
use types::AttachMode;

use super::diff::{self, HostDrift};
use super::observe::ObservedHost;
use super::{AttachmentFate, ReconcileRound, RepairKind, TO_THE_PLUGIN};
use crate::bridge::{self, Bridge, Spec};
use crate::state::{Addressing, Attachment, HeldAttachment, NetworkState, RecordPhase};
use crate::sysctl::HostSettings;
use crate::wire::{self, Neighbours, Wire, host_route};
use crate::{Error, detach, firewall, layer2, settle, shaping, sysctl};

impl ReconcileRound<'_> {
    pub(super) fn attachment(
        &mut self,
        network: &NetworkState,
        attachment: &Attachment,
        seen: &ObservedHost,
    ) -> Result<AttachmentFate, Error> {
        let faults = diff::faults(attachment, seen);
        let unclaimed =
            !attachment.delegated && !network.has_claims(&attachment.key.file_stem(), attachment.ips());
        if faults.is_empty() && !unclaimed {
            return Ok(AttachmentFate::Kept);
        }
        // The picture was taken without a lock: another process may be removing the attachment, or has removed it.
        let Some(held) = hold(network, attachment)? else { return Ok(AttachmentFate::Left) };
        if faults.contains(&HostDrift::LinkGone) {
            return self.remake(held, attachment);
        }
        if unclaimed {
            self.claim_again(network, &held, attachment)?;
        }
        let Some(link) = self.host.link(&attachment.host_link)? else { return Ok(AttachmentFate::Kept) };
        let mut errors = Vec::new();
        for fault in &faults {
            match self.mend(attachment, &link, fault) {
                Ok(()) => self.repaired(fault.kind(), format_args!("{}: {fault}", attachment.key)),
                // The other faults are repaired all the same.
                Err(error) => errors.push(error),
            }
        }
        Error::collect(errors).map(|()| AttachmentFate::Kept)
    }

    pub(super) fn claim_again(
        &mut self,
        network: &NetworkState,
        held: &HeldAttachment,
        attachment: &Attachment,
    ) -> Result<(), Error> {
        let addresses: Vec<IpAddr> = attachment.ips().collect();
        for address in network.claim_again(held, &addresses)? {
            self.repaired(
                RepairKind::Record,
                format_args!("{}: the claim of {address} was gone", attachment.key),
            );
        }
        Ok(())
    }

    fn mend(&mut self, attachment: &Attachment, link: &Link, fault: &HostDrift) -> Result<(), Error> {
        let change = SetLink::of(LinkRef::Index(link.index));
        let hairpin = Some(attachment.wiring.hairpin);
        match fault {
            HostDrift::LinkGone => Ok(()),
            HostDrift::LinkDown => Ok(self.host.run(&Op::SetLink(SetLink { up: Some(true), ..change }))?),
            HostDrift::Arp if attachment.mode == AttachMode::Routed && !sysctl::may_accept_arp() => {
                sysctl::ignore_arp(&attachment.host_link)
            }
            // The kernel removes the neighbours with it. The same send replaces those that a packet made meanwhile, with the
            // host end's own MAC; that packet is lost.
            HostDrift::Arp => {
                let mut ops = vec![Op::SetLink(SetLink { no_arp: true, ..change })];
                if attachment.mode == AttachMode::Routed {
                    ops.extend(attachment.ips().map(|ip| wire::neighbour_op(attachment, link.index, ip)));
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
                // The bridge may be another one than it was.
                wire::let_loopback_in(attachment, &bridge, &self.state.sysctls())
            }
            HostDrift::Hairpin => Ok(self.host.run(&Op::SetLink(SetLink { hairpin, ..change }))?),
            HostDrift::NoRoute(ip) => {
                let route = host_route(*ip, link.index);
                Ok(self.host.run(&Op::AddRoute { route, mode: Mode::Exclusive })?)
            }
            HostDrift::NoNeighbour(ip) => {
                Ok(self.host.run(&wire::neighbour_op(attachment, link.index, *ip))?)
            }
        }
    }

    fn bridge_of(&mut self, attachment: &Attachment) -> Result<Bridge, Error> {
        let found = self.host.link(&attachment.bridge)?;
        let mtu = if found.is_some() { None } else { Some(attachment.mtu) };
        bridge::ensure(&mut self.host, &Spec { name: &attachment.bridge, mtu, promisc: false }, found)
    }

    /// The link is gone. If the pod's namespace is the one it was, somebody deleted the link: it is made anew (F4).
    /// Otherwise the pod is gone, and so is its address.
    fn remake(&mut self, held: HeldAttachment, attachment: &Attachment) -> Result<AttachmentFate, Error> {
        // It may be back already, or be under way.
        if self.host.link(&attachment.host_link)?.is_some() {
            return Ok(AttachmentFate::Kept);
        }
        let netns = match NetNs::open(Path::new(&attachment.netns)) {
            Ok(netns) => netns,
            Err(e) if e.is_gone() => return self.collect(held, attachment),
            // What we cannot see we do not touch.
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
        let settings = HostSettings::open(self.order.kernel_cache)?;
        let wire = Wire { attachment, bridge: &bridge, netns: &netns, log: &log, settings: &settings };
        firewall::add_pod(attachment, &self.state, None, &self.order.warn)?;
        let placed = wire::make_pair(&mut self.host, &wire, &attachment.wiring.gateways)?;
        if let Err(error) = layer2::refuse_sharing(&mut self.host, attachment.addressing, &bridge, &placed) {
            // The next round tries it again.
            let made = self.host.index_of(&attachment.host_link)?;
            made.map_or(Ok(()), |index| detach::delete_link(&mut self.host, index))?;
            return Err(error);
        }
        // It has the same address at the same MAC as before.
        let inside = wire::set_up_inside(&self.host, &mut pod, &wire, Neighbours::KnowNothing)?;
        let host_index = inside.host_index;
        if attachment.mode == AttachMode::Routed {
            wire::route_to_pod(&mut self.host, attachment, host_index)?;
        }
        wire::let_loopback_in(attachment, &bridge, &log)?;
        shaping::apply(&mut self.host, attachment, host_index)?;
        settle::wait(&mut self.host, &mut pod, attachment)?;
        self.repaired(
            RepairKind::Link,
            format_args!("{}: {}, and was made anew", attachment.key, HostDrift::LinkGone),
        );
        Ok(AttachmentFate::Kept)
    }

    fn collect(&mut self, held: HeldAttachment, attachment: &Attachment) -> Result<AttachmentFate, Error> {
        detach::undo_without_plugin(held, Some(&attachment.key), &self.order.caller())?;
        let ips: Vec<String> = attachment.ips().map(|ip| ip.to_string()).collect();
        let addresses = match attachment.delegated {
            true => format!("{} removed from the kernel; {TO_THE_PLUGIN}", ips.join(", ")),
            false => format!("{} given back", ips.join(", ")),
        };
        self.repaired(
            RepairKind::Collected,
            format_args!("{}: its namespace is gone; {addresses}", attachment.key),
        );
        Ok(AttachmentFate::Left)
    }
}

/// The record, if it still says what was seen and nobody is working on it.
pub(super) fn hold(network: &NetworkState, attachment: &Attachment) -> Result<Option<HeldAttachment>, Error> {
    let held = network.find_idle(&attachment.key.file_stem())?;
    Ok(held.filter(|held| held.phase() == RecordPhase::Ready && held.attachment() == Some(attachment)))
}
