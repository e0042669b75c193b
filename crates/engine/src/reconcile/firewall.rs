//! The firewall's tables: their structure as we make it, and every pod in them.

use nft::{Firewall, Pod};

use super::{Kind, Round};
use crate::Error;
use crate::firewall::{self, Member};
use crate::state::Attachment;

impl Round<'_> {
    pub(super) fn firewall(&mut self) {
        let attachments = std::mem::take(&mut self.outcome.attachments);
        if let Err(error) = self.look_at_tables(&attachments) {
            self.trouble("firewall", error);
        }
        self.outcome.attachments = attachments;
    }

    fn look_at_tables(&mut self, attachments: &[Attachment]) -> Result<(), Error> {
        let members: Vec<Member<'_>> = attachments.iter().filter_map(Member::of).collect();
        if members.is_empty() {
            return Ok(());
        }
        let pods: Vec<Pod<'_>> = members.iter().map(Member::pod).collect();
        let mut tables = Firewall::open()?;
        let damage = tables.damage(&pods)?;
        if !damage.is_empty() {
            tables.repair(&pods)?;
            self.take_back(attachments)?;
            self.repaired(Kind::Firewall, damage.join(", "));
        }
        for lacking in tables.missing_of(&pods)? {
            let Some(attachment) = members.get(lacking).map(Member::attachment) else { continue };
            let Some(network) = self.state.existing_network(&attachment.key.network) else { continue };
            // With its record held: a DEL at the same time must not be followed by what it has just removed.
            firewall::put_one_back(&network, &attachment.key.file_stem())?;
            self.repaired(Kind::Firewall, format_args!("{} put back into the firewall", attachment.key));
        }
        Ok(())
    }

    /// Pods that were taken apart while all were put back: nobody else would remove what they have in the tables.
    fn take_back(&mut self, attachments: &[Attachment]) -> Result<(), Error> {
        for attachment in attachments {
            let gone = match self.state.existing_network(&attachment.key.network) {
                Some(network) => {
                    let kept = network.knows(&attachment.key.file_stem())?;
                    // Another pod that has the address by now has it in the tables too.
                    !kept && !attachment.ips().any(|ip| network.is_claimed(ip))
                }
                None => true,
            };
            if gone {
                firewall::expel(attachment)?;
            }
        }
        Ok(())
    }
}
