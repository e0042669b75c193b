//! Managed links without a record. A record is written before its link and removed after it, so another process removed the
//! record, and the pod lives.

use netlink::Link;
use types::AttachmentKey;

use super::observe::ObservedHost;
use super::{ReconcileRound, RepairKind};
use crate::alias::Alias;
use crate::state::{NetworkState, RunDirs};
use crate::{Error, detach, relearn};

impl ReconcileRound<'_> {
    /// The record is looked up after the link was listed, so that the link of an ADD in flight is no stray. Networks that this
    /// run directory does not have belong to other run directories, and so do links whose record is in another one.
    pub(super) fn strays(&mut self, seen: &ObservedHost) {
        let Ok(networks) = self.state.networks() else { return };
        for link in seen.links.values() {
            let Some(alias) = Alias::of(link) else { continue };
            let Some(network) = networks.iter().find(|network| network.name() == alias.network) else {
                continue;
            };
            let done = match network.knows(&alias.stem()) {
                Ok(true) => Ok(()),
                // A DEL has come to its end since the picture was taken.
                Ok(false) if self.is_gone(link) => Ok(()),
                Ok(false) if self.is_recorded_elsewhere(&alias) => Ok(()),
                Ok(false) => self.stray(network, link, seen),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = done {
                self.trouble(format_args!("link {}", link.name), error);
            }
        }
    }

    /// The record is written anew from what we remember or the link tells; if somebody else has its address by now, the
    /// link is the one to go.
    fn stray(&mut self, network: &NetworkState, link: &Link, seen: &ObservedHost) -> Result<(), Error> {
        let own = self.order.network.filter(|(name, _)| AttachmentKey::network_dir(name) == network.name());
        // Of a network with a long name the directory has a digest only: what cannot be told stays.
        let Some(name) = own.map_or_else(|| network.name().try_into().ok(), |(name, _)| Some(name.clone()))
        else {
            return Ok(());
        };
        let hints = relearn::Hints { conf: own.map(|(_, conf)| conf), memory: self.order.memory };
        let Some(survivor) = relearn::survivor(&name, link, hints) else { return Ok(()) };
        let (stem, is_pair) = (&survivor.stem, link.kind.as_deref() == Some("veth"));
        if is_pair && network.readopt(&survivor)? {
            self.repaired(
                RepairKind::Record,
                format_args!("the lost record of {name}/{stem} was written anew"),
            );
            self.outcome.attachments.extend(survivor.attachment);
            return Ok(());
        }
        // What shapes a pod goes with it, and comes with it.
        let has_pod = !is_pair && seen.link_of(&network.name(), stem).is_some();
        if has_pod || network.knows(stem)? {
            return Ok(());
        }
        detach::remove_stray(&mut self.host, link, Some(network))?;
        self.repaired(
            RepairKind::Stray,
            format_args!("link {} of {name}/{stem} removed: no record knows it", link.name),
        );
        Ok(())
    }

    fn is_recorded_elsewhere(&mut self, alias: &Alias<'_>) -> bool {
        self.host.netns_cookie().is_ok_and(|namespace| {
            RunDirs::new(namespace, self.state.dir()).is_recorded_elsewhere(alias.network, &alias.stem())
        })
    }

    fn is_gone(&mut self, link: &Link) -> bool {
        let now = self.host.link_at(link.index);
        now.is_ok_and(|now| now.is_none_or(|now| now.alias != link.alias))
    }
}
