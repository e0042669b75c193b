//! Which limits a pod should have, and the steps from the observed to the desired ones. Pure.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use cni::Bandwidth;
use netlink::{Qdisc, QdiscAt, Tbf};
use types::IfName;

use crate::policy::PodProfile;
use crate::state::Attachment;

/// Maximum queueing delay, as in the reference plugin.
const LATENCY: Duration = Duration::from_millis(25);
/// A burst below the size of a full packet would block all traffic.
const MIN_BURST: u64 = 16 * 1024;
/// The handle of qdiscs that apply the limit of a profile. Only these are removed while the pod runs. The kernel selects handles
/// from 8000: for other qdiscs.
const OF_PROFILE: u32 = 0x5057_0000;

/// Converts bits to a token bucket in bytes. None without a limit. The default burst is the traffic of 100 ms.
fn bucket(rate_bits: u64, burst_bits: u64) -> Option<Tbf> {
    if rate_bits == 0 {
        return None;
    }
    let rate = (rate_bits / 8).max(1);
    let burst = if burst_bits == 0 { rate / 10 } else { burst_bits / 8 };
    let burst = u32::try_from(burst.max(MIN_BURST)).unwrap_or(u32::MAX);
    Some(Tbf::with_latency(rate, burst, LATENCY))
}

/// The limit of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DesiredLimit {
    None,
    /// Of the runtime or the CNI config.
    OfPod(Tbf),
    OfProfile(Tbf),
    /// The objects of the cluster are not known yet, so nothing is changed.
    Unknown,
}

/// The limits of a pod. A limit of the runtime or the CNI config has precedence over the profile, in its direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DesiredLimits {
    ingress: DesiredLimit,
    egress: DesiredLimit,
    /// The record was recovered from the link, which does not have the limits of the runtime.
    is_recovered: bool,
}

impl DesiredLimits {
    pub(super) fn of(attachment: &Attachment, profile: Option<&PodProfile>) -> Self {
        let limit =
            |of: fn(&Bandwidth) -> Option<Tbf>| match (attachment.bandwidth.as_ref().and_then(of), profile) {
                (Some(tbf), _) => DesiredLimit::OfPod(tbf),
                (None, None) => DesiredLimit::Unknown,
                (None, Some(profile)) => profile
                    .bandwidth
                    .as_ref()
                    .and_then(of)
                    .map_or(DesiredLimit::None, DesiredLimit::OfProfile),
            };
        Self {
            ingress: limit(|it| bucket(it.ingress_rate, it.ingress_burst)),
            egress: limit(|it| bucket(it.egress_rate, it.egress_burst)),
            is_recovered: attachment.netns_cookie.is_none(),
        }
    }
}

/// A token bucket of a link, with the handle of its qdisc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HandledTbf {
    pub(super) tbf: Tbf,
    pub(super) handle: u32,
}

/// The limits of a pod in the kernel.
#[derive(Debug, Default)]
pub(super) struct ObservedLimits {
    ingress: Option<HandledTbf>,
    shaper: Option<Shaper>,
    pub(super) has_ingress_qdisc: bool,
}

/// The ifb link that limits traffic from the pod.
#[derive(Debug)]
struct Shaper {
    link: u32,
    egress: Option<HandledTbf>,
}

/// The qdiscs of all links.
#[derive(Debug, Default)]
pub(crate) struct Qdiscs(HashMap<u32, Vec<Qdisc>>);

impl Qdiscs {
    pub(crate) fn new(listed: Vec<Qdisc>) -> Self {
        let mut by_link: HashMap<u32, Vec<Qdisc>> = HashMap::new();
        for qdisc in listed {
            by_link.entry(qdisc.link).or_default().push(qdisc);
        }
        Self(by_link)
    }

    fn of(&self, link: u32) -> &[Qdisc] {
        self.0.get(&link).map(Vec::as_slice).unwrap_or_default()
    }

    fn tbf(&self, link: u32) -> Option<HandledTbf> {
        let handled = |qdisc: &Qdisc| Some(HandledTbf { tbf: qdisc.tbf?, handle: qdisc.handle });
        self.of(link).iter().find_map(handled)
    }
}

impl ObservedLimits {
    /// `shaper` is the pod's ifb link, if it exists.
    pub(super) fn of(qdiscs: &Qdiscs, host_link: u32, shaper: Option<u32>) -> Self {
        Self {
            ingress: qdiscs.tbf(host_link),
            shaper: shaper.map(|link| Shaper { link, egress: qdiscs.tbf(link) }),
            has_ingress_qdisc: qdiscs.of(host_link).iter().any(|qdisc| qdisc.at == QdiscAt::Ingress),
        }
    }
}

/// A change of a pod's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitStep {
    SetIngress(HandledTbf),
    RemoveIngress,
    CreateShaper(HandledTbf),
    ChangeShaper { link: u32, to: HandledTbf },
    RemoveShaper { link: u32 },
}

impl LimitStep {
    /// Whether a limit is missing, not surplus.
    pub(super) fn sets(&self) -> bool {
        match self {
            Self::SetIngress(_) | Self::CreateShaper(_) | Self::ChangeShaper { .. } => true,
            Self::RemoveIngress | Self::RemoveShaper { .. } => false,
        }
    }

    pub(super) fn describe(self, host_link: &IfName, shaper: &IfName) -> impl fmt::Display {
        let bits = |limit: HandledTbf| limit.tbf.rate_bytes.saturating_mul(8);
        match self {
            Self::SetIngress(limit) => {
                format!("the limit of traffic to the pod, {} bit/s (tbf on {host_link})", bits(limit))
            }
            Self::CreateShaper(limit) | Self::ChangeShaper { to: limit, .. } => {
                format!("the limit of traffic from the pod, {} bit/s (tbf on {shaper})", bits(limit))
            }
            Self::RemoveIngress => format!("no limit of traffic to the pod (tbf on {host_link})"),
            Self::RemoveShaper { .. } => format!("no limit of traffic from the pod (tbf on {shaper})"),
        }
    }
}

enum LimitDiff {
    Same,
    Set(HandledTbf),
    Remove,
}

fn compare(desired: DesiredLimit, observed: Option<HandledTbf>, is_recovered: bool) -> LimitDiff {
    let is_of_profile = observed.is_some_and(|found| found.handle == OF_PROFILE);
    match desired {
        DesiredLimit::Unknown => LimitDiff::Same,
        DesiredLimit::None if is_of_profile => LimitDiff::Remove,
        DesiredLimit::None => LimitDiff::Same,
        DesiredLimit::OfPod(tbf) if observed.is_some_and(|found| found.tbf.rate_bytes == tbf.rate_bytes) => {
            LimitDiff::Same
        }
        DesiredLimit::OfPod(tbf) => LimitDiff::Set(HandledTbf { tbf, handle: 0 }),
        // It may be a limit of the runtime.
        DesiredLimit::OfProfile(_) if is_recovered && observed.is_some() && !is_of_profile => LimitDiff::Same,
        // The kernel rounds the burst. The limit contains it.
        DesiredLimit::OfProfile(tbf) => {
            let is_same = |found: HandledTbf| {
                (found.tbf.rate_bytes, found.tbf.limit_bytes) == (tbf.rate_bytes, tbf.limit_bytes)
            };
            match observed {
                Some(found) if is_of_profile && is_same(found) => LimitDiff::Same,
                Some(_) | None => LimitDiff::Set(HandledTbf { tbf, handle: OF_PROFILE }),
            }
        }
    }
}

pub(super) fn diff(desired: &DesiredLimits, observed: &ObservedLimits) -> Vec<LimitStep> {
    let mut steps = Vec::new();
    match compare(desired.ingress, observed.ingress, desired.is_recovered) {
        LimitDiff::Same => {}
        LimitDiff::Set(limit) => steps.push(LimitStep::SetIngress(limit)),
        LimitDiff::Remove => steps.push(LimitStep::RemoveIngress),
    }
    let shaped = observed.shaper.as_ref().and_then(|shaper| shaper.egress);
    let is_limited = |limit: DesiredLimit| match limit {
        DesiredLimit::OfPod(tbf) | DesiredLimit::OfProfile(tbf) => Some(tbf),
        DesiredLimit::None | DesiredLimit::Unknown => None,
    };
    let egress = compare(desired.egress, shaped, desired.is_recovered);
    steps.extend(match (egress, &observed.shaper) {
        (LimitDiff::Set(to), Some(shaper)) if observed.has_ingress_qdisc => {
            Some(LimitStep::ChangeShaper { link: shaper.link, to })
        }
        (LimitDiff::Set(limit), _) => Some(LimitStep::CreateShaper(limit)),
        (LimitDiff::Remove, Some(shaper)) => Some(LimitStep::RemoveShaper { link: shaper.link }),
        (LimitDiff::Remove, None) => None,
        // The redirection of packets to the shaper is missing.
        (LimitDiff::Same, Some(Shaper { egress: Some(found), .. })) if !observed.has_ingress_qdisc => {
            is_limited(desired.egress)
                .map(|tbf| LimitStep::CreateShaper(HandledTbf { tbf, handle: found.handle }))
        }
        // A process was killed after it created the shaper.
        (LimitDiff::Same, Some(Shaper { egress: None, link })) if desired.egress == DesiredLimit::None => {
            Some(LimitStep::RemoveShaper { link: *link })
        }
        (LimitDiff::Same, _) => None,
    });
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(tbf: Tbf, handle: u32) -> HandledTbf {
        HandledTbf { tbf, handle }
    }

    fn steps(desired: DesiredLimit, observed: Option<HandledTbf>) -> Vec<LimitStep> {
        let desired = DesiredLimits { ingress: desired, egress: desired, is_recovered: false };
        let shaper = observed.map(|found| Shaper { link: 7, egress: Some(found) });
        let has_ingress_qdisc = shaper.is_some();
        diff(&desired, &ObservedLimits { ingress: observed, shaper, has_ingress_qdisc })
    }

    #[test]
    fn e18_rates_are_bits_and_the_default_burst_passes_packets() {
        assert_eq!(bucket(0, 8), None);
        let tbf = bucket(8_000_000, 1_600_000).unwrap();
        assert_eq!((tbf.rate_bytes, tbf.burst_bytes, tbf.limit_bytes), (1_000_000, 200_000, 225_000));
        assert_eq!(bucket(8, 0).unwrap().burst_bytes, 16 * 1024);
        assert_eq!(bucket(u64::MAX, u64::MAX).unwrap().burst_bytes, u32::MAX);
    }

    #[test]
    fn limits_of_a_profile_are_set_changed_and_removed_and_others_are_kept() {
        use DesiredLimit::{None as Unlimited, OfPod, OfProfile, Unknown};
        let (slow, fast) = (bucket(8_000_000, 0).unwrap(), bucket(80_000_000, 0).unwrap());
        let (of_profile, unmanaged) = (limit(slow, OF_PROFILE), limit(slow, 0x8001_0000));
        let (set, to) = (LimitStep::SetIngress, limit(fast, OF_PROFILE));
        assert_eq!(steps(OfProfile(fast), None), [set(to), LimitStep::CreateShaper(to)]);
        assert_eq!(
            steps(OfProfile(fast), Some(of_profile)),
            [set(to), LimitStep::ChangeShaper { link: 7, to }]
        );
        assert_eq!(steps(OfProfile(slow), Some(of_profile)), []);
        let removed = [LimitStep::RemoveIngress, LimitStep::RemoveShaper { link: 7 }];
        assert_eq!(steps(Unlimited, Some(of_profile)), removed);
        for desired in [Unlimited, Unknown, OfPod(slow)] {
            assert_eq!(steps(desired, Some(unmanaged)), [], "{desired:?}");
        }
        assert_eq!(steps(Unknown, Some(of_profile)), []);
        assert_eq!(steps(Unknown, None), []);
        // The burst differs.
        let burst = bucket(8_000_000, 8_000_000).unwrap();
        assert_eq!(steps(OfProfile(burst), Some(of_profile)).len(), 2);
    }

    #[test]
    fn limits_of_a_recovered_pod_that_may_be_of_the_runtime_are_kept() {
        let (slow, fast) = (bucket(8_000_000, 0).unwrap(), bucket(80_000_000, 0).unwrap());
        let of = |observed| {
            let egress = DesiredLimit::None;
            let ingress = DesiredLimit::OfProfile(fast);
            let desired = DesiredLimits { ingress, egress, is_recovered: true };
            diff(&desired, &ObservedLimits { ingress: observed, ..ObservedLimits::default() })
        };
        assert_eq!(of(Some(limit(slow, 0x8001_0000))), []);
        let set = [LimitStep::SetIngress(limit(fast, OF_PROFILE))];
        assert_eq!(of(Some(limit(slow, OF_PROFILE))), set);
        assert_eq!(of(None), set);
    }

    #[test]
    fn incomplete_shapers_are_completed_or_removed() {
        let slow = bucket(8_000_000, 0).unwrap();
        let of = |egress, shaper: Option<HandledTbf>, has_ingress_qdisc| {
            let desired = DesiredLimits { ingress: DesiredLimit::None, egress, is_recovered: false };
            let shaper = Some(Shaper { link: 7, egress: shaper });
            diff(&desired, &ObservedLimits { ingress: None, shaper, has_ingress_qdisc })
        };
        let (wanted, found) = (DesiredLimit::OfProfile(slow), limit(slow, OF_PROFILE));
        assert_eq!(of(wanted, Some(found), true), []);
        assert_eq!(of(wanted, Some(found), false), [LimitStep::CreateShaper(found)]);
        assert_eq!(of(wanted, None, false), [LimitStep::CreateShaper(found)]);
        assert_eq!(of(DesiredLimit::None, None, false), [LimitStep::RemoveShaper { link: 7 }]);
        assert_eq!(of(DesiredLimit::Unknown, None, false), []);
    }
}
