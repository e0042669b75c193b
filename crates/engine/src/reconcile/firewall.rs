//! The firewall's tables: their structure as we make it, and every pod in them.

use netconf::NetConf;
use nft::{Firewall, Guard, NetworkChain, Pod};
use types::{Mac, NetworkName};

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
        let mut pods: Vec<Pod<'_>> = members.iter().map(Member::pod).collect();
        let mut tables = Firewall::open()?;
        let chain = self.order.network.and_then(|(name, conf)| own_chain(name, conf));
        let first = self.order.network.and_then(|(_, conf)| first_pod(conf, chain.as_ref()));
        pods.extend(first);
        let damage = tables.damage(&pods)?;
        pods.truncate(members.len());
        if !damage.is_empty() {
            if pods.is_empty() {
                first.map_or(Ok(()), |first| prepare(&mut tables, &first))?;
            } else {
                tables.repair(&pods)?;
                self.take_back(attachments)?;
                first.map_or(Ok(()), |first| tables.prepare(&first))?;
            }
            self.repaired(Kind::Firewall, format_args!("firewall put right: {}", damage.join(", ")));
        }
        for lacking in tables.missing_of(&pods)? {
            let Some(attachment) = members.get(lacking).map(Member::attachment) else { continue };
            let Some(network) = self.state.existing_network(&attachment.key.network) else { continue };
            // With its record held: a DEL at the same time must not be followed by what it has just removed.
            if firewall::put_one_back(&self.state, &network, attachment)? {
                self.repaired(Kind::Firewall, format_args!("{} put back into the firewall", attachment.key));
            }
        }
        Ok(())
    }

    /// Pods that were taken apart while all were put back: nobody else would remove what they have in the tables.
    fn take_back(&mut self, attachments: &[Attachment]) -> Result<(), Error> {
        for attachment in attachments {
            if !self.is_kept(attachment)? {
                firewall::expel(attachment, None)?;
            }
        }
        Ok(())
    }

    fn is_kept(&self, attachment: &Attachment) -> Result<bool, Error> {
        let Some(network) = self.state.existing_network(&attachment.key.network) else { return Ok(false) };
        let stem = attachment.key.file_stem();
        // A DEL that comes after this look removes what was put back. One that is under way may be past that: its end
        // is waited for.
        if network.path_of(&stem).exists() || network.find_stem(&stem)?.is_some() {
            return Ok(true);
        }
        // Another pod that has the address by now has it in the tables too.
        Ok(attachment.ips().any(|ip| network.is_claimed(ip)))
    }
}

/// Where there are no pods, what somebody put between ours may be in the way.
fn prepare(tables: &mut Firewall, first: &Pod<'_>) -> Result<(), Error> {
    tables.prepare(first)?;
    if !tables.damage(std::slice::from_ref(first))?.is_empty() {
        tables.repair(&[])?;
        tables.prepare(first)?;
    }
    Ok(())
}

fn own_chain(name: &NetworkName, conf: &NetConf) -> Option<NetworkChain> {
    conf.ip_masq.then(|| NetworkChain::new(name, &conf.cluster))
}

/// A pod of the agent's own network before there is one: the tables are ready when the first comes.
fn first_pod<'a>(conf: &'a NetConf, masquerade: Option<&'a NetworkChain>) -> Option<Pod<'a>> {
    let guard = if conf.spoof_check { Guard::On } else { Guard::Off };
    (conf.spoof_check || conf.ip_masq).then_some(Pod {
        link: &conf.bridge,
        mac: Mac::local([0; 5]),
        mode: conf.mode,
        bridge: None,
        addresses: &[],
        masquerade,
        guard,
        ports: &[],
    })
}
