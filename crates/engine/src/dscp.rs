//! The DSCP of packets that a pod sends: an element of the network's table, by the name of the pod's host end. The DSCP comes from
//! the profile of the pod's group.

use crate::kernel_cache::{self, KernelCache};
use crate::policy::{PodPolicies, PodProfile};
use crate::state::Attachment;
use crate::{Caller, Error, policy};

/// Adds a new pod, before its link exists. If this fails, the pod is added without a DSCP: the reconciler repairs the table at once.
pub(crate) fn add_pod(
    attachment: &Attachment,
    profile: Option<&PodProfile>,
    (kernel_cache, policies): (Option<&KernelCache>, Option<&dyn PodPolicies>),
) {
    let Some((profile, dscp)) = profile.and_then(|profile| Some((profile, profile.dscp?))) else { return };
    let added = kernel_cache::with_firewall(kernel_cache, |firewall| {
        firewall.add_dscp(&attachment.key.network, &attachment.host_link, dscp)
    });
    if added.is_err()
        && let Some(policies) = policies
    {
        policies.profile_applied(attachment, Some(PodProfile { dscp: None, ..*profile }));
    }
}

/// Removes a pod whose link was removed. The reconciler removes a pod whose profile changed before it was compared.
pub(crate) fn remove_pod(attachment: &Attachment, caller: &Caller<'_>) -> Result<(), Error> {
    if policy::profile(caller.policies, attachment.placement.as_ref())
        .and_then(|profile| profile.dscp)
        .is_none()
    {
        return Ok(());
    }
    kernel_cache::with_firewall(caller.kernel_cache, |firewall| {
        firewall.remove_dscp(&attachment.key.network, &[&attachment.host_link])
    })
}

/// Describes a missing DSCP.
pub(crate) fn missing(
    attachment: &Attachment,
    profile: Option<&PodProfile>,
) -> Result<Option<String>, Error> {
    let Some(dscp) = profile.and_then(|profile| profile.dscp) else { return Ok(None) };
    let has_dscp = kernel_cache::with_firewall(None, |firewall| {
        firewall.has_dscp(&attachment.key.network, &attachment.host_link, dscp)
    })?;
    Ok((!has_dscp).then(|| format!("the DSCP of packets from {}", attachment.host_link)))
}
