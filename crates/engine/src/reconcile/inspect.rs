//! A pod inside its namespace: drift of the objects that Podwire configured is repaired, other changes are reported.

use netlink::Link;

use super::repair::lock_record;
use super::{ReconcileRound, RepairKind, Restore, pod_drift, pod_finding};
use crate::state::{Attachment, NetworkState};
use crate::{Error, shaping};

impl ReconcileRound<'_> {
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
        let Some(link) = self.host.link(&attachment.host_link)? else { return Ok(()) };
        self.repair_inside(network, attachment, &link)?;
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

    fn repair_inside(
        &mut self,
        network: &NetworkState,
        attachment: &Attachment,
        link: &Link,
    ) -> Result<(), Error> {
        // A check that fails does not prevent the other one.
        let mut errors = Vec::new();
        let faults = pod_drift::faults(attachment).unwrap_or_else(|error| {
            errors.push(error);
            Vec::new()
        });
        let limits = match attachment.bandwidth {
            Some(_) => shaping::missing(&mut self.host, attachment, link).unwrap_or_else(|error| {
                errors.push(error);
                Vec::new()
            }),
            None => Vec::new(),
        };
        if faults.is_empty() && limits.is_empty() {
            return Error::collect(errors);
        }
        // The namespace is entered before the record is locked, because it may block, and a round does not repair locked records.
        let pod = if faults.is_empty() { None } else { pod_drift::open(attachment)? };
        let Some(_held) = lock_record(network, attachment)? else {
            self.outcome.has_locked_records = true;
            return Error::collect(errors);
        };
        if let Some(mut pod) = pod {
            match pod_drift::repair(attachment, &mut pod) {
                Ok(()) => faults.iter().for_each(|fault| {
                    self.repaired(fault.kind(), format_args!("attachment {}: {fault}", attachment.key));
                }),
                Err(error) => errors.push(error),
            }
        }
        let link = self.host.link(&attachment.host_link)?;
        if let Some(link) = link.filter(|_| !limits.is_empty()) {
            match shaping::renew(&mut self.host, attachment, link.index) {
                Ok(()) => {
                    let message = format_args!("{}: {}", attachment.key, limits.join(", "));
                    self.repaired(RepairKind::Shaping, message);
                }
                Err(error) => errors.push(error),
            }
        }
        Error::collect(errors)
    }
}
