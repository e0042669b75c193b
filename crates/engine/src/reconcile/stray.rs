//! Links of ours that no record knows: somebody removed the record, or was killed at a bad moment.

use netlink::Link;

use super::observe::{Seen, named_by};
use super::{Kind, Round};
use crate::detach;

impl Round<'_> {
    /// A link's record is there before the link: it is looked for after the link was seen, so that an ADD under way is not
    /// mistaken. Networks that this state folder does not know are somebody else's.
    pub(super) fn strays(&mut self, seen: &Seen) {
        let Ok(networks) = self.state.networks() else { return };
        for link in seen.links.values() {
            let Some((name, stem)) = named_by(link) else { continue };
            let Some(network) = networks.iter().find(|network| network.name() == name) else { continue };
            match network.knows(&stem) {
                Ok(true) => {}
                // A DEL has come to its end since the picture was taken.
                Ok(false) if self.is_gone(link) => {}
                Ok(false) => match detach::remove_stray(&mut self.host, link, Some(network)) {
                    Ok(()) => self.repaired(
                        Kind::Stray,
                        format_args!("link {} of {name}/{stem} removed: no record knows it", link.name),
                    ),
                    Err(error) => self.trouble(
                        format_args!("link {} of {name}/{stem}, which no record knows", link.name),
                        error,
                    ),
                },
                Err(error) => self.trouble(format_args!("link {}", link.name), error),
            }
        }
    }

    fn is_gone(&mut self, link: &Link) -> bool {
        let now = self.host.link_at(link.index);
        now.is_ok_and(|now| now.is_none_or(|now| now.alias != link.alias))
    }
}
