//! Records and the pods themselves.

use types::{Code, Finding};

use super::{Inspection, ready};
use crate::Error;
use crate::condition::FailureContext;
use crate::reconcile::{Restore, inside_faults, is_alive, pod_finding};
use crate::state::{Attachment, ListedRecord, NetworkState, RecordPhase};

impl Inspection<'_> {
    pub(super) fn pods(&mut self) {
        for (network, listed) in std::mem::take(&mut self.records) {
            for record in
                listed.iter().filter(|one| one.phase == RecordPhase::Ready && one.attachment.is_none())
            {
                self.operator.push(self.unreadable(&network, record));
            }
            for attachment in ready(&listed) {
                let found = self.pod(&network, attachment).unwrap_or_else(|error| {
                    let object = format!("attachment {}", attachment.key);
                    let failed = FailureContext {
                        code: Code::PodNotInspected,
                        object: &object,
                        run_dir: self.run_dir,
                    };
                    Some(error.finding(&failed).degraded())
                });
                self.operator.extend(found);
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
        let found = match pod_finding(attachment, &self.links, Restore::ByRestart)? {
            Some(found) => Some(found),
            None => self.incomplete(attachment)?,
        };
        // A DEL may have begun since the records were listed.
        let is_idle = || Ok::<_, Error>(network.find_idle(&attachment.key.file_stem())?.is_some());
        Ok(match found {
            Some(found) if is_idle()? => Some(found),
            Some(_) | None => None,
        })
    }

    /// The link, addresses, routes or neighbours that the pod lacks. Without an agent nothing restores them.
    fn incomplete(&self, attachment: &Attachment) -> Result<Option<Finding>, Error> {
        let Attachment { key, host_link, .. } = attachment;
        let faults = match self.links.iter().any(|link| link.name == host_link.as_str()) {
            true => inside_faults(attachment)?,
            false if is_alive(attachment)? => vec![format!("link {host_link} of the node is gone")],
            false => Vec::new(),
        };
        let message = format!("{}; restart the pod", faults.join(", "));
        let found = Finding::new(Code::PodNetworkIncomplete, format_args!("attachment {key}"), message);
        Ok((!faults.is_empty()).then_some(found))
    }
}
