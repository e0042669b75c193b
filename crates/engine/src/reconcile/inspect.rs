//! A pod inside its namespace: drift of the objects that Podwire configured is repaired, other changes are reported.

use netlink::Link;

use super::repair::lock_record;
use super::{ReconcileRound, RepairKind, Restore, pod_drift, pod_finding};
use crate::state::{Attachment, NetworkState};
use crate::{Error, shaping};

impl ReconcileRound<'_> {
    /// `links` are those of the host.
    pub(super) fn inspect(&mut self, network: &NetworkState, attachment: &Attachment, links: &[Link]) {
        let object = format!("attachment {}", attachment.key);
        if let Err(error) = self.repair_inside(network, attachment, links) {
            return self.report_failure(&object, error);
        }
        match pod_finding(attachment, links, Restore::ByAgent) {
            Ok(found) => self.outcome.findings.extend(found),
            Err(error) => self.report_failure(&object, error),
        }
    }

    fn repair_inside(
        &mut self,
        network: &NetworkState,
        attachment: &Attachment,
        links: &[Link],
    ) -> Result<(), Error> {
        let is_host_end = |link: &&Link| link.name == attachment.host_link.as_str();
        // A link that was removed is created again by a round of the node.
        let Some(link) = links.iter().find(is_host_end) else { return Ok(()) };
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
        // Another process may be removing the attachment.
        let Some(_held) = lock_record(network, attachment)? else { return Ok(()) };
        if !faults.is_empty() {
            match pod_drift::repair(attachment) {
                Ok(()) => faults.iter().for_each(|fault| {
                    self.repaired(fault.kind(), format_args!("{}: {fault}", attachment.key));
                }),
                Err(error) => errors.push(error),
            }
        }
        if !limits.is_empty() {
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
