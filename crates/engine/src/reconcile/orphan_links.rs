//! Managed links without a record. A record is written before its link and removed after it. So another process removed the
//! record, and the pod is alive.

use netlink::Link;
use types::AttachmentKey;

use super::observe::ObservedHost;
use super::{ReconcileRound, RepairKind};
use crate::alias::Alias;
use crate::state::{NetworkState, RunDirs};
use crate::{Error, detach, recover};

impl ReconcileRound<'_> {
    /// The record is looked up after the link was listed, so the link of an ADD in progress is not orphaned. Networks that this
    /// run directory does not have belong to other run directories. So do links with a record in another one.
    pub(super) fn orphan_links(&mut self, observed: &ObservedHost) {
        let Ok(networks) = self.state.networks() else { return };
        for link in observed.links.values() {
            let Some(alias) = Alias::of(link) else { continue };
            let Some(network) = networks.iter().find(|network| network.name() == alias.network) else {
                continue;
            };
            let outcome = match network.has_record(&alias.stem()) {
                Ok(true) => Ok(()),
                // A DEL removed the link after the host was observed.
                Ok(false) if self.is_removed(link) => Ok(()),
                Ok(false) if self.is_recorded_elsewhere(&alias) => Ok(()),
                Ok(false) => self.orphan_link(network, link, observed),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = outcome {
                self.report_failure(format_args!("link {}", link.name), error);
            }
        }
    }

    /// Restores the record from the last round's record or from the link's alias. If another attachment has its address now, the
    /// link is removed.
    fn orphan_link(
        &mut self,
        network: &NetworkState,
        link: &Link,
        observed: &ObservedHost,
    ) -> Result<(), Error> {
        let own = self.request.network.filter(|(name, _)| AttachmentKey::network_dir(name) == network.name());
        // The directory of a network with a long name contains only a digest. Then the name is unknown, and the link stays.
        let Some(name) = own.map_or_else(|| network.name().try_into().ok(), |(name, _)| Some(name.clone()))
        else {
            return Ok(());
        };
        let hints = recover::Hints {
            conf: own.map(|(_, conf)| conf),
            others: if own.is_some() { self.request.other_networks } else { &[] },
            earlier_records: self.request.earlier_records,
        };
        let Some(recovered_link) = recover::recovered_link(&name, link, hints) else { return Ok(()) };
        let (stem, is_pair) = (&recovered_link.stem, link.kind.as_deref() == Some("veth"));
        if is_pair && network.restore_record(&recovered_link)? {
            self.repaired(RepairKind::Record, format_args!("restored the lost record of {name}/{stem}"));
            self.outcome.attachments.extend(recovered_link.attachment);
            return Ok(());
        }
        // The shaper link of a pod is restored and removed with the pod.
        let has_pod = !is_pair && observed.link_of(&network.name(), stem).is_some();
        if has_pod || network.has_record(stem)? {
            return Ok(());
        }
        detach::remove_orphan_link(&mut self.host, link, Some(network))?;
        self.repaired(
            RepairKind::OrphanLink,
            format_args!("removed link {} of {name}/{stem}, which has no record", link.name),
        );
        Ok(())
    }

    fn is_recorded_elsewhere(&mut self, alias: &Alias<'_>) -> bool {
        self.host.netns_cookie().is_ok_and(|namespace| {
            RunDirs::new(namespace, self.state.dir()).is_recorded_elsewhere(alias.network, &alias.stem())
        })
    }

    fn is_removed(&mut self, link: &Link) -> bool {
        let now = self.host.link_at(link.index);
        now.is_ok_and(|now| now.is_none_or(|now| now.alias != link.alias))
    }
}
