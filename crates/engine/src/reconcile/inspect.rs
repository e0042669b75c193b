//! A pod inside its namespace: drift of the objects that Podwire configured is repaired, other changes are reported. Bandwidth
//! limits are compared first, on the host.

use std::collections::HashMap;

use netlink::Link;

use super::repair::lock_record;
use super::{ReconcileRound, RepairKind, Restore, pod_drift, pod_finding};
use crate::policy::PodProfile;
use crate::shaping::Qdiscs;
use crate::state::{Attachment, NetworkState};
use crate::{Error, alias, policy, shaping};

impl ReconcileRound<'_> {
    /// Compares the limits of these pods with one listing. A pod whose limits differ is observed again with its record locked.
    pub(super) fn limits(&mut self, pods: &[(&NetworkState, &Attachment)], links: &[Link]) {
        let pods: Vec<_> = pods.iter().filter(|(_, pod)| shaping::may_have_limits(pod)).collect();
        if pods.is_empty() {
            return;
        }
        let qdiscs = match self.host.qdiscs(None) {
            Ok(listed) => Qdiscs::new(listed),
            Err(error) => return self.report_failure("bandwidth limits", error),
        };
        let links: HashMap<&str, &Link> = links.iter().map(|link| (link.name.as_str(), link)).collect();
        for (network, attachment) in pods {
            let of = |name: &str| links.get(name).filter(|link| alias::is_of(link, &attachment.key));
            let Some(host_link) = of(attachment.host_link.as_str()) else { continue };
            let shaper = of(attachment.key.shaper_link().as_str()).map(|link| link.index);
            let profile = policy::profile(self.request.policies, attachment.placement.as_ref());
            if shaping::has_drift(attachment, profile.as_ref(), &qdiscs, (host_link.index, shaper))
                && let Err(error) = self.repair_limits(network, attachment, profile)
            {
                self.report_failure(format_args!("bandwidth limits of attachment {}", attachment.key), error);
            }
        }
    }

    fn repair_limits(
        &mut self,
        network: &NetworkState,
        attachment: &Attachment,
        profile: Option<PodProfile>,
    ) -> Result<(), Error> {
        let Some(_held) = lock_record(network, attachment)? else {
            self.outcome.has_locked_records = true;
            return Ok(());
        };
        let Some(link) = self.host.link(&attachment.host_link)? else { return Ok(()) };
        let changes = shaping::repair(&mut self.host, attachment, &link, profile.as_ref())?;
        if !changes.is_empty() {
            let message = format_args!("{}: {}", attachment.key, changes.join(", "));
            self.repaired(RepairKind::Shaping, message);
        }
        Ok(())
    }

    /// `links` are those of the host when the inspection began. It may take long, so the host link of the pod is read again: it
    /// may have been removed or created again, with another index.
    pub(super) fn inspect(&mut self, network: &NetworkState, attachment: &Attachment, links: &[Link]) {
        if let Err(error) = self.inspect_pod(network, attachment, links) {
            // A round of the node reports other failures of the same attachment. Both are shown.
            self.report_failure(format_args!("attachment {} (inside)", attachment.key), error);
        }
    }

    fn inspect_pod(
        &mut self,
        network: &NetworkState,
        attachment: &Attachment,
        links: &[Link],
    ) -> Result<(), Error> {
        // A round of the node creates a removed link again.
        if self.host.link(&attachment.host_link)?.is_none() {
            return Ok(());
        }
        self.repair_inside(network, attachment)?;
        let Some(found) = pod_finding(attachment, links, Restore::ByAgent)? else { return Ok(()) };
        // If the host link was removed since then, the interface in the pod was not moved, but removed.
        let is_listed = |now: &Link| {
            links.iter().any(|link| link.index == now.index && link.name == attachment.host_link.as_str())
        };
        if self.host.link(&attachment.host_link)?.as_ref().is_some_and(is_listed) {
            self.outcome.findings.push(found);
        }
        Ok(())
    }

    fn repair_inside(&mut self, network: &NetworkState, attachment: &Attachment) -> Result<(), Error> {
        let faults = pod_drift::faults(attachment)?;
        if faults.is_empty() {
            return Ok(());
        }
        // The namespace is entered before the record is locked, because it may block, and a round does not repair locked records.
        let Some(mut pod) = pod_drift::open(attachment)? else { return Ok(()) };
        let Some(_held) = lock_record(network, attachment)? else {
            self.outcome.has_locked_records = true;
            return Ok(());
        };
        pod_drift::repair(attachment, &mut pod)?;
        for fault in &faults {
            self.repaired(fault.kind(), format_args!("attachment {}: {fault}", attachment.key));
        }
        Ok(())
    }
}
