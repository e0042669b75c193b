//! The firewall's tables: whole, and with every pod in them.

use super::{Kind, Round};
use crate::firewall;

impl Round<'_> {
    pub(super) fn firewall(&mut self) {
        let attachments = std::mem::take(&mut self.outcome.attachments);
        for attachment in &attachments {
            match firewall::missing(attachment) {
                Ok(missing) if missing.is_empty() => {}
                Ok(missing) => match firewall::put_back(&self.state, None) {
                    Ok(()) => self
                        .repaired(Kind::Firewall, format_args!("{}: {}", attachment.key, missing.join(", "))),
                    Err(error) => self.trouble("firewall", error),
                },
                Err(error) => self.trouble("firewall", error),
            }
        }
        self.outcome.attachments = attachments;
    }
}
