//! The policies and profiles of pods, as the engine needs them. The agent implements them. A standalone plugin has none.

use std::fmt;
use std::net::IpAddr;

use cni::Bandwidth;
use nft::Dscp;
use types::{AttachMode, AttachmentKey, Placement};

use crate::Error;
use crate::state::Attachment;

/// The group of a pod's host end. It selects the rules that apply to the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkGroup(pub u32);

impl LinkGroup {
    /// The kernel's default. While policies are enforced, a pod with it is isolated.
    pub const CLOSED: Self = Self(0);
}

/// What the profile of a pod's group sets. Empty for a pod without a group, and for a group without a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PodProfile {
    pub bandwidth: Option<Bandwidth>,
    pub dscp: Option<Dscp>,
}

/// The policies of this node's pods. No method fails an ADD or DEL, except [`Self::check`] before anything is changed.
pub trait PodPolicies: fmt::Debug + Sync {
    /// Refuses a tenant, network or group that does not exist, and a placement whose policies cannot be enforced in this mode.
    fn check(&self, placement: &Placement, mode: AttachMode) -> Result<(), cni::Error>;

    /// Whether other nodes may still have an earlier pod with this free address. They would judge a new one by the policies of the
    /// earlier one, so such an address is assigned last.
    fn may_be_known_elsewhere(&self, address: IpAddr) -> bool;

    /// Called when the pod's addresses are recorded. When it returns, the firewall has the elements that the group needs. The
    /// group is [`LinkGroup::CLOSED`] if it cannot be determined in time.
    fn add_pod(&self, pod: &Attachment) -> LinkGroup;

    /// Called when the link exists, with the group that it has. The pod's group may have changed since [`Self::add_pod`].
    fn link_created(&self, pod: &Attachment, group: LinkGroup);

    /// Called when the pod's link was removed, before its addresses are released.
    fn remove_pod(&self, key: &AttachmentKey);

    /// Whether the link of a running pod should have another group, or the pod is not known.
    fn has_drift(&self, key: &AttachmentKey, group: LinkGroup) -> bool;

    /// Adds a running pod if it is not known, and sets the group of its link.
    fn restore_pod(&self, pod: &Attachment) -> Result<(), Error>;

    /// The profile of a group. None while the objects of the cluster are not known.
    fn profile(&self, placement: &Placement) -> Option<PodProfile>;

    /// Whether a profile of any group has a DSCP. None while the objects of the cluster are not known.
    fn uses_dscp(&self) -> Option<bool>;

    /// Called with the profile that was applied to a new pod: when its record is ready, and if its DSCP could not be added. If the
    /// pod's profile is another one, the reconciler compares all pods at once.
    fn profile_applied(&self, pod: &Attachment, profile: Option<PodProfile>);
}

/// The profile of a pod with this placement. None if it is not known. A pod without a known placement has none.
pub(crate) fn profile(
    policies: Option<&dyn PodPolicies>,
    placement: Option<&Placement>,
) -> Option<PodProfile> {
    match placement.filter(|placement| placement.group.is_some()) {
        Some(placement) => policies?.profile(placement),
        None => Some(PodProfile::default()),
    }
}

/// The group for the link of a new pod.
pub(crate) fn add_pod(policies: Option<&dyn PodPolicies>, pod: &Attachment) -> LinkGroup {
    // Addresses of an IPAM plugin follow after the link was created.
    match policies.filter(|_| !pod.addresses.is_empty()) {
        Some(policies) => policies.add_pod(pod),
        None => LinkGroup::CLOSED,
    }
}

pub(crate) fn link_created(policies: Option<&dyn PodPolicies>, pod: &Attachment, group: LinkGroup) {
    if let Some(policies) = policies.filter(|_| !pod.addresses.is_empty()) {
        policies.link_created(pod, group);
    }
}
