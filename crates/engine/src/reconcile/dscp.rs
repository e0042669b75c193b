//! The tables with the DSCP of pods. They exist while the profile of a group has a DSCP.

use nft::Dscp;
use types::{IfName, NetworkName};

use super::{ReconcileRound, RepairKind};
use crate::kernel_cache::with_firewall;
use crate::state::Attachment;
use crate::{Error, policy};

impl ReconcileRound<'_> {
    pub(super) fn dscp(&mut self) {
        let Some(is_used) = self.request.policies.and_then(policy::PodPolicies::uses_dscp) else { return };
        let attached = self.outcome.attachments.iter().map(|attachment| &attachment.key.network);
        let mut networks: Vec<NetworkName> =
            self.request.network.iter().map(|(name, _)| *name).chain(attached).cloned().collect();
        networks.sort();
        networks.dedup();
        for network in networks {
            let kept = if is_used { self.keep_dscp(&network) } else { self.delete_dscp(&network) };
            match kept {
                Ok(changes) if changes.is_empty() => {}
                Ok(changes) => {
                    let message = format_args!("DSCP of pods of {network}: {}", changes.join(", "));
                    self.repaired(RepairKind::Firewall, message);
                }
                Err(error) => self.report_failure(format_args!("DSCP of pods of {network}"), error),
            }
        }
    }

    /// The table is listed before the records: an ADD in progress has a record before its element.
    fn keep_dscp(&mut self, network: &NetworkName) -> Result<Vec<String>, Error> {
        let cache = self.request.kernel_cache;
        let listed = with_firewall(cache, |firewall| firewall.dscp_links(network))?;
        let pods: Vec<Attachment> = self
            .records()?
            .into_iter()
            .flat_map(|(_, listed)| listed)
            .filter_map(|it| it.attachment)
            .collect();
        let dscp = |pod: &Attachment| policy::profile(self.request.policies, pod.placement.as_ref())?.dscp;
        let of_network = pods.iter().filter(|pod| pod.key.network == *network);
        let wanted: Vec<(&IfName, Dscp)> =
            of_network.filter_map(|pod| Some((&pod.host_link, dscp(pod)?))).collect();
        let mut changes = with_firewall(cache, |firewall| firewall.keep_dscp(network, &wanted))?;
        let surplus: Vec<&IfName> =
            listed.iter().filter(|link| wanted.iter().all(|(other, _)| other != link)).collect();
        if !surplus.is_empty() {
            with_firewall(cache, |firewall| firewall.remove_dscp(network, &surplus))?;
            changes.push(format!("{} removed", types::count(surplus.len() as u64, "element")));
        }
        Ok(changes)
    }

    fn delete_dscp(&self, network: &NetworkName) -> Result<Vec<String>, Error> {
        match with_firewall(self.request.kernel_cache, |firewall| firewall.delete_dscp(network)) {
            Ok(true) => Ok(vec!["no profile has a DSCP any more".to_owned()]),
            // Without nftables there is no table.
            Ok(false) | Err(Error::Firewall(nft::Error::Unsupported { .. })) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}
