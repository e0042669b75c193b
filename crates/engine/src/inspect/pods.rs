//! Inspects records and pods.

use types::{Code, Finding};

use super::{Inspection, ready};
use crate::Error;
use crate::condition::FailureContext;
use crate::reconcile::{Restore, is_alive, pod_faults, pod_finding};
use crate::state::{Attachment, ListedRecord, NetworkState, RecordPhase};

impl Inspection<'_> {
    pub(super) fn pods(&mut self) {
        for (network, listed) in std::mem::take(&mut self.records) {
            for record in listed
                .iter()
                .filter(|record| record.phase == RecordPhase::Ready && record.attachment.is_none())
            {
                self.other_findings.push(self.unreadable(&network, record));
            }
            for attachment in ready(&listed) {
                let finding = self.pod(&network, attachment).unwrap_or_else(|error| {
                    let object = format!("attachment {}", attachment.key);
                    let failed = FailureContext {
                        code: Code::PodNotInspected,
                        object: &object,
                        run_dir: self.run_dir,
                    };
                    Some(error.finding(&failed).degraded())
                });
                self.other_findings.extend(finding);
            }
        }
    }

    fn unreadable(&self, network: &NetworkState, listed: &ListedRecord) -> Finding {
        let record = network.path_of(&listed.stem);
        let error = match listed.newer {
            Some(schema) => Error::NewerRecord { record, schema },
            None => Error::Unreadable { record },
        };
        error.finding(&FailureContext {
            code: Code::RecordUnreadable,
            object: "record",
            run_dir: self.run_dir,
        })
    }

    fn pod(&self, network: &NetworkState, attachment: &Attachment) -> Result<Option<Finding>, Error> {
        let finding = match pod_finding(attachment, &self.links, Restore::ByRestart)? {
            Some(finding) => Some(finding),
            None => self.incomplete(attachment)?,
        };
        // A DEL may have started after the records were listed.
        let is_idle = || Ok::<_, Error>(network.find_idle(&attachment.key.file_stem())?.is_some());
        Ok(match finding {
            Some(finding) if is_idle()? => Some(finding),
            Some(_) | None => None,
        })
    }

    /// Missing links, addresses, routes or neighbours of the pod. Without an agent they are not restored.
    fn incomplete(&self, attachment: &Attachment) -> Result<Option<Finding>, Error> {
        let Attachment { key, host_link, .. } = attachment;
        let faults = match self.links.iter().any(|link| link.name == host_link.as_str()) {
            true => pod_faults(attachment)?,
            false if is_alive(attachment)? => vec![format!("host link {host_link} is missing")],
            false => Vec::new(),
        };
        let message = format!("{}; restart the pod", faults.join(", "));
        let finding = Finding::new(Code::PodNetworkIncomplete, format_args!("attachment {key}"), message);
        Ok((!faults.is_empty()).then_some(finding))
    }
}
